#include "store/version/chain.h"

#include "tests/support/catch.h"

namespace wstore {
namespace {

Digest Filled(uint8_t byte) {
  Digest digest;
  digest.bytes.fill(byte);
  return digest;
}

// Computed by another implementation (Python's hashlib) from the definition in
// docs/formats/records.md.
TEST_CASE("chain digests agree with the documented example") {
  const Digest base = BaseChainDigest(Filled(0x11), Fingerprint{{1, 2}});
  REQUIRE(ToHex(base) == "8cd5e1476fef27808c8b77183e6aa67388739e8b0a8e964b0b4939c79ce05483");
  const Digest version =
      VersionChainDigest(base, Filled(0x22), Fingerprint{{3, 4}}, "m", {{"k", "v"}});
  REQUIRE(ToHex(version) == "40c803d29f09c100351e59e9a73183f483e225413263b56c3ad8b720287d4df9");
}

TEST_CASE("chain digests bind every part and do not run parts together") {
  const Digest parent = Filled(1);
  const Digest patch = Filled(2);
  const Fingerprint sum{{3, 4}};
  const Digest digest = VersionChainDigest(parent, patch, sum, "ab", {{"k", "v"}});
  REQUIRE(digest != VersionChainDigest(patch, parent, sum, "ab", {{"k", "v"}}));
  REQUIRE(digest != VersionChainDigest(parent, patch, Fingerprint{{4, 3}}, "ab", {{"k", "v"}}));
  REQUIRE(digest != VersionChainDigest(parent, patch, sum, "a", {{"bk", "v"}}));
  REQUIRE(digest != VersionChainDigest(parent, patch, sum, "ab", {{"kv", ""}}));
  REQUIRE(digest != VersionChainDigest(parent, patch, sum, "ab", {}));
}

}  // namespace
}  // namespace wstore
