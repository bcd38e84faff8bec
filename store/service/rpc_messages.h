// Between the service's messages and the values that the core works with.
//
// What comes from outside is checked here: lengths of digests, ranges of enums, limits of text. An
// error is kInvalidArgument and names the field.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "store/service/fleet.h"
#include "wstore/v1/service.pb.h"

namespace wstore::service {

inline constexpr size_t kMaxTextBytes = 64 << 10;
inline constexpr int kMaxMessageBytes = 17 << 20;
inline constexpr uint32_t kDefaultPage = 100;
inline constexpr uint32_t kMaxPage = 1000;

// Towards the caller. With `head`, conflicts carry an ErrorDetail.
grpc::Status ToGrpc(const absl::Status& status);
grpc::Status ToGrpc(const absl::Status& status, const v1::Head& head);

absl::StatusOr<BeginPublish> FromProto(const v1::BeginRequest& request);
absl::StatusOr<ContributorSummary> FromProto(const v1::CommitRequest& request);
absl::StatusOr<VersionName> FromProto(const v1::VersionName& name, const char* field);
absl::StatusOr<protocol::Report> FromProto(const v1::Report& report,
                                           const RankRegistration& registration);
// `after_only`: of an audit.
absl::StatusOr<std::vector<CellSums>> CellsFromProto(const v1::SumList& cells);
Fingerprint FromProto(const v1::Fingerprint& fingerprint);
absl::Status CheckText(const char* field, const std::string& text, size_t limit);

v1::Fingerprint ToProto(const Fingerprint& fingerprint);
v1::VersionName ToProto(VersionId version, const Digest& chain_digest);
v1::Head ToProto(const HeadState& state, const Digest& base_digest, const std::string& word);
v1::Decision ToProto(const FleetAnswer& answer, v1::Head head);
v1::Version ToProto(const VersionInfo& version, VersionId head);
v1::MoveEntry ToProto(const MoveInfo& move);
v1::WorkerAudit ToProto(const WorkerAudit& audit);
v1::Hold ToProto(const HoldInfo& hold);
v1::Worker ToProto(const WorkerRow& row, MoveNumber head);
v1::TransactionEntry ToProto(const TransactionRow& row);
v1::Order ToProto(const RankOrder& order);

// The state in the words of `status`; `store_state` is that of the store itself.
std::string StateWord(const HeadState& state, const std::string& store_state);

// A page of a list of `size` entries: [begin, end), and the token of the next. Tokens count entries
// from the oldest, so that what is added at the front meanwhile moves nothing.
struct Page {
  size_t begin = 0;
  size_t end = 0;
  std::string next_token;
};
absl::StatusOr<Page> PageOf(size_t size, uint32_t page_size, const std::string& token);

}  // namespace wstore::service
