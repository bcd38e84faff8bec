#include "wstore/digest.h"

#include <vector>

#include "tests/support/catch.h"

namespace wstore {
namespace {

TEST_CASE("SHA-256 agrees with the published vector") {
  // FIPS 180-2, appendix B.1.
  REQUIRE(ToHex(Sha256().Update("abc").Finish()) ==
          "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 sha;
  sha.Update("abc").Finish();
  REQUIRE(sha.Update("abc").Finish() == Sha256().Update("a").Update("bc").Finish());
}

TEST_CASE("digests survive hexadecimal and bytes") {
  const Digest digest = Sha256().Update("x").Finish();
  REQUIRE(DigestFromHex(ToHex(digest)) == digest);
  REQUIRE(DigestFromBytes(ToBytes(digest)) == digest);
  REQUIRE_FALSE(DigestFromHex(ToHex(digest).substr(1)).has_value());
  REQUIRE_FALSE(DigestFromHex(std::string(64, 'g')).has_value());
  REQUIRE_FALSE(DigestFromBytes("short").has_value());
}

TEST_CASE("tree digests tell apart what a flat concatenation would confuse") {
  const std::vector<uint8_t> data(10, 7);
  const Digest whole = TreeDigest(data, 4);
  REQUIRE(whole == TreeDigest(data, 4));
  REQUIRE(whole != TreeDigest(data, 5));
  REQUIRE(whole != TreeDigest(absl::MakeConstSpan(data).first(9), 4));
  REQUIRE(TreeDigest({}, 4) != LeafDigest({}));
  // Leaves by hand.
  const Digest leaves[] = {Sha256().Update(std::string(4, 7) + std::string(1, 0)).Finish(),
                           Sha256().Update(std::string(4, 7) + std::string(1, 0)).Finish(),
                           Sha256().Update(std::string(2, 7) + std::string(1, 0)).Finish()};
  Sha256 root;
  for (const Digest& leaf : leaves) root.Update(ToBytes(leaf));
  const std::string length("\x0a\0\0\0\0\0\0\0", 8);
  REQUIRE(root.Update(length).Update(std::string(1, 1)).Finish() == whole);
}

}  // namespace
}  // namespace wstore
