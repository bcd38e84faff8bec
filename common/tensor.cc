#include "wstore/tensor.h"

#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/strings.h"

namespace wstore {
namespace {

struct DtypeInfo {
  Dtype dtype;
  std::string_view name;
  uint32_t bits;
};

constexpr std::array kDtypes = {
    DtypeInfo{Dtype::kBool, "BOOL", 8},
    DtypeInfo{Dtype::kU8, "U8", 8},
    DtypeInfo{Dtype::kI8, "I8", 8},
    DtypeInfo{Dtype::kF8E5M2, "F8_E5M2", 8},
    DtypeInfo{Dtype::kF8E4M3, "F8_E4M3", 8},
    DtypeInfo{Dtype::kF8E8M0, "F8_E8M0", 8},
    DtypeInfo{Dtype::kF4, "F4", 4},
    DtypeInfo{Dtype::kF6E2M3, "F6_E2M3", 6},
    DtypeInfo{Dtype::kF6E3M2, "F6_E3M2", 6},
    DtypeInfo{Dtype::kI16, "I16", 16},
    DtypeInfo{Dtype::kU16, "U16", 16},
    DtypeInfo{Dtype::kF16, "F16", 16},
    DtypeInfo{Dtype::kBF16, "BF16", 16},
    DtypeInfo{Dtype::kI32, "I32", 32},
    DtypeInfo{Dtype::kU32, "U32", 32},
    DtypeInfo{Dtype::kF32, "F32", 32},
    DtypeInfo{Dtype::kI64, "I64", 64},
    DtypeInfo{Dtype::kU64, "U64", 64},
    DtypeInfo{Dtype::kF64, "F64", 64},
    DtypeInfo{Dtype::kC64, "C64", 64},
    DtypeInfo{Dtype::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    DtypeInfo{Dtype::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
};

const DtypeInfo& Info(Dtype dtype) {
  const size_t index = static_cast<size_t>(dtype) - 1;
  WSTORE_CHECK(index < kDtypes.size());
  return kDtypes[index];
}

}  // namespace

std::string_view DtypeName(Dtype dtype) { return Info(dtype).name; }

std::optional<Dtype> ParseDtype(std::string_view name) {
  const auto it = std::find_if(kDtypes.begin(), kDtypes.end(),
                               [name](const DtypeInfo& info) { return info.name == name; });
  if (it == kDtypes.end()) return std::nullopt;
  return it->dtype;
}

std::string KnownDtypes() {
  std::string names;
  for (const DtypeInfo& info : kDtypes) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", ToAbsl(info.name));
  }
  return names;
}

uint32_t DtypeBits(Dtype dtype) { return Info(dtype).bits; }

uint32_t StorageElementBytes(Dtype dtype) { return std::max(DtypeBits(dtype) / 8, 1u); }

std::string ShapeString(const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) absl::StrAppend(&out, i == 0 ? "" : ", ", shape[i]);
  return out + "]";
}

absl::StatusOr<uint64_t> TensorBytes(const TensorSpec& spec) {
  constexpr uint64_t kMaxBits = uint64_t{1} << 63;
  const bool is_empty = std::find(spec.shape.begin(), spec.shape.end(), 0) != spec.shape.end();
  if (is_empty) return 0;
  uint64_t bits = DtypeBits(spec.dtype);
  for (const uint64_t dimension : spec.shape) {
    if (__builtin_mul_overflow(bits, dimension, &bits) || bits > kMaxBits) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", spec.name, "': shape ", ShapeString(spec.shape), " of ",
                       ToAbsl(DtypeName(spec.dtype)), " does not fit in 2^60 bytes"));
    }
  }
  if (bits % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", spec.name, "': shape ", ShapeString(spec.shape), " of ",
        ToAbsl(DtypeName(spec.dtype)), " takes ", bits, " bits, which do not fill whole bytes"));
  }
  return bits / 8;
}

}  // namespace wstore
