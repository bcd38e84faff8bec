// Chain digests: the name of a version by content and history.
#pragma once

#include "wstore/version.h"

namespace wstore {

// SHA-256("wstore base chain 1", byte 0, base digest, fingerprint): the chain digest of v0.
Digest BaseChainDigest(const Digest& base_digest, const Fingerprint& fingerprint);

// SHA-256("wstore version chain 1", byte 0, parent's chain digest, patch digest, fingerprint, u64
// length and bytes of the message, u64 number of metadata entries, and of each, sorted by key, u64
// length and bytes of key and value). Numbers are little-endian. Numbers of versions, times and
// actors are not in it: the same history has the same digest wherever it is kept.
Digest VersionChainDigest(const Digest& parent_chain_digest, const Digest& patch_digest,
                          const Fingerprint& fingerprint, const std::string& message,
                          const Metadata& meta);

}  // namespace wstore
