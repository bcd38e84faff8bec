// Manifests without a torn end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rocksdb/file_system.h"

namespace wstore::journal {

// How many bytes of a RocksDB manifest come before its first entry that is not whole and intact.
uint64_t IntactManifestBytes(std::string_view manifest);

// A file system whose manifests end before their first entry that is not whole and intact. RocksDB
// forgives a manifest that is too short, but not one whose last entry is as long as it should be
// and has a page missing, which a power failure can leave. What is hidden can be damage as well:
// only if the checks against the witness pass was nothing of it acknowledged.
//
// An open for writing begins a new manifest, and so makes it good.
std::shared_ptr<rocksdb::FileSystem> HideTornManifestEnds(
    std::shared_ptr<rocksdb::FileSystem> target);

}  // namespace wstore::journal
