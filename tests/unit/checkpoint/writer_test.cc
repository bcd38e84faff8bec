#include "store/checkpoint/writer.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "store/checkpoint/base_digest.h"
#include "store/checkpoint/checkpoint.h"
#include "store/checkpoint/shard_index.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/checkpoint/exporting.h"

namespace wstore {
namespace {

using absl::StatusCode;
using testing::AsBytes;
using testing::Export;
using testing::FileOf;
using testing::ManifestOf;
using testing::NaiveTensors;
using testing::ReadDirectory;
using testing::TempDir;
using testing::WriteFile;

TEST_CASE("an export into one file holds the tensors, aligned, and nothing else") {
  std::mt19937_64 random(testing::TestSeed("one file"));
  const TempDir dir;
  const NaiveTensors tensors = testing::RandomTensors(random, 80);
  WriterOptions options;
  options.metadata = {{"format", "pt"}, {"b", "\xC3\xA9 \"x\"\n"}};
  REQUIRE_OK(Export(tensors, dir / "out", options));

  const auto files = ReadDirectory(dir / "out");
  REQUIRE(files.size() == 1);
  std::map<std::string, std::string> metadata;
  REQUIRE(testing::NaiveRead(files.at("model.safetensors"), &metadata) == tensors);
  REQUIRE(metadata == options.metadata);

  const std::string& file = files.at("model.safetensors");
  const size_t data_start = file.size() - ManifestOf(tensors).size_bytes();
  REQUIRE(data_start % 8 == 0);
  const auto header = nlohmann::json::parse(file.substr(8, data_start - 8));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const uint64_t begin = entry["data_offsets"][0];
    const std::string dtype = entry["dtype"];
    REQUIRE(begin % StorageElementBytes(*ParseDtype(dtype)) == 0);
  }
}

TEST_CASE("the documented example of an export, byte for byte") {
  const TempDir dir;
  const NaiveTensors tensors = {{"a", {"BF16", {2}, std::string("\x80\x3F\x00\x40", 4)}},
                                {"b", {"U8", {0}, ""}}};
  WriterOptions options;
  options.metadata = {{"format", "pt"}};
  REQUIRE_OK(Export(tensors, dir.path(), options));
  const std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"},"
      "\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}      ";
  REQUIRE(ReadDirectory(dir.path()).at("model.safetensors") ==
          std::string("\x90\0\0\0\0\0\0\0", 8) + header + std::string("\x80\x3F\x00\x40", 4));
}

TEST_CASE("B02 scalars, empty tensors and no tensors at all survive an export") {
  const TempDir dir;
  const NaiveTensors tensors = {{"scalar", {"F32", {}, "abcd"}},
                                {"none", {"F64", {0}, ""}},
                                {"flat", {"BOOL", {2, 0, 3}, ""}}};
  REQUIRE_OK(Export(tensors, dir / "some"));
  REQUIRE(testing::NaiveRead(ReadDirectory(dir / "some").at("model.safetensors")) == tensors);
  REQUIRE_OK(Export({}, dir / "none"));
  REQUIRE(ReadDirectory(dir / "none").at("model.safetensors") == FileOf("{}      "));
  REQUIRE_OK(Checkpoint::Open(dir / "none"));
}

TEST_CASE("B15 an export is the same, bit for bit, however its bytes come") {
  std::mt19937_64 random(testing::TestSeed("reproducible"));
  const TempDir dir;
  NaiveTensors tensors = testing::RandomTensors(random, 40);
  tensors["large"] = {"BF16", {100, 1000}, testing::RandomBytes(random, 200'000)};
  const Manifest manifest = ManifestOf(tensors);
  WriterOptions options;
  options.shard_size_bytes = 1000;
  options.metadata = {{"format", "pt"}};
  REQUIRE_OK(Export(tensors, dir / "in-order", options));

  // The same in pieces, in any order, from several threads.
  struct Piece {
    TensorIndex tensor;
    size_t offset;
    std::string bytes;
  };
  std::vector<Piece> pieces;
  TensorIndex index = 0;
  for (const auto& [name, tensor] : tensors) {
    for (size_t at = 0; at < tensor.bytes.size();) {
      const size_t size = std::min<size_t>(1 + random() % 5000, tensor.bytes.size() - at);
      pieces.push_back({index, at, tensor.bytes.substr(at, size)});
      at += size;
    }
    ++index;
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  const auto writer = CheckpointWriter::Create(dir / "in-pieces", manifest, options);
  REQUIRE_OK(writer);
  std::atomic<size_t> failures = 0;
  std::vector<std::thread> threads;
  for (size_t first = 0; first < 3; ++first) {
    threads.emplace_back([&, first] {
      for (size_t i = first; i < pieces.size(); i += 3) {
        const Piece& piece = pieces[i];
        failures += !(*writer)->Write(piece.tensor, piece.offset, AsBytes(piece.bytes)).ok();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(failures == 0);
  REQUIRE_OK((*writer)->Finish());
  REQUIRE(ReadDirectory(dir / "in-pieces") == ReadDirectory(dir / "in-order"));
}

TEST_CASE("an export is cut into shards of whole tensors with an index") {
  const TempDir dir;
  const NaiveTensors tensors = {{"a", {"U8", {60}, std::string(60, 'a')}},
                                {"b", {"BF16", {20}, std::string(40, 'b')}},
                                {"c", {"U8", {1}, "c"}},
                                {"d", {"U8", {250}, std::string(250, 'd')}},
                                {"e", {"U8", {0}, ""}},
                                {"f", {"U8", {2}, "ff"}}};
  WriterOptions options;
  options.shard_size_bytes = 100;
  options.metadata = {{"format", "pt"}};
  REQUIRE_OK(Export(tensors, dir.path(), options));

  auto files = ReadDirectory(dir.path());
  REQUIRE(files.size() == 5);
  const auto shard = [&files](int i) {
    std::map<std::string, std::string> metadata;
    const NaiveTensors held = testing::NaiveRead(
        files.at("model-0000" + std::to_string(i) + "-of-00004.safetensors"), &metadata);
    REQUIRE(metadata.at("format") == "pt");
    return testing::NamesOf(held);
  };
  using Names = std::vector<std::string>;
  REQUIRE(shard(1) == Names{"a", "b"});
  REQUIRE(shard(2) == Names{"c"});
  REQUIRE(shard(3) == Names{"d", "e"});
  REQUIRE(shard(4) == Names{"f"});
  REQUIRE(files.at(kIndexFileName) ==
          "{\n  \"metadata\": {\n    \"total_size\": 353\n  },\n  \"weight_map\": {\n"
          "    \"a\": \"model-00001-of-00004.safetensors\",\n"
          "    \"b\": \"model-00001-of-00004.safetensors\",\n"
          "    \"c\": \"model-00002-of-00004.safetensors\",\n"
          "    \"d\": \"model-00003-of-00004.safetensors\",\n"
          "    \"e\": \"model-00003-of-00004.safetensors\",\n"
          "    \"f\": \"model-00004-of-00004.safetensors\"\n  }\n}\n");

  // The same base as the single file.
  const TempDir single;
  REQUIRE_OK(Export(tensors, single.path()));
  const auto one = Checkpoint::Open(single.path());
  const auto four = Checkpoint::Open(dir.path());
  REQUIRE_OK(one);
  REQUIRE_OK(four);
  REQUIRE(*DigestCheckpoint((*one)->manifest(), **one, 1, nullptr) ==
          *DigestCheckpoint((*four)->manifest(), **four, 1, nullptr));
}

TEST_CASE("exports that cannot be read back are refused before anything is created") {
  const TempDir dir;
  const auto refused = [&dir](const NaiveTensors& tensors, const WriterOptions& options,
                              const char* text) {
    REQUIRE_ERROR(Export(tensors, dir / "out", options), StatusCode::kInvalidArgument, text);
    REQUIRE_FALSE(std::filesystem::exists(dir / "out"));
  };
  const NaiveTensors sound = {{"a", {"U8", {1}, "x"}}};
  WriterOptions zero;
  zero.shard_size_bytes = 0;
  refused(sound, zero, "the shard size is 0 bytes");
  refused({{"\xFF", {"U8", {1}, "x"}}}, {}, "invalid JSON");
  refused({{"__metadata__", {"U8", {1}, "x"}}}, {}, "__metadata__");
  WriterOptions bad_metadata;
  bad_metadata.metadata = {{"k", "\xC3"}};
  refused(sound, bad_metadata, "invalid JSON");
  WriterOptions twice;
  WriteFile(dir / "model.safetensors", "");
  twice.carry_files = {dir / "model.safetensors"};
  refused(sound, twice, "another file of the export has this name");
  WriterOptions tiny;
  tiny.shard_size_bytes = 1;
  NaiveTensors many;
  for (int i = 0; i < 100'000; ++i) many[std::to_string(i)] = {"U8", {1}, "x"};
  refused(many, tiny, "makes 100000 shards; the limit is 99999");
}

}  // namespace
}  // namespace wstore
