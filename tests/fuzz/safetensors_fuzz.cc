// Any bytes, taken for a safetensors file or for an index: the reader must refuse them or agree
// with itself about what they mean.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/check.h"
#include "store/checkpoint/safetensors_header.h"
#include "store/checkpoint/shard_index.h"

namespace wstore {
namespace {

constexpr size_t kLengthBytes = 8;

void CheckFile(absl::Span<const uint8_t> file) {
  const auto length =
      ParseHeaderLength(file.first(std::min(kLengthBytes, file.size())), file.size());
  if (!length.ok()) return;
  WSTORE_CHECK(*length <= file.size() - kLengthBytes);
  const std::string_view json(reinterpret_cast<const char*>(file.data()) + kLengthBytes, *length);
  const uint64_t data_size = file.size() - kLengthBytes - *length;
  const auto header = ParseHeader(json, data_size);
  if (!header.ok()) {
    WSTORE_CHECK(header.status().message().size() < 1 << 16);
    return;
  }
  uint64_t covered = 0;
  for (size_t i = 0; i < header->tensors.size(); ++i) {
    const PlacedTensor& tensor = header->tensors[i];
    WSTORE_CHECK(tensor.begin <= tensor.end && tensor.end <= data_size);
    WSTORE_CHECK(*TensorBytes(tensor.spec) == tensor.end - tensor.begin);
    WSTORE_CHECK(i == 0 || header->tensors[i - 1].spec.name < tensor.spec.name);
    covered += tensor.end - tensor.begin;
  }
  WSTORE_CHECK(covered == data_size);
  // Written anew it is the same.
  const std::string bytes = FormatHeader(*header);
  const auto again = ParseHeader(std::string_view(bytes).substr(kLengthBytes), data_size);
  WSTORE_CHECK(again.ok() && *again == *header);
}

void CheckIndex(std::string_view json) {
  const auto index = ParseShardIndex(json);
  if (!index.ok()) {
    WSTORE_CHECK(index.status().message().size() < 1 << 16);
    return;
  }
  for (const ShardIndex::Entry& entry : index->entries) {
    WSTORE_CHECK(index->files.at(entry.file).find('/') == std::string::npos);
  }
  const std::string text = FormatShardIndex(*index, 0);
  const auto again = ParseShardIndex(text);
  WSTORE_CHECK(again.ok() && FormatShardIndex(*again, 0) == text);
}

}  // namespace
}  // namespace wstore

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  wstore::CheckFile({data, size});
  wstore::CheckIndex({reinterpret_cast<const char*>(data), size});
  return 0;
}
