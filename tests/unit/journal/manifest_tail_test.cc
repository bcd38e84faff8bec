// Manifests that RocksDB wrote: where their entries end, its own file sizes say.
#include "journal/manifest_tail.h"

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "rocksdb/db.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/journal/journal_testing.h"

namespace wstore {
namespace {

using journal::IntactManifestBytes;
using testing::ReadWholeFile;

constexpr uint64_t kBlockBytes = 32768;

struct Manifest {
  std::string content;
  std::vector<uint64_t> ends;  // of its entries from some point on
};

// Every new family is an entry that holds its name, so its name makes an entry of any size.
Manifest WriteManifest(const std::string& directory, const std::vector<size_t>& name_sizes) {
  rocksdb::Options options;
  options.create_if_missing = true;
  rocksdb::DB* db = nullptr;
  REQUIRE(rocksdb::DB::Open(options, directory, &db).ok());
  std::vector<rocksdb::ColumnFamilyHandle*> families;
  const std::string path = directory + "/" + testing::ManifestName(directory);
  Manifest manifest;
  for (const size_t size : name_sizes) {
    manifest.ends.push_back(std::filesystem::file_size(path));
    families.emplace_back();
    REQUIRE(db->CreateColumnFamily(rocksdb::ColumnFamilyOptions(), std::string(size, 'a'),
                                   &families.back())
                .ok());
  }
  manifest.content = ReadWholeFile(path);
  manifest.ends.push_back(manifest.content.size());
  for (rocksdb::ColumnFamilyHandle* family : families) db->DestroyColumnFamilyHandle(family);
  delete db;
  return manifest;
}

TEST_CASE("A manifest is intact up to the entry with the first bad or missing byte") {
  testing::TempDir dir;
  const Manifest probe = WriteManifest(dir / "probe", {100, 20000});
  // The second entry ends from 8 bytes before the end of a block to just behind it.
  std::set<uint64_t> left_over;
  for (size_t more = 0; more <= 10; ++more) {
    const size_t second = 20000 + kBlockBytes - probe.ends[2] - 8 + more;
    const Manifest manifest =
        WriteManifest(dir / std::to_string(more), {100, second, 5, 40000, 70000, 9});
    left_over.insert(kBlockBytes - manifest.ends[2] % kBlockBytes);
    REQUIRE(IntactManifestBytes(manifest.content) == manifest.content.size());
    for (size_t entry = 1; entry < manifest.ends.size(); ++entry) {
      const uint64_t begin = manifest.ends[entry - 1];
      const uint64_t end = manifest.ends[entry];
      INFO("more " << more << " entry from " << begin << " to " << end);
      const uint64_t step = end - begin < 200 ? 5 : (end - begin) / 5;
      for (uint64_t at = begin; at < end; at += step) {
        INFO("byte " << at);
        REQUIRE(IntactManifestBytes(manifest.content.substr(0, at)) == begin);
        std::string bad = manifest.content;
        bad[at] = static_cast<char>(bad[at] ^ 4);
        // What is too little for a header at the end of a block belongs to no entry.
        const uint64_t left_in_block = kBlockBytes - begin % kBlockBytes;
        const bool unused = left_in_block < 7 && at < begin + left_in_block;
        REQUIRE(IntactManifestBytes(bad) == (unused ? manifest.content.size() : begin));
      }
    }
  }
  REQUIRE(left_over.size() == 11);
  REQUIRE(IntactManifestBytes("") == 0);
  REQUIRE(IntactManifestBytes(std::string(100000, '\0')) == 0);
}

}  // namespace
}  // namespace wstore
