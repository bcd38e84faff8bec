#include "journal/manifest_tail.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "journal/files.h"

namespace wstore::journal {
namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

// Several times where the database begins a new manifest. A longer one is passed on as it is.
constexpr uint64_t kMaxManifestBytes = 64 << 20;

// RocksDB's log format: blocks of 32 KiB; in them parts, each with its masked CRC-32C (4 bytes, of
// type and data), length of the data (2), type (1) and data; a part does not cross into the next
// block, and what is too little for a header is left over. An entry is one part, or several.
constexpr uint64_t kBlockBytes = 32768;
constexpr uint64_t kHeaderBytes = 7;
enum PartType : uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    table[i] = crc;
  }
  return table;
}

// CRC-32C, masked as RocksDB stores it: a checksum of data that holds checksums would be weak.
uint32_t MaskedCrc(std::string_view data) {
  static constexpr std::array<uint32_t, 256> kTable = MakeCrcTable();
  uint32_t crc = ~uint32_t{0};
  for (const char c : data) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

// A file in memory.
class ManifestFile : public rocksdb::FSSequentialFile {
 public:
  explicit ManifestFile(std::string content) : content_(std::move(content)) {}

  IOStatus Read(size_t n, const IOOptions&, rocksdb::Slice* result, char* scratch,
                IODebugContext*) override {
    const size_t size = std::min<size_t>(n, content_.size() - position_);
    std::memcpy(scratch, content_.data() + position_, size);
    *result = rocksdb::Slice(scratch, size);
    position_ += size;
    return IOStatus::OK();
  }

  IOStatus Skip(uint64_t n) override {
    position_ += std::min<uint64_t>(n, content_.size() - position_);
    return IOStatus::OK();
  }

 private:
  const std::string content_;
  size_t position_ = 0;
};

class TornEndsHidden : public rocksdb::FileSystemWrapper {
 public:
  explicit TornEndsHidden(std::shared_ptr<rocksdb::FileSystem> target)
      : FileSystemWrapper(std::move(target)) {}

  const char* Name() const override { return "WstoreTornEndsHidden"; }

  IOStatus NewSequentialFile(const std::string& name, const FileOptions& options,
                             std::unique_ptr<rocksdb::FSSequentialFile>* result,
                             IODebugContext* debug) override {
    const size_t slash = name.rfind('/');
    const absl::string_view base =
        absl::string_view(name).substr(slash == std::string::npos ? 0 : slash + 1);
    uint64_t size = 0;
    if (!absl::StartsWith(base, "MANIFEST-") ||
        !FileSystemWrapper::GetFileSize(name, IOOptions(), &size, debug).ok() ||
        size > kMaxManifestBytes) {
      return FileSystemWrapper::NewSequentialFile(name, options, result, debug);
    }
    absl::StatusOr<std::string> content = ReadFile(*target(), name, size);
    if (!content.ok()) return IOStatus::IOError(name, std::string(content.status().message()));
    content->resize(IntactManifestBytes(*content));
    *result = std::make_unique<ManifestFile>(*std::move(content));
    return IOStatus::OK();
  }
};

}  // namespace

uint64_t IntactManifestBytes(std::string_view manifest) {
  uint64_t intact = 0;  // the end of the last whole entry
  bool inside = false;  // an entry of several parts
  for (uint64_t at = 0; at < manifest.size();) {
    const uint64_t left_in_block = kBlockBytes - at % kBlockBytes;
    if (left_in_block < kHeaderBytes) {
      at += left_in_block;
      continue;
    }
    const uint64_t available = std::min<uint64_t>(left_in_block, manifest.size() - at);
    if (available < kHeaderBytes) break;
    const uint64_t length = LoadLe<uint16_t>(manifest.data() + at + 4);
    if (length > available - kHeaderBytes) break;
    if (LoadLe<uint32_t>(manifest.data() + at) != MaskedCrc(manifest.substr(at + 6, 1 + length)))
      break;
    const auto type = static_cast<uint8_t>(manifest[at + 6]);
    const bool begins = type == kFull || type == kFirst;
    const bool ends = type == kFull || type == kLast;
    if ((!begins && !ends && type != kMiddle) || begins == inside) break;
    at += kHeaderBytes + length;
    inside = !ends;
    if (ends) intact = at;
  }
  return intact;
}

std::shared_ptr<rocksdb::FileSystem> HideTornManifestEnds(
    std::shared_ptr<rocksdb::FileSystem> target) {
  return std::make_shared<TornEndsHidden>(std::move(target));
}

}  // namespace wstore::journal
