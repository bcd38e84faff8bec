#include "wstore/types.h"
#include "tests/support/catch.h"
#include "wstore/tensor.h"

namespace wstore {
namespace {

TEST_CASE("version names parse only as they are written") {
  REQUIRE(ToString(VersionId(42)) == "v42");
  REQUIRE(ParseVersionId("v0") == VersionId(0));
  REQUIRE(ParseVersionId("v18446744073709551615") == VersionId(UINT64_MAX));
  for (const char* bad :
       {"", "v", "42", "v-1", "v+1", "v01", "v1 ", " v1", "V1", "v1x", "v18446744073709551616"}) {
    INFO(bad);
    REQUIRE_FALSE(ParseVersionId(bad).has_value());
  }
}

TEST_CASE("B03 tensor sizes never wrap") {
  const uint64_t half = uint64_t{1} << 63;
  REQUIRE(*TensorBytes({"t", Dtype::kF32, {}}) == 4);
  REQUIRE(*TensorBytes({"t", Dtype::kF32, {2, 0, 3}}) == 0);
  REQUIRE(*TensorBytes({"t", Dtype::kBF16, {0, half}}) == 0);
  REQUIRE(*TensorBytes({"t", Dtype::kBF16, {half, half, 0}}) == 0);
  REQUIRE(*TensorBytes({"t", Dtype::kF4, {3, 2}}) == 3);
  REQUIRE(*TensorBytes({"t", Dtype::kF6E2M3, {4}}) == 3);
  REQUIRE_ERROR(TensorBytes({"big", Dtype::kF32, {uint64_t{1} << 32, uint64_t{1} << 32}}),
                absl::StatusCode::kInvalidArgument, "tensor 'big'");
  REQUIRE_ERROR(TensorBytes({"odd", Dtype::kF4, {3}}), absl::StatusCode::kInvalidArgument,
                "12 bits");
}

TEST_CASE("every dtype has a name, a width and a storage element") {
  for (int code = 1; code <= 22; ++code) {
    const auto dtype = static_cast<Dtype>(code);
    INFO(DtypeName(dtype));
    REQUIRE(ParseDtype(DtypeName(dtype)) == dtype);
    const uint32_t bits = DtypeBits(dtype);
    REQUIRE(StorageElementBytes(dtype) == (bits < 8 ? 1 : bits / 8));
  }
  REQUIRE_FALSE(ParseDtype("bf16").has_value());
  REQUIRE_FALSE(ParseDtype("").has_value());
}

}  // namespace
}  // namespace wstore
