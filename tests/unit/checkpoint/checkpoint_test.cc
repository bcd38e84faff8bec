#include "store/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "store/checkpoint/shard_index.h"
#include "tests/support/catch.h"
#include "tests/support/naive_safetensors.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"

namespace wstore {
namespace {

using absl::StatusCode;
using testing::EntryOf;
using testing::FileOf;
using testing::NaiveTensors;
using testing::NaiveWrite;
using testing::TempDir;
using testing::WriteFile;

constexpr StatusCode kRefused = StatusCode::kInvalidArgument;

std::string IndexOf(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string json = "{\"metadata\":{\"total_size\":1.5e3},\"weight_map\":{";
  for (const auto& [tensor, file] : entries) {
    json += (json.back() == '{' ? "\"" : ",\"") + tensor + "\":\"" + file + "\"";
  }
  return json + "}}";
}

std::string ReadTensor(const Checkpoint& checkpoint, const std::string& name) {
  const auto index = checkpoint.manifest().Find(name);
  REQUIRE(index.has_value());
  std::string bytes(checkpoint.manifest().tensor(*index).size_bytes(), '\0');
  REQUIRE_OK(checkpoint.Read(
      *index, 0, absl::MakeSpan(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size())));
  return bytes;
}

void RequireHolds(const Checkpoint& checkpoint, const NaiveTensors& tensors) {
  REQUIRE(checkpoint.manifest().size() == tensors.size());
  TensorIndex index = 0;
  for (const auto& [name, tensor] : tensors) {
    const TensorSpec& spec = checkpoint.manifest().tensor(index++).spec;
    REQUIRE(spec.name == name);
    REQUIRE(DtypeName(spec.dtype) == tensor.dtype);
    REQUIRE(spec.shape == tensor.shape);
    REQUIRE(ReadTensor(checkpoint, name) == tensor.bytes);
  }
}

// Two shards, "a" in the first and "b" in the second, and the index.
struct TwoShards {
  TwoShards() {
    WriteFile(dir / "one.safetensors", NaiveWrite(tensors, {"a"}));
    WriteFile(dir / "two.safetensors", NaiveWrite(tensors, {"b"}));
    WriteIndex({{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  }
  void WriteIndex(const std::vector<std::pair<std::string, std::string>>& entries) const {
    WriteFile(dir / kIndexFileName, IndexOf(entries));
  }
  absl::StatusOr<std::unique_ptr<Checkpoint>> Open() const { return Checkpoint::Open(dir.path()); }

  TempDir dir;
  NaiveTensors tensors = {{"a", {"U8", {2}, "xy"}}, {"b", {"BF16", {2}, "1234"}}};
};

TEST_CASE("a single file is opened by its path or in its directory") {
  std::mt19937_64 random(testing::TestSeed("single file"));
  const TempDir dir;
  const NaiveTensors tensors = testing::RandomTensors(random, 60);
  std::vector<std::string> names = testing::NamesOf(tensors);
  std::shuffle(names.begin(), names.end(), random);
  const std::string path = dir / "model.safetensors";
  WriteFile(path, NaiveWrite(tensors, names, {{"format", "pt"}}));

  const auto by_path = Checkpoint::Open(path);
  REQUIRE_OK(by_path);
  RequireHolds(**by_path, tensors);
  REQUIRE((*by_path)->metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  REQUIRE((*by_path)->path() == path);
  REQUIRE_FALSE((*by_path)->is_directory());
  REQUIRE((*by_path)->files().size() == 1);
  REQUIRE((*by_path)->files()[0].path == path);
  REQUIRE((*by_path)->files()[0].size_bytes == std::filesystem::file_size(path));
  REQUIRE_OK((*by_path)->CheckUnchanged());

  const auto by_directory = Checkpoint::Open(dir.path() + "/./");
  REQUIRE_OK(by_directory);
  REQUIRE((*by_directory)->is_directory());
  REQUIRE((*by_directory)->path() == dir.path());
  REQUIRE((*by_directory)->files() == (*by_path)->files());
  RequireHolds(**by_directory, tensors);
}

TEST_CASE("any range of a tensor can be read") {
  std::mt19937_64 random(testing::TestSeed("ranges"));
  const TempDir dir;
  NaiveTensors tensors = {{"t", {"U8", {5000}, testing::RandomBytes(random, 5000)}}};
  tensors["s"] = {"U8", {77}, testing::RandomBytes(random, 77)};
  WriteFile(dir / "x.st", NaiveWrite(tensors, {"t", "s"}));
  const auto checkpoint = Checkpoint::Open(dir / "x.st");
  REQUIRE_OK(checkpoint);
  for (int round = 0; round < 200; ++round) {
    const size_t offset = random() % 5001;
    const size_t size = random() % (5001 - offset);
    std::vector<uint8_t> out(size);
    REQUIRE_OK((*checkpoint)->Read(1, offset, absl::MakeSpan(out)));
    REQUIRE(std::string(out.begin(), out.end()) == tensors["t"].bytes.substr(offset, size));
  }
}

TEST_CASE("B02 a file of metadata only, and one with scalars and empty tensors, open") {
  const TempDir dir;
  WriteFile(dir / "m.safetensors", FileOf("{\"__metadata__\":{\"a\":\"b\"}}"));
  const auto metadata_only = Checkpoint::Open(dir / "m.safetensors");
  REQUIRE_OK(metadata_only);
  REQUIRE((*metadata_only)->manifest().size() == 0);
  REQUIRE((*metadata_only)->metadata().at("a") == "b");

  const NaiveTensors tensors = {{"scalar", {"F32", {}, "abcd"}},
                                {"none", {"F32", {0}, ""}},
                                {"flat", {"F32", {2, 0, 3}, ""}}};
  WriteFile(dir / "e.safetensors", NaiveWrite(tensors, {"none", "scalar", "flat"}));
  const auto checkpoint = Checkpoint::Open(dir / "e.safetensors");
  REQUIRE_OK(checkpoint);
  RequireHolds(**checkpoint, tensors);
  REQUIRE((*checkpoint)->manifest().tensor(2).elements == 1);
  REQUIRE((*checkpoint)->manifest().tensor(0).elements == 0);
}

TEST_CASE("B05 stated header lengths are compared with the file first") {
  const TempDir dir;
  const auto open = [&dir](uint64_t length, const std::string& rest) {
    WriteFile(dir / "f", testing::LengthPrefix(length) + rest);
    return Checkpoint::Open(dir / "f");
  };
  REQUIRE_ERROR_WITH(open(0, ""), kRefused, "/f: header", "it is empty");
  REQUIRE_ERROR_WITH(open(1, "{"), kRefused, "/f: header", "invalid JSON");
  REQUIRE_ERROR_WITH(open(7, "{      "), kRefused, "/f: header", "invalid JSON");
  REQUIRE_ERROR(open(UINT64_MAX, "{}"), kRefused, "the limit is 100000000");
  REQUIRE_ERROR(open(3, "{}"), kRefused,
                "/f: the header ends at byte 11, the file has 10: short by 1 byte");
  REQUIRE_ERROR(open(100'000'000, "{}"), kRefused, "short by 99999998 bytes");

  // At the limit the header is looked at, one byte above it is not. (The rest of the file is
  // zeros.)
  WriteFile(dir / "f", testing::LengthPrefix(100'000'000) + "{}");
  REQUIRE(truncate((dir / "f").c_str(), 100'000'008) == 0);
  REQUIRE_ERROR(Checkpoint::Open(dir / "f"), kRefused, "invalid JSON at byte 2: a zero byte");
  WriteFile(dir / "f", testing::LengthPrefix(100'000'001) + "{}");
  REQUIRE(truncate((dir / "f").c_str(), 100'000'009) == 0);
  REQUIRE_ERROR_WITH(Checkpoint::Open(dir / "f"), kRefused, "100000001 bytes",
                     "the limit is 100000000");
}

TEST_CASE("B06 a file cut at any byte, or lengthened, is refused with the difference") {
  const TempDir dir;
  const std::string whole = FileOf("{" + EntryOf("a", "F32", "[2]", "[0,8]") + "}", "12345678");
  const std::string path = dir / "f.safetensors";
  for (size_t size = 0; size < whole.size(); ++size) {
    INFO(size);
    WriteFile(path, whole.substr(0, size));
    REQUIRE_ERROR_WITH(Checkpoint::Open(path), kRefused, path.c_str(), "short by ");
  }
  WriteFile(path, whole.substr(0, whole.size() - 1));
  REQUIRE_ERROR(Checkpoint::Open(path), kRefused,
                "the tensors take 8 bytes of data, the file has 7: short by 1 byte");
  WriteFile(path, "");
  REQUIRE_ERROR(Checkpoint::Open(path), kRefused, "the file has 0 bytes");
  WriteFile(path, whole.substr(0, 7));
  REQUIRE_ERROR(Checkpoint::Open(path), kRefused, "the file has 7 bytes");
  WriteFile(path, whole + "four");
  REQUIRE_ERROR(Checkpoint::Open(path), kRefused, "4 extra bytes");
  WriteFile(path, whole);
  REQUIRE_OK(Checkpoint::Open(path));
}

TEST_CASE("B06 a file that is cut while open gives an error and no signal") {
  const TempDir dir;
  const std::string path = dir / "f.safetensors";
  WriteFile(path, NaiveWrite({{"a", {"U8", {8192}, std::string(8192, 'a')}}}, {"a"}));
  const auto checkpoint = Checkpoint::Open(path);
  REQUIRE_OK(checkpoint);
  REQUIRE(truncate(path.c_str(), 4096) == 0);
  std::vector<uint8_t> out(8192);
  REQUIRE_ERROR_WITH((*checkpoint)->Read(0, 0, absl::MakeSpan(out)), StatusCode::kDataLoss,
                     path.c_str(), "was cut while open", "it ends at 4096");
  REQUIRE_OK((*checkpoint)->Read(0, 0, absl::MakeSpan(out).first(1000)));
  REQUIRE_ERROR_WITH((*checkpoint)->CheckUnchanged(), StatusCode::kDataLoss, path.c_str(),
                     "was changed in place", "4096 now");
}

TEST_CASE("B13 a base that is rewritten, replaced or removed while open is noticed") {
  const TwoShards shards;
  const std::string one = shards.dir / "one.safetensors";
  const std::string two = shards.dir / "two.safetensors";
  const auto checkpoint = shards.Open();
  REQUIRE_OK(checkpoint);
  REQUIRE_OK((*checkpoint)->CheckUnchanged());

  SECTION("rewritten in place, same size") {
    const timespec later[2] = {{0, UTIME_OMIT}, {2'000'000'000, 1}};
    WriteFile(two, testing::ReadFile(two));
    REQUIRE(utimensat(AT_FDCWD, two.c_str(), later, 0) == 0);
    REQUIRE_ERROR_WITH((*checkpoint)->CheckUnchanged(), StatusCode::kDataLoss, two.c_str(),
                       "changed in place");
  }
  SECTION("replaced by rename: reads still see the old one") {
    WriteFile(shards.dir / "new", NaiveWrite({{"b", {"BF16", {2}, "9999"}}}, {"b"}));
    std::filesystem::rename(shards.dir / "new", two);
    REQUIRE(ReadTensor(**checkpoint, "b") == "1234");
    REQUIRE_ERROR_WITH((*checkpoint)->CheckUnchanged(), StatusCode::kDataLoss, two.c_str(),
                       "was replaced by another file");
  }
  SECTION("all removed: all are named") {
    std::filesystem::remove(one);
    std::filesystem::remove(two);
    REQUIRE(ReadTensor(**checkpoint, "a") == "xy");
    REQUIRE_ERROR_WITH((*checkpoint)->CheckUnchanged(), StatusCode::kDataLoss, one.c_str(),
                       two.c_str(), "no longer there");
  }
}

TEST_CASE("B11 only the files that the index names form the base") {
  const TwoShards shards;
  WriteFile(shards.dir / "model.safetensors", FileOf("{}"));
  WriteFile(shards.dir / "model-00001-of-00005.safetensors", "stale");
  const auto checkpoint = shards.Open();
  REQUIRE_OK(checkpoint);
  RequireHolds(**checkpoint, shards.tensors);
  REQUIRE((*checkpoint)->files().size() == 2);
  REQUIRE((*checkpoint)->files()[1].path == shards.dir / "two.safetensors");
}

TEST_CASE("B11 index and shards must agree, and every disagreement is listed") {
  const TwoShards shards;
  const TempDir& dir = shards.dir;

  SECTION("a shard is missing") {
    std::filesystem::remove(dir / "two.safetensors");
    REQUIRE_ERROR_WITH(shards.Open(), kRefused, kIndexFileName, "missing: 'two.safetensors'");
    std::filesystem::create_symlink("nowhere", dir / "two.safetensors");
    REQUIRE_ERROR_WITH(shards.Open(), kRefused, "missing: 'two.safetensors'");
  }
  SECTION("a stale index names five shards") {
    shards.WriteIndex(
        {{"a", "one.safetensors"}, {"b", "s2"}, {"c", "s3"}, {"d", "s4"}, {"e", "s5"}});
    REQUIRE_ERROR_WITH(shards.Open(), kRefused, "'s2'; 's3'; 's4'; 's5'", "It names 5");
  }
  SECTION("unsound shards are all named") {
    WriteFile(dir / "one.safetensors", "");
    WriteFile(dir / "two.safetensors", FileOf("[]"));
    REQUIRE_ERROR_WITH(shards.Open(), kRefused, "one.safetensors: the file has 0 bytes",
                       "two.safetensors: header");
  }
  SECTION("a tensor in both shards") {
    WriteFile(dir / "two.safetensors", NaiveWrite(shards.tensors, {"a", "b"}));
    REQUIRE_ERROR_WITH(shards.Open(), kRefused,
                       "tensors in two shards: 'a' in 'one.safetensors' and 'two.safetensors'");
  }
  SECTION("an entry absent from its shard") {
    shards.WriteIndex({{"a", "one.safetensors"},
                       {"b", "two.safetensors"},
                       {"c", "two.safetensors"},
                       {"0", "one.safetensors"}});
    REQUIRE_ERROR_WITH(shards.Open(), kRefused,
                       "not in their shard: '0' in 'one.safetensors'; 'c' in 'two");
  }
  SECTION("an entry that names the wrong shard") {
    WriteFile(dir / "two.safetensors",
              NaiveWrite({{"b", {"U8", {1}, "1"}}, {"c", {"U8", {1}, "2"}}}, {"b", "c"}));
    shards.WriteIndex(
        {{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "one.safetensors"}});
    REQUIRE_ERROR_WITH(shards.Open(), kRefused,
                       "'c' in 'one.safetensors' (it is in 'two.safetensors')");
  }
  SECTION("tensors that the index does not name") {
    WriteFile(dir / "two.safetensors",
              NaiveWrite({{"b", {"U8", {1}, "1"}}, {"z", {"U8", {1}, "2"}}, {"_", {"U8", {0}, ""}}},
                         {"b", "z", "_"}));
    REQUIRE_ERROR_WITH(shards.Open(), kRefused,
                       "index does not name: '_' in 'two.safetensors'; 'z' in");
  }
  SECTION("several kinds at once") {
    WriteFile(dir / "two.safetensors", NaiveWrite(shards.tensors, {"a", "b"}));
    shards.WriteIndex({{"a", "one.safetensors"}, {"x", "two.safetensors"}});
    REQUIRE_ERROR_WITH(shards.Open(), kRefused, "in two shards: 'a'", "not in their shard: 'x'",
                       "does not name: 'b'");
  }
}

TEST_CASE("B11 an index that is not sound is refused") {
  const TwoShards shards;
  const auto open = [&shards](const std::string& index) {
    WriteFile(shards.dir / kIndexFileName, index);
    return shards.Open();
  };
  REQUIRE_ERROR_WITH(open("{"), kRefused, kIndexFileName, "invalid JSON");
  REQUIRE_ERROR(open("{}"), kRefused, "it has no weight_map");
  REQUIRE_ERROR(open("{\"weight_map\":{}}"), kRefused, "weight_map names no tensors");
  REQUIRE_ERROR(open("{\"weight_map\":[]}"), kRefused, "weight_map is an array, not an object");
  REQUIRE_ERROR(open("{\"weight_map\":1}"), kRefused, "weight_map is the number 1, not an object");
  REQUIRE_ERROR(open("{\"weight_map\":{\"a\":\"one.safetensors\"},\"weight_map\":{}}"), kRefused,
                "weight_map twice");
  REQUIRE_ERROR(open("{\"weight_map\":{\"a\":{\"b\":[]},\"c\":3}}"), kRefused,
                "tensor 'a' is given an object, not a file name; tensor 'c' is given the number 3");
  REQUIRE_ERROR(open(IndexOf({{"a", "one.safetensors"}, {"a", "one.safetensors"}})), kRefused,
                "duplicate tensor name 'a'");
  for (const char* bad : {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", ".", "",
                          "one\\u0000.safetensors"}) {
    INFO(bad);
    REQUIRE_ERROR_WITH(open(IndexOf({{"a", bad}})), kRefused, "tensor 'a' is in",
                       "not the plain name of a file");
  }
  WriteFile(shards.dir / kIndexFileName, "{}");
  REQUIRE(truncate((shards.dir / kIndexFileName).c_str(), 100'000'001) == 0);
  REQUIRE_ERROR(shards.Open(), kRefused, "has 100000001 bytes; the limit is 100000000");
  // Keys that other tools add are passed over.
  REQUIRE_OK(
      open("{\"x\":[{\"weight_map\":1}],\"metadata\":null,\"weight_map\":"
           "{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}}"));
}

TEST_CASE("paths that lead to no checkpoint are told apart") {
  const TempDir dir;
  REQUIRE_ERROR(Checkpoint::Open(dir / "absent"), StatusCode::kNotFound, "absent");
  REQUIRE_ERROR_WITH(Checkpoint::Open(dir.path()), StatusCode::kNotFound, dir.path().c_str(),
                     "neither model.safetensors.index.json nor model.safetensors");
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  REQUIRE_ERROR(Checkpoint::Open(dir / "pipe"), kRefused, "not a regular file");
  // An index that leads nowhere must not let model.safetensors take its place.
  WriteFile(dir / "model.safetensors", FileOf("{}"));
  std::filesystem::create_symlink("nowhere", dir / kIndexFileName);
  REQUIRE_ERROR(Checkpoint::Open(dir.path()), StatusCode::kNotFound, kIndexFileName);
}

TEST_CASE("a snapshot of links into a cache opens under its own names") {
  const TempDir dir;
  std::filesystem::create_directories(dir / "blobs");
  std::filesystem::create_directories(dir / "snapshot");
  WriteFile(dir / "blobs/0123", NaiveWrite({{"a", {"U8", {1}, "x"}}}, {"a"}));
  std::filesystem::create_symlink("../blobs/0123", dir / "snapshot/model.safetensors");
  std::filesystem::create_directory_symlink("snapshot", dir / "latest");
  const auto checkpoint = Checkpoint::Open(dir / "latest");
  REQUIRE_OK(checkpoint);
  REQUIRE((*checkpoint)->path() == dir / "snapshot");
  REQUIRE((*checkpoint)->files()[0].path == dir / "snapshot/model.safetensors");
  REQUIRE(ReadTensor(**checkpoint, "a") == "x");
  REQUIRE_OK((*checkpoint)->CheckUnchanged());
}

}  // namespace
}  // namespace wstore
