// What an export does to the directory that it is put into, and what it leaves when it fails.
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "store/checkpoint/carry_files.h"
#include "store/checkpoint/checkpoint.h"
#include "store/checkpoint/writer.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/checkpoint/exporting.h"

namespace wstore {
namespace {

using absl::StatusCode;
using testing::AsBytes;
using testing::Export;
using testing::ManifestOf;
using testing::NaiveTensors;
using testing::ReadDirectory;
using testing::TempDir;
using testing::WriteAll;
using testing::WriteFile;
using testing::WriteOldExport;

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
    SKIP_TEST("this process may not mount a small file system");
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
