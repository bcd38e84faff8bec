#include "store/version/chain.h"

namespace wstore {
namespace {

void UpdateWith(Sha256* sha, const Fingerprint& fingerprint) {
  sha->UpdateU64(fingerprint.lanes[0]).UpdateU64(fingerprint.lanes[1]);
}

void UpdateWith(Sha256* sha, const std::string& text) { sha->UpdateU64(text.size()).Update(text); }

}  // namespace

Digest BaseChainDigest(const Digest& base_digest, const Fingerprint& fingerprint) {
  Sha256 sha;
  sha.Update(std::string_view("wstore base chain 1\0", 20)).Update(base_digest.bytes);
  UpdateWith(&sha, fingerprint);
  return sha.Finish();
}

Digest VersionChainDigest(const Digest& parent_chain_digest, const Digest& patch_digest,
                          const Fingerprint& fingerprint, const std::string& message,
                          const Metadata& meta) {
  Sha256 sha;
  sha.Update(std::string_view("wstore version chain 1\0", 23));
  sha.Update(parent_chain_digest.bytes).Update(patch_digest.bytes);
  UpdateWith(&sha, fingerprint);
  UpdateWith(&sha, message);
  sha.UpdateU64(meta.size());
  for (const auto& [key, value] : meta) {
    UpdateWith(&sha, key);
    UpdateWith(&sha, value);
  }
  return sha.Finish();
}

}  // namespace wstore
