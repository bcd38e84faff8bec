// Element types and tensor descriptions, as the safetensors format names them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace wstore {

// Every element type of the safetensors format. The numbers are stored in digests: never change
// one.
enum class Dtype : uint8_t {
  kBool = 1,
  kU8 = 2,
  kI8 = 3,
  kF8E5M2 = 4,
  kF8E4M3 = 5,
  kF8E8M0 = 6,
  kF4 = 7,
  kF6E2M3 = 8,
  kF6E3M2 = 9,
  kI16 = 10,
  kU16 = 11,
  kF16 = 12,
  kBF16 = 13,
  kI32 = 14,
  kU32 = 15,
  kF32 = 16,
  kI64 = 17,
  kU64 = 18,
  kF64 = 19,
  kC64 = 20,
  kF8E4M3Fnuz = 21,
  kF8E5M2Fnuz = 22,
};

// The name in a safetensors header, such as "BF16".
std::string_view DtypeName(Dtype dtype);
std::optional<Dtype> ParseDtype(std::string_view name);

// "BOOL, U8, ...": every name, for messages.
std::string KnownDtypes();

// Bits of one element: 4 to 64.
uint32_t DtypeBits(Dtype dtype);

// Bytes of one *storage element*, the unit in which wstore addresses and patches a tensor: 1, 2, 4
// or 8. An element, except for the packed types F4 and F6, where it is one byte of the packed data.
uint32_t StorageElementBytes(Dtype dtype);

using Shape = std::vector<uint64_t>;

// "[1024, 8]".
std::string ShapeString(const Shape& shape);

// Name, type and shape of one dense tensor in checkpoint coordinates.
struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kU8;
  Shape shape;  // row-major; empty for a scalar; dimensions may be zero

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// Bytes that the tensor's data takes. A shape with a zero anywhere takes none.
//   kInvalidArgument: the data would not fit in 2^60 bytes (a zero anywhere in the shape makes the
//   tensor empty, whatever the other dimensions), or a packed type does not fill whole bytes. The
//   message names the tensor.
absl::StatusOr<uint64_t> TensorBytes(const TensorSpec& spec);

}  // namespace wstore
