#include "store/checkpoint/base_digest.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

#include "store/checkpoint/checkpoint.h"
#include "store/checkpoint/shard_index.h"
#include "tests/support/catch.h"
#include "tests/support/naive_safetensors.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"

namespace wstore {
namespace {

using testing::NaiveTensors;
using testing::NaiveWrite;
using testing::TempDir;
using testing::WriteFile;

// The bytes of docs/formats/checkpoint.md, put together by hand.
std::string U32(uint64_t value) { return testing::LengthPrefix(value).substr(0, 4); }
std::string U64(uint64_t value) { return testing::LengthPrefix(value); }
std::string Hash(const std::string& bytes) { return ToBytes(Sha256().Update(bytes).Finish()); }

std::string NaiveContentDigest(const std::string& bytes) {
  constexpr size_t kLeaf = 1048576;
  std::string leaves;
  for (size_t at = 0; at < bytes.size(); at += kLeaf) {
    leaves += Hash(bytes.substr(at, kLeaf) + std::string(1, 0));
  }
  return Hash(leaves + U64(bytes.size()) + std::string(1, 1));
}

Digest NaiveDigest(const NaiveTensors& tensors) {
  std::string all = std::string("wstore base 1") + '\0' + U64(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    all += U32(name.size()) + name + static_cast<char>(*ParseDtype(tensor.dtype));
    all += U32(tensor.shape.size());
    for (const uint64_t dimension : tensor.shape) all += U64(dimension);
    all += NaiveContentDigest(tensor.bytes);
  }
  return *DigestFromBytes(Hash(all));
}

BaseDigest DigestOf(const std::string& path, int threads = 2) {
  const auto checkpoint = Checkpoint::Open(path);
  REQUIRE_OK(checkpoint);
  const auto digest = DigestCheckpoint((*checkpoint)->manifest(), **checkpoint, threads, nullptr);
  REQUIRE_OK(digest);
  return *digest;
}

TEST_CASE("the base digest of the documented example") {
  const TempDir dir;
  const NaiveTensors tensors = {{"a", {"BF16", {2}, std::string("\x80\x3F\x00\x40", 4)}},
                                {"b", {"U8", {0}, ""}}};
  WriteFile(dir / "f", NaiveWrite(tensors, {"b", "a"}, {{"format", "pt"}}));
  const BaseDigest digest = DigestOf(dir / "f");
  REQUIRE(ToHex(digest.tensors[0]) ==
          "89dd13647649381da2621e226e05e9a047660ffae4eaf3e7d413aa3e26ca2135");
  REQUIRE(ToHex(digest.tensors[1]) ==
          "2ae1c19c0cbd378e46c927a9f3611923ec07cc1ae357502a09536d455275cf21");
  REQUIRE(ToHex(digest.digest) ==
          "7ee5bca60c05e5bda2a749fcdc1ab136b38cee7d68cdf31673854b7a11063f72");
}

TEST_CASE("the base digest agrees with a plain computation, on any number of threads") {
  std::mt19937_64 random(testing::TestSeed("base digest"));
  const TempDir dir;
  NaiveTensors tensors = testing::RandomTensors(random, 700);
  // Around the edges of leaves.
  for (const uint64_t size : {1048575, 1048576, 1048577, 3 * 1048576 + 5}) {
    tensors["big" + std::to_string(size)] = {"U8", {size}, testing::RandomBytes(random, size)};
  }
  WriteFile(dir / "f", NaiveWrite(tensors, testing::NamesOf(tensors)));
  const Digest expected = NaiveDigest(tensors);
  for (const int threads : {1, 2, 5}) {
    const BaseDigest digest = DigestOf(dir / "f", threads);
    REQUIRE(digest.digest == expected);
    size_t i = 0;
    for (const auto& [name, tensor] : tensors) {
      INFO(name);
      REQUIRE(ToBytes(digest.tensors[i++]) == NaiveContentDigest(tensor.bytes));
    }
  }
  WriteFile(dir / "none", testing::FileOf("{}"));
  REQUIRE(DigestOf(dir / "none").digest == NaiveDigest({}));
}

TEST_CASE("B15 the same tensors give the same base digest however they are stored") {
  std::mt19937_64 random(testing::TestSeed("three saves"));
  const NaiveTensors tensors = testing::RandomTensors(random, 50);
  std::vector<std::string> names = testing::NamesOf(tensors);
  const TempDir plain;
  WriteFile(plain / "model.safetensors", NaiveWrite(tensors, names));
  const BaseDigest expected = DigestOf(plain.path());

  const TempDir annotated;
  WriteFile(annotated / "model.safetensors",
            NaiveWrite(tensors, names, {{"z", "1"}, {"format", "pt"}}));
  REQUIRE(DigestOf(annotated.path()) == expected);

  const TempDir shuffled;
  std::shuffle(names.begin(), names.end(), random);
  WriteFile(shuffled / "model.safetensors", NaiveWrite(tensors, names));
  REQUIRE(DigestOf(shuffled.path()) == expected);

  const TempDir sharded;
  std::string index = "{\"weight_map\":{";
  for (size_t shard = 0; shard < 3; ++shard) {
    std::vector<std::string> mine;
    for (size_t i = shard; i < names.size(); i += 3) mine.push_back(names[i]);
    const std::string file = "part" + std::to_string(shard);
    WriteFile(sharded / file, NaiveWrite(tensors, mine));
    for (const std::string& name : mine) {
      index += (index.back() == '{' ? "\"" : ",\"") + name + "\":\"" + file + "\"";
    }
  }
  WriteFile(sharded / kIndexFileName, index + "}}");
  REQUIRE(DigestOf(sharded.path()) == expected);
}

TEST_CASE("whatever the tensors are changes the base digest") {
  const TempDir dir;
  const auto digest = [&dir](const NaiveTensors& tensors) {
    WriteFile(dir / "f", NaiveWrite(tensors, testing::NamesOf(tensors)));
    return ToHex(DigestOf(dir / "f").digest);
  };
  std::set<std::string> digests;
  digests.insert(digest({{"a", {"BF16", {2, 1}, "1234"}}}));
  digests.insert(digest({{"a", {"BF16", {1, 2}, "1234"}}}));
  digests.insert(digest({{"a", {"BF16", {2}, "1234"}}}));
  digests.insert(digest({{"a", {"F16", {2}, "1234"}}}));
  digests.insert(digest({{"b", {"BF16", {2}, "1234"}}}));
  digests.insert(digest({{"a", {"BF16", {2}, "1235"}}}));
  digests.insert(digest({{"a", {"BF16", {2}, "1234"}}, {"b", {"U8", {0}, ""}}}));
  digests.insert(digest({{"a", {"BF16", {2}, "1234"}}, {"b", {"U8", {0, 1}, ""}}}));
  digests.insert(digest({}));
  REQUIRE(digests.size() == 9);
}

TEST_CASE("B18 one bit in the last byte of the second shard changes that tensor's digest alone") {
  std::mt19937_64 random(testing::TestSeed("one bit"));
  const TempDir dir;
  NaiveTensors tensors;
  for (const char* name : {"a", "b", "c", "d"}) {
    tensors[name] = {"U8", {2'000'000}, testing::RandomBytes(random, 2'000'000)};
  }
  WriteFile(dir / "one", NaiveWrite(tensors, {"a", "c"}));
  WriteFile(dir / "two", NaiveWrite(tensors, {"d", "b"}));
  WriteFile(dir / kIndexFileName,
            "{\"weight_map\":{\"a\":\"one\",\"c\":\"one\",\"b\":\"two\",\"d\":\"two\"}}");
  const BaseDigest before = DigestOf(dir.path());
  std::string bytes = testing::ReadFile(dir / "two");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  WriteFile(dir / "two", bytes);
  const BaseDigest after = DigestOf(dir.path());
  REQUIRE(after.digest != before.digest);
  for (size_t i = 0; i < 4; ++i) REQUIRE((after.tensors[i] == before.tensors[i]) == (i != 1));
}

TEST_CASE("a base digest reports progress and passes read errors on") {
  const TempDir dir;
  const std::string path = dir / "f";
  WriteFile(path, NaiveWrite({{"a", {"U8", {5'000'000}, std::string(5'000'000, 'a')}},
                              {"b", {"U8", {10}, "0123456789"}}},
                             {"a", "b"}));
  const auto checkpoint = Checkpoint::Open(path);
  REQUIRE_OK(checkpoint);
  uint64_t last = 0;
  bool grows = true;
  REQUIRE_OK(DigestCheckpoint((*checkpoint)->manifest(), **checkpoint, 3,
                              [&](uint64_t done, uint64_t total) {
                                grows = grows && done > last && total == 5'000'010;
                                last = done;
                              }));
  REQUIRE(grows);
  REQUIRE(last == 5'000'010);

  std::filesystem::resize_file(path, 3'000'000);
  REQUIRE_ERROR(DigestCheckpoint((*checkpoint)->manifest(), **checkpoint, 3, nullptr),
                absl::StatusCode::kDataLoss, path);
}

}  // namespace
}  // namespace wstore
