// Between the messages in the journal and the values that the store works with.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "store/checkpoint/checkpoint.h"
#include "wstore/digest.h"
#include "wstore/fingerprint.h"
#include "wstore/v1/journal.pb.h"

namespace wstore {

// kDataLoss unless `bytes` is 32 long; `what` names it in the message.
absl::StatusOr<Digest> DigestField(const std::string& bytes, const char* what);

Fingerprint FromProto(const v1::Fingerprint& proto);
v1::Fingerprint ToProto(const Fingerprint& fingerprint);

std::vector<FileIdentity> FromProto(const google::protobuf::RepeatedPtrField<v1::BaseFile>& files);
void ToProto(const std::vector<FileIdentity>& files,
             google::protobuf::RepeatedPtrField<v1::BaseFile>* out);

// The same message always gives the same bytes (map entries sorted).
std::string SerializeDeterministic(const google::protobuf::MessageLite& message);

}  // namespace wstore
