#include "wstore/fingerprint.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/fingerprint_kernels.h"
#include "common/philox.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"

namespace wstore {
namespace {

using Bytes = std::vector<uint8_t>;
using Json = nlohmann::json;
using testing::TestSeed;

Json Vectors() {
  std::ifstream file(WSTORE_TEST_DATA_DIR "/fingerprint_vectors.json");
  return Json::parse(file);
}

Bytes FromHex(const Json& hex) {
  const std::string bytes = absl::HexStringToBytes(hex.get<std::string>());
  return Bytes(bytes.begin(), bytes.end());
}

uint64_t Word(const Json& hex) { return std::stoull(hex.get<std::string>(), nullptr, 16); }

// Two 64-bit numbers written one after the other.
Fingerprint Lanes(const Json& hex) {
  const auto text = hex.get<std::string>();
  return {{Word(text.substr(0, 16)), Word(text.substr(16))}};
}

FingerprintKey KeyOf(const Json& vector) {
  return FingerprintKey(*DigestFromHex(vector["base_digest"].get<std::string>()));
}

Bytes RandomBytes(std::mt19937_64& random, size_t size) {
  Bytes bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

TEST_CASE("fingerprint: multipliers agree with the reference") {
  const Json vectors = Vectors();
  for (const Json& vector : vectors["philox2x64"]) {
    const auto output = internal::Philox2x64(
        {Word(vector["counter"][0]), Word(vector["counter"][1])}, Word(vector["key"]));
    REQUIRE(output[0] == Word(vector["output"][0]));
    REQUIRE(output[1] == Word(vector["output"][1]));
  }
  const Json& multipliers = vectors["multipliers"];
  const FingerprintKey key = KeyOf(multipliers);
  REQUIRE(multipliers["b"].size() == 128);
  for (size_t i = 0; i < 128; ++i) {
    REQUIRE(Lanes(multipliers["b"][i]) == Fingerprint{{key.b()[0][i], key.b()[1][i]}});
  }
  // A word 1 at the beginning of a block adds A x B(0).
  const TensorFingerprinter fingerprinter(key, multipliers["tensor"].get<std::string>());
  const Bytes one = {1};
  for (const Json& vector : multipliers["a"]) {
    const Fingerprint a = Lanes(vector["a"]);
    REQUIRE(fingerprinter.Sum(vector["block"].get<uint64_t>() * 512, one) ==
            Fingerprint{{a.lanes[0] * key.b()[0][0], a.lanes[1] * key.b()[1][0]}});
  }
}

TEST_CASE("fingerprint: sums agree with the reference") {
  const Json vectors = Vectors();
  for (const Json& vector : vectors["sums"]) {
    const FingerprintKey key = KeyOf(vector);
    const TensorFingerprinter fingerprinter(key, vector["tensor"].get<std::string>());
    const Bytes data = FromHex(vector["data"]);
    INFO(vector["tensor"] << ", " << data.size() << " bytes");
    REQUIRE(ToHex(fingerprinter.Sum(0, data)) == vector["fingerprint"].get<std::string>());
    for (const Json& part : vector["parts"]) {
      const auto offset = part["offset"].get<uint64_t>();
      const auto bytes = absl::MakeConstSpan(data).subspan(offset, part["size"].get<size_t>());
      REQUIRE(fingerprinter.Sum(offset, bytes) == Lanes(part["fingerprint"]));
    }
  }
}

TEST_CASE("fingerprint: changes agree with the reference") {
  const Json vectors = Vectors();
  for (const Json& vector : vectors["deltas"]) {
    const FingerprintKey key = KeyOf(vector);
    const TensorFingerprinter fingerprinter(key, vector["tensor"].get<std::string>());
    INFO(vector["tensor"]);
    REQUIRE(fingerprinter
                .Touched(vector["first_element"].get<uint64_t>(),
                         vector["element_bytes"].get<uint32_t>(),
                         vector["offsets"].get<std::vector<uint16_t>>(),
                         FromHex(vector["old"]).data(), FromHex(vector["values"]).data())
                .change() == Lanes(vector["delta"]));
  }
}

TEST_CASE("fingerprint: every implementation of the inner loop gives the same numbers") {
  std::mt19937_64 random(TestSeed("fingerprint loops"));
  const FingerprintKey key(Sha256().Update("base").Finish());
  for (const size_t blocks : {0, 1, 2, 3, 8, 129}) {
    // All ones makes the largest products; one byte more moves the words off their alignment.
    for (const bool is_random : {false, true}) {
      Bytes data(blocks * internal::kBlockBytes + 1, 0xFF);
      if (is_random) data = RandomBytes(random, data.size());
      std::vector<std::array<uint64_t, 2>> expected(blocks);
      internal::DotsPortable(key.b(), data.data() + 1, blocks, expected.data());
      std::vector<std::array<uint64_t, 2>> fastest(blocks);
      internal::Dots()(key.b(), data.data() + 1, blocks, fastest.data());
      REQUIRE(fastest == expected);
    }
  }
}

TEST_CASE("fingerprint: the parts of a tensor add up, wherever it is cut") {
  std::mt19937_64 random(TestSeed("fingerprint parts"));
  const FingerprintKey key(Sha256().Update("base").Finish());
  const TensorFingerprinter fingerprinter(key, "t");
  for (int round = 0; round < 50; ++round) {
    const Bytes data = RandomBytes(random, random() % 100000);
    const uint64_t start = random() % 10000 + (random() % 2 << 40);
    std::vector<size_t> cuts = {0, data.size()};
    for (int i = 0; i < 20; ++i) cuts.push_back(random() % (data.size() + 1));
    std::sort(cuts.begin(), cuts.end());
    Fingerprint sum;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      sum += fingerprinter.Sum(start + cuts[i],
                               absl::MakeConstSpan(data).subspan(cuts[i], cuts[i + 1] - cuts[i]));
    }
    REQUIRE(sum == fingerprinter.Sum(start, data));
  }
}

TEST_CASE("fingerprint: a change is the new sum less the old one") {
  std::mt19937_64 random(TestSeed("fingerprint changes"));
  const FingerprintKey key(Sha256().Update("base").Finish());
  const TensorFingerprinter fingerprinter(key, "t");
  for (const uint32_t width : {1, 2, 4, 8}) {
    for (const uint64_t tile : {0, 1, 3, 1 << 20}) {
      // A whole tile, and ends of tensors in mid-block and mid-word.
      for (const size_t elements : {65536, 1, 3, 1001}) {
        for (const int percent : {0, 1, 40, 100}) {
          const Bytes old_tile = RandomBytes(random, elements * width);
          Bytes new_tile = old_tile;
          std::vector<uint16_t> offsets;
          Bytes values;
          for (size_t offset = 0; offset < elements; ++offset) {
            if (random() % 100 >= static_cast<uint64_t>(percent)) continue;
            offsets.push_back(static_cast<uint16_t>(offset));
            for (uint32_t k = 0; k < width; ++k) {
              values.push_back(static_cast<uint8_t>(random()));
              new_tile[offset * width + k] ^= values.back();
            }
          }
          const uint64_t first_element = tile * 65536;
          INFO("width " << width << ", tile " << tile << ", " << elements << " elements");
          const TouchedSums sums =
              fingerprinter.Touched(first_element, width, offsets, old_tile.data(), values.data());
          REQUIRE(sums.change() == fingerprinter.Sum(first_element * width, new_tile) -
                                       fingerprinter.Sum(first_element * width, old_tile));
          std::vector<uint8_t> touched_only(old_tile.size(), 0);
          for (const uint16_t offset : offsets) {
            std::copy_n(old_tile.begin() + offset * width, width,
                        touched_only.begin() + offset * width);
          }
          REQUIRE(sums.before == fingerprinter.Sum(first_element * width, touched_only));
        }
      }
    }
  }
}

TEST_CASE("fingerprint: any single flipped bit changes both lanes") {
  std::mt19937_64 random(TestSeed("fingerprint flips"));
  const FingerprintKey key(Sha256().Update("base").Finish());
  const TensorFingerprinter fingerprinter(key, "t");
  Bytes data = RandomBytes(random, 1027);
  const Fingerprint before = fingerprinter.Sum(0, data);
  for (size_t bit = 0; bit < 8 * data.size(); ++bit) {
    data[bit / 8] ^= 1 << (bit % 8);
    const Fingerprint after = fingerprinter.Sum(0, data);
    INFO("bit " << bit);
    REQUIRE(after.lanes[0] != before.lanes[0]);
    REQUIRE(after.lanes[1] != before.lanes[1]);
    data[bit / 8] ^= 1 << (bit % 8);
  }
  REQUIRE(fingerprinter.Sum(0, data) == before);
}

TEST_CASE("fingerprint: base and tensor name make the key, and swapped data shows") {
  const FingerprintKey key(Sha256().Update("base").Finish());
  const FingerprintKey other(Sha256().Update("another base").Finish());
  const Bytes data = {1, 2, 3, 4, 5, 6, 7, 8};
  const Fingerprint sum = TensorFingerprinter(key, "t").Sum(0, data);
  REQUIRE(sum != TensorFingerprinter(key, "u").Sum(0, data));
  REQUIRE(sum != TensorFingerprinter(other, "t").Sum(0, data));
  REQUIRE(sum != TensorFingerprinter(key, "t").Sum(0, Bytes{5, 6, 7, 8, 1, 2, 3, 4}));
  REQUIRE(ToHex(Fingerprint{{0xAB, 0xF000000000000001}}) == "00000000000000abf000000000000001");
}

}  // namespace
}  // namespace wstore
