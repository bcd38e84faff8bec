// Between the service's messages and what the worker's half of the protocol works with.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "store/protocol/messages.h"
#include "wstore/regions.h"
#include "wstore/update.h"
#include "wstore/v1/service.pb.h"

namespace wstore::client {

v1::FromRank ToProto(const protocol::Report& report);
//   kInvalidArgument: a digest of another length, a kind that is not known
absl::StatusOr<protocol::Order> FromProto(const v1::Order& order, const protocol::RankId& rank);

v1::VersionName ToProto(const VersionName& version);
absl::StatusOr<VersionName> FromProto(const v1::VersionName& name);
v1::Fingerprint ToProto(const Fingerprint& fingerprint);
Fingerprint FromProto(const v1::Fingerprint& fingerprint);

// In messages of at most 65,536 cells each; at least one.
std::vector<v1::FromRank> VoteMessages(TransactionNumber transaction,
                                       const std::vector<CellSums>& cells);
std::vector<v1::FromRank> AuditMessages(uint64_t audit, const VersionName& version,
                                        const std::vector<Fingerprint>& cells);

}  // namespace wstore::client
