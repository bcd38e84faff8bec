#include "store/checkpoint/writer.h"

#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>

#include "store/checkpoint/base_digest.h"
#include "store/checkpoint/carry_files.h"
#include "store/checkpoint/checkpoint.h"
#include "store/checkpoint/shard_index.h"
#include "tests/support/catch.h"
#include "tests/support/naive_safetensors.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"

namespace wstore {
namespace {

using absl::StatusCode;
using testing::FileOf;
using testing::NaiveTensors;
using testing::NaiveWrite;
using testing::ReadDirectory;
using testing::TempDir;
using testing::WriteFile;

Manifest ManifestOf(const NaiveTensors& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    specs.push_back({name, *ParseDtype(tensor.dtype), tensor.shape});
  }
  auto manifest = Manifest::Create(std::move(specs));
  REQUIRE_OK(manifest);
  return *std::move(manifest);
}

absl::Span<const uint8_t> AsBytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

absl::Status WriteAll(const NaiveTensors& tensors, CheckpointWriter& writer) {
  TensorIndex index = 0;
  for (const auto& [name, tensor] : tensors) {
    const absl::Status status = writer.Write(index++, 0, AsBytes(tensor.bytes));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Export(const NaiveTensors& tensors, const std::string& directory,
                    const WriterOptions& options = {}) {
  const Manifest manifest = ManifestOf(tensors);
  auto writer = CheckpointWriter::Create(directory, manifest, options);
  if (!writer.ok()) return writer.status();
  const absl::Status status = WriteAll(tensors, **writer);
  return status.ok() ? (*writer)->Finish() : status;
}

// A sound single file under the export's name, and its content.
std::string WriteOldExport(const std::string& directory) {
  const std::string old = FileOf("{\"__metadata__\":{\"which\":\"old\"}}");
  WriteFile(directory + "/model.safetensors", old);
  return old;
}

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

TEST_CASE("an export without all of its bytes is not put in place") {
  const TempDir dir;
  const NaiveTensors tensors = {{"a", {"U8", {3}, "xyz"}}, {"b", {"U8", {2}, "12"}}};
  const std::string old = WriteOldExport(dir.path());
  const Manifest manifest = ManifestOf(tensors);
  {
    const auto writer = CheckpointWriter::Create(dir.path(), manifest, {});
    REQUIRE_OK(writer);
    REQUIRE_OK((*writer)->Write(0, 1, AsBytes("yz")));
    REQUIRE_ERROR_WITH((*writer)->Finish(), StatusCode::kFailedPrecondition,
                       "tensor 'a' has 3 bytes, 2 were written",
                       "tensor 'b' has 2 bytes, 0 were written");
    REQUIRE(ReadDirectory(dir.path()).size() == 2);
  }
  using Files = std::map<std::string, std::string>;
  REQUIRE(ReadDirectory(dir.path()) == Files{{"model.safetensors", old}});
  // A directory that the writer made goes with it.
  { REQUIRE_OK(CheckpointWriter::Create(dir / "new", manifest, {})); }
  REQUIRE_FALSE(std::filesystem::exists(dir / "new"));
}

TEST_CASE("B13 an export replaces only files of its own names") {
  const TempDir dir;
  const NaiveTensors tensors = {{"a", {"U8", {3}, "xyz"}}, {"b", {"U8", {2}, "12"}}};
  WriteOldExport(dir.path());
  WriteFile(dir / "notes.txt", "mine");
  REQUIRE_OK(Export(tensors, dir.path()));
  REQUIRE(testing::NaiveRead(ReadDirectory(dir.path()).at("model.safetensors")) == tensors);
  REQUIRE(ReadDirectory(dir.path()).at("notes.txt") == "mine");

  // Twice to one path: the same again.
  const auto first = ReadDirectory(dir.path());
  REQUIRE_OK(Export(tensors, dir.path()));
  REQUIRE(ReadDirectory(dir.path()) == first);

  // One file beside shards, and shards beside one file, would be read as the wrong one.
  WriterOptions sharded;
  sharded.shard_size_bytes = 3;
  REQUIRE_ERROR_WITH(Export(tensors, dir.path(), sharded), StatusCode::kAlreadyExists,
                     "files of another checkpoint: 'model.safetensors'",
                     "model-00001-of-00002.safetensors to model.safetensors.index.json");
  REQUIRE(ReadDirectory(dir.path()) == first);
  REQUIRE_OK(Export(tensors, dir / "shards", sharded));
  REQUIRE_OK(Export(tensors, dir / "shards", sharded));
  REQUIRE_ERROR_WITH(Export(tensors, dir / "shards"), StatusCode::kAlreadyExists,
                     "'model-00001-of-00002.safetensors'; 'model-00002-of-00002.safetensors'; "
                     "'model.safetensors.index.json'",
                     "would write model.safetensors and");
  REQUIRE_OK(Checkpoint::Open(dir / "shards"));
}

TEST_CASE("B13 an export onto the files or the directory of an open source is refused") {
  const TempDir dir;
  const NaiveTensors tensors = {{"a", {"U8", {3}, "xyz"}}};
  const std::string old = WriteOldExport(dir.path());
  WriterOptions options;
  options.forbidden_paths = {dir / "model.safetensors"};
  REQUIRE_ERROR_WITH(Export(tensors, dir.path(), options), StatusCode::kFailedPrecondition,
                     (dir / "model.safetensors").c_str(), "in use as a source");

  // By another path, by a source of another name, and through links.
  std::filesystem::create_directory_symlink(dir.path(), dir / "self");
  REQUIRE_ERROR(Export(tensors, dir / "self", options), StatusCode::kFailedPrecondition, "in use");
  options.forbidden_paths = {dir / "other.st"};
  REQUIRE_ERROR(Export(tensors, dir.path(), options), StatusCode::kFailedPrecondition, "in use");
  std::filesystem::create_directory(dir / "linked");
  std::filesystem::create_hard_link(dir / "model.safetensors", dir / "linked/model.safetensors");
  options.forbidden_paths = {dir / "model.safetensors"};
  REQUIRE_ERROR(Export(tensors, dir / "linked", options), StatusCode::kFailedPrecondition,
                "in use");
  REQUIRE_OK(Export(tensors, dir / "elsewhere", options));

  REQUIRE(testing::ReadFile(dir / "model.safetensors") == old);
  REQUIRE(ReadDirectory(dir.path()).size() == 4);  // no hidden folder is left
}

TEST_CASE("places that cannot be exported to are refused") {
  const TempDir dir;
  const NaiveTensors tensors = {{"a", {"U8", {3}, "xyz"}}};
  REQUIRE_ERROR(Export(tensors, dir / "no/out"), StatusCode::kNotFound, "no/out");
  WriteFile(dir / "file", "");
  REQUIRE_ERROR(Export(tensors, dir / "file"), StatusCode::kFailedPrecondition, "/file");
  std::filesystem::create_directories(dir / "busy/model.safetensors");
  REQUIRE_FALSE(Export(tensors, dir / "busy").ok());
  REQUIRE(ReadDirectory(dir / "busy").size() == 1);

  const Manifest manifest = ManifestOf(tensors);
  const auto running = CheckpointWriter::Create(dir / "out", manifest, {});
  REQUIRE_OK(running);
  REQUIRE_ERROR(Export(tensors, dir / "out"), StatusCode::kFailedPrecondition,
                "another export into this directory is running");
  REQUIRE_OK(WriteAll(tensors, **running));
  REQUIRE_OK((*running)->Finish());
  REQUIRE_OK(Export(tensors, dir / "out"));
}

TEST_CASE(
    "B14 a process killed during an export leaves the old files, and the next one cleans up") {
  const TempDir dir;
  const NaiveTensors tensors = {{"a", {"U8", {3}, "xyz"}}, {"b", {"U8", {2}, "12"}}};
  const std::string old = WriteOldExport(dir.path());
  const Manifest manifest = ManifestOf(tensors);
  const pid_t child = fork();
  if (child == 0) {
    const auto writer = CheckpointWriter::Create(dir.path(), manifest, {});
    if (writer.ok() && (*writer)->Write(0, 0, AsBytes("xyz")).ok()) raise(SIGKILL);
    _exit(1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));

  const auto left = ReadDirectory(dir.path());
  REQUIRE(left.size() == 2);
  REQUIRE(left.begin()->first.starts_with(".wstore-export-"));
  REQUIRE(left.at("model.safetensors") == old);
  REQUIRE_OK(Checkpoint::Open(dir.path()));

  REQUIRE_OK(Export(tensors, dir.path()));
  const auto files = ReadDirectory(dir.path());
  REQUIRE(files.size() == 1);
  REQUIRE(testing::NaiveRead(files.at("model.safetensors")) == tensors);
}

TEST_CASE("B14 an export that finds no space leaves the old file and nothing else") {
  const TempDir dir;
  if (mount("none", dir.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
    WARN("skipped: this process may not mount a small file system");
    return;
  }
  const std::string old = WriteOldExport(dir.path());
  const NaiveTensors tensors = {{"a", {"U8", {5'000'000}, std::string(5'000'000, 'a')}}};
  const absl::Status status = Export(tensors, dir.path());
  const auto files = ReadDirectory(dir.path());
  const bool fits = Export({{"a", {"U8", {3}, "xyz"}}}, dir.path()).ok();
  REQUIRE(umount2(dir.path().c_str(), MNT_DETACH) == 0);
  REQUIRE_ERROR_WITH(status, StatusCode::kResourceExhausted, dir.path().c_str(),
                     "no room for 'model.safetensors', which needs 5000");
  using Files = std::map<std::string, std::string>;
  REQUIRE(files == Files{{"model.safetensors", old}});
  REQUIRE(fits);
}

TEST_CASE("what belongs to a model besides its tensors is carried along") {
  const TempDir dir;
  const NaiveTensors tensors = {{"a", {"U8", {3}, "xyz"}}};
  const std::string in = dir / "in";
  std::filesystem::create_directories(in + "/subfolder");
  REQUIRE_OK(Export(tensors, in));
  WriteFile(in + "/config.json", "{}");
  WriteFile(in + "/tokenizer.json", std::string(3'000'000, 't'));
  WriteFile(dir / "blob", "vocabulary");
  std::filesystem::create_symlink("../blob", in + "/vocab.txt");
  for (const char* name : {"pytorch_model.bin", "other.safetensors", "old.gguf",
                           "pytorch_model.bin.index.json", "Optimizer.PT"}) {
    WriteFile(in + "/" + name, "weights of another version");
  }
  WriteFile(in + "/huge.txt", "");
  REQUIRE(truncate((in + "/huge.txt").c_str(), kMaxCarriedBytes + 1) == 0);
  WriteFile(in + "/.hidden", "");
  REQUIRE(mkfifo((in + "/pipe").c_str(), 0600) == 0);

  const auto checkpoint = Checkpoint::Open(in);
  REQUIRE_OK(checkpoint);
  const auto list = ListCarryFiles(**checkpoint);
  REQUIRE_OK(list);
  using Names = std::vector<std::string>;
  REQUIRE(list->carried == Names{in + "/config.json", in + "/tokenizer.json", in + "/vocab.txt"});
  REQUIRE(list->skipped == Names{"Optimizer.PT", "huge.txt", "old.gguf", "other.safetensors",
                                 "pytorch_model.bin", "pytorch_model.bin.index.json"});

  WriterOptions options;
  options.carry_files = list->carried;
  std::filesystem::create_directory(dir / "out");
  WriteFile(dir / "out/config.json", "old");
  REQUIRE_OK(Export(tensors, dir / "out", options));
  const auto files = ReadDirectory(dir / "out");
  REQUIRE(files.size() == 4);
  REQUIRE(files.at("config.json") == "{}");
  REQUIRE(files.at("tokenizer.json") == std::string(3'000'000, 't'));
  REQUIRE(files.at("vocab.txt") == "vocabulary");
  REQUIRE_FALSE(std::filesystem::is_symlink(dir / "out/vocab.txt"));

  const auto file = Checkpoint::Open(in + "/model.safetensors");
  REQUIRE_OK(file);
  REQUIRE(ListCarryFiles(**file)->carried.empty());
  options.carry_files = {dir / "absent.json"};
  REQUIRE_ERROR(Export(tensors, dir / "out", options), StatusCode::kNotFound, "absent.json");
  REQUIRE(ReadDirectory(dir / "out") == files);
}

}  // namespace
}  // namespace wstore
