// Typed identifiers. Two ids of different kinds do not compare, convert or add up by accident.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace wstore {

// A 64-bit number that is only equal to numbers of its own kind. Value 0 is a valid number.
template <typename Tag>
class StrongNumber {
 public:
  constexpr StrongNumber() = default;
  constexpr explicit StrongNumber(uint64_t value) : value_(value) {}
  constexpr uint64_t value() const { return value_; }
  constexpr StrongNumber next() const { return StrongNumber(value_ + 1); }
  friend constexpr auto operator<=>(StrongNumber, StrongNumber) = default;

  template <typename H>
  friend H AbslHashValue(H h, StrongNumber n) {
    return H::combine(std::move(h), n.value_);
  }

 private:
  uint64_t value_ = 0;
};

// A version: v0 is the base, vN its parent plus one patch set. Written "v42" everywhere.
using VersionId = StrongNumber<struct VersionIdTag>;
// A transaction: one publish or one rollback, from begin to its decision. Never reused.
using TransactionNumber = StrongNumber<struct TransactionNumberTag>;
// A change of head. Only grows; a rollback is a move too.
using MoveNumber = StrongNumber<struct MoveNumberTag>;

// Places a chunk within its transaction. A span is a stretch of the checkpoint (see Manifest); the
// chunks that one contributor publishes for a span have ascending parts from 0.
struct ChunkKey {
  uint16_t contributor = 0;
  uint32_t span = 0;
  uint16_t part = 0;

  friend auto operator<=>(const ChunkKey&, const ChunkKey&) = default;
};

// "v42".
std::string ToString(VersionId version);

// The inverse of ToString: "v" and decimal digits without a sign or leading zeros; otherwise
// nothing.
std::optional<VersionId> ParseVersionId(std::string_view text);

}  // namespace wstore
