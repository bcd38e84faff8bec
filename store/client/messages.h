// From the service's messages to the values that programs see, and back.
//
// What comes from a server is checked as far as this side would go wrong by it; the error is
// kDataLoss and names the field.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "wstore/served.h"
#include "wstore/upload.h"
#include "wstore/v1/service.pb.h"

namespace wstore::client {

absl::StatusOr<Digest> DigestOf(const std::string& bytes, const char* field);
absl::StatusOr<ServedHead> FromProto(const v1::Head& head);
absl::StatusOr<ServerStatus> FromProto(const v1::Status& status);
absl::StatusOr<VersionInfo> FromProto(const v1::Version& version);
absl::StatusOr<Decision> FromProto(const v1::Decision& decision, const std::string& id);
MoveInfo FromProto(const v1::MoveEntry& move);
TagInfo FromProto(const v1::TagEntry& tag);
WorkerInfo FromProto(const v1::Worker& worker);
WorkerCheck FromProto(const v1::WorkerAudit& audit);
OpenTransaction FromProto(const v1::TransactionEntry& transaction);

v1::BeginRequest ToProto(const PublishOptions& options, const std::string& actor);
v1::VersionName ToProto(VersionId version, const Digest& chain_digest);

}  // namespace wstore::client
