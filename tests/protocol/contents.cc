#include "tests/protocol/contents.h"

#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/check.h"
#include "wstore/layout_builder.h"

namespace wstore::protocol::testing {
namespace {

constexpr TensorIndex kCopied = 0;  // in the order of their names
constexpr TensorIndex kShared = 1;

const Manifest& TheManifest() {
  static const Manifest& manifest = *new Manifest(*Manifest::Create({
      {"copied", Dtype::kU64, {kCopiedWords}},
      {"shared", Dtype::kU64, {kSharedWords}},
  }));
  return manifest;
}

const TensorFingerprinter& Fingerprinter(TensorIndex tensor) {
  static const FingerprintKey& key = *new FingerprintKey(Digest{});
  static const TensorFingerprinter* const fingerprinters[] = {
      new TensorFingerprinter(key, "copied"), new TensorFingerprinter(key, "shared")};
  return *fingerprinters[tensor];
}

Fingerprint SumOfWord(size_t place, uint64_t word) {
  const TensorIndex tensor = place < kSharedWords ? kShared : kCopied;
  const size_t index = place < kSharedWords ? place : place - kSharedWords;
  uint8_t bytes[8];
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(word >> (8 * i));
  return Fingerprinter(tensor).Sum(8 * index, bytes);
}

}  // namespace

const Sharding& Sharding::Of(uint32_t ranks, bool paired) {
  static std::map<std::pair<uint32_t, bool>, std::unique_ptr<const Sharding>>& made =
      *new std::map<std::pair<uint32_t, bool>, std::unique_ptr<const Sharding>>();
  std::unique_ptr<const Sharding>& entry = made[{ranks, paired}];
  if (entry == nullptr) entry.reset(new Sharding(ranks, paired));
  return *entry;
}

Sharding::Sharding(uint32_t ranks, bool paired)
    : ranks_(ranks),
      parts_(paired && ranks % 2 == 0 ? ranks / 2 : ranks),
      part_words_(kSharedWords / parts_),
      shared_cell_(ranks),
      copied_cell_(ranks) {
  std::vector<Layout> layouts;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    LayoutBuilder builder(TheManifest());
    const uint64_t begin = rank % parts_ * part_words_;
    builder.Place(builder.Tensor("shared").Slice(0, begin, begin + part_words_),
                  builder.Buffer({"shared", Dtype::kU64, {part_words_}}));
    builder.Place(builder.Tensor("copied"),
                  builder.Buffer({"copied", Dtype::kU64, {kCopiedWords}}));
    layouts.push_back(*builder.Build(1));
  }
  std::vector<const Layout*> pointers;
  for (const Layout& layout : layouts) pointers.push_back(&layout);
  map_.push_back(*RegionMap::Create(TheManifest(), pointers));
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const auto cells = map_[0].cells(rank);
    WSTORE_CHECK(cells.size() == 2);
    for (uint32_t cell = 0; cell < 2; ++cell) {
      const bool is_shared = cells[cell].box.tensor == kShared;
      (is_shared ? shared_cell_ : copied_cell_)[rank] = cell;
    }
  }
}

size_t Sharding::Place(uint32_t rank, size_t word) const {
  if (word >= part_words_) return kSharedWords + word - part_words_;
  return rank % parts_ * part_words_ + word;
}

Memory Sharding::Held(uint32_t rank, const Memory& version) const {
  Memory memory;
  for (size_t word = 0; word < words(); ++word) memory.push_back(version[Place(rank, word)]);
  return memory;
}

Fingerprint Sharding::Sum(uint32_t rank, const Memory& memory, const Memory& from, const Memory& to,
                          size_t begin, size_t end) const {
  Fingerprint sum;
  for (size_t word = begin; word < end; ++word) {
    const size_t place = Place(rank, word);
    if (from[place] != to[place]) sum += SumOfWord(place, memory[word]);
  }
  return sum;
}

std::vector<CellSums> Sharding::Foretell(uint32_t rank, const Memory& memory, const Memory& from,
                                         const Memory& to) const {
  Memory next = memory;
  for (size_t word = 0; word < words(); ++word) {
    next[word] ^= from[Place(rank, word)] ^ to[Place(rank, word)];
  }
  const auto cell_sums = [&](uint32_t cell, size_t begin, size_t end) {
    return CellSums{
        cell, {Sum(rank, memory, from, to, begin, end), Sum(rank, next, from, to, begin, end)}};
  };
  std::vector<CellSums> cells = {cell_sums(shared_cell_[rank], 0, part_words_),
                                 cell_sums(copied_cell_[rank], part_words_, words())};
  if (cells[1].cell < cells[0].cell) std::swap(cells[0], cells[1]);
  return cells;
}

absl::Status Sharding::Judge(const std::vector<std::vector<CellSums>>& cells, const Memory& from,
                             const Memory& to) const {
  std::vector<TensorSums> declared = {{kCopied, {}}, {kShared, {}}};
  for (size_t place = 0; place < kVersionWords; ++place) {
    if (from[place] == to[place]) continue;
    TouchedSums& sums = declared[place < kSharedWords ? kShared : kCopied].sums;
    sums += {SumOfWord(place, from[place]), SumOfWord(place, to[place])};
  }
  std::vector<absl::Span<const CellSums>> spans(cells.begin(), cells.end());
  return JudgeTouched(map_[0], TheManifest(), spans, declared);
}

bool Names(const std::string& message, uint32_t rank) {
  const std::string number = std::to_string(rank);
  for (const std::string_view separated : {"rank ", "ranks "}) {
    size_t at = 0;
    while ((at = message.find(separated, at)) != std::string::npos) {
      at += separated.size();
      const size_t end = message.find_first_not_of("0123456789, ", at);
      for (const auto listed :
           absl::StrSplit(message.substr(at, end - at), absl::ByAnyChar(", "))) {
        if (listed == number) return true;
      }
    }
  }
  return false;
}

}  // namespace wstore::protocol::testing
