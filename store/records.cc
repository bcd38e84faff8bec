#include "store/records.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "common/check.h"

namespace wstore {

absl::StatusOr<Digest> DigestField(const std::string& bytes, const char* what) {
  const std::optional<Digest> digest = DigestFromBytes(bytes);
  if (!digest.has_value()) {
    return absl::DataLossError(
        absl::StrCat(what, " has ", bytes.size(), " bytes; a digest has 32"));
  }
  return *digest;
}

Fingerprint FromProto(const v1::Fingerprint& proto) {
  return Fingerprint{{proto.lane0(), proto.lane1()}};
}

v1::Fingerprint ToProto(const Fingerprint& fingerprint) {
  v1::Fingerprint proto;
  proto.set_lane0(fingerprint.lanes[0]);
  proto.set_lane1(fingerprint.lanes[1]);
  return proto;
}

std::vector<FileIdentity> FromProto(const google::protobuf::RepeatedPtrField<v1::BaseFile>& files) {
  std::vector<FileIdentity> identities;
  for (const v1::BaseFile& file : files) {
    identities.push_back({file.path(), file.size_bytes(), file.mtime_ns(), file.inode()});
  }
  return identities;
}

void ToProto(const std::vector<FileIdentity>& files,
             google::protobuf::RepeatedPtrField<v1::BaseFile>* out) {
  for (const FileIdentity& file : files) {
    v1::BaseFile* const proto = out->Add();
    proto->set_path(file.path);
    proto->set_size_bytes(file.size_bytes);
    proto->set_mtime_ns(file.mtime_ns);
    proto->set_inode(file.inode);
  }
}

std::string SerializeDeterministic(const google::protobuf::MessageLite& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    WSTORE_CHECK(message.SerializeToCodedStream(&coded));
  }
  return bytes;
}

}  // namespace wstore
