// kill -9, for real, and WALs that lack their end.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/journal/faulty_file_system.h"
#include "tests/unit/journal/journal_testing.h"

extern char** environ;

namespace wstore {
namespace {

using testing::CopyTree;
using testing::Fault;
using testing::FaultyFileSystem;
using testing::FilesWithSuffix;
using testing::MakeChunks;
using testing::ReadChunks;
using testing::ReadTree;
using testing::ReadWholeFile;
using testing::TempDir;
using testing::WriteWholeFile;

constexpr char kDirectoryVariable[] = "WSTORE_CRASH_TEST_DIRECTORY";
constexpr int kReportDescriptor = 3;

// The payload of record n, whose transaction is n too.
testing::Chunks ChunksOf(uint64_t n) {
  if (n % 5 == 4) return MakeChunks(TransactionNumber(n), 13, 90000);
  return MakeChunks(TransactionNumber(n), static_cast<uint32_t>(n % 4 + 1), 3000);
}

// Runs in the child: commits until it is killed, and reports each record that was acknowledged.
TEST_CASE("the process that is killed", "[.][crash-child]") {
  const char* const directory = std::getenv(kDirectoryVariable);
  REQUIRE(directory != nullptr);
  auto journal = Journal::Open(directory, {});
  if (absl::IsNotFound(journal.status())) {
    journal = Journal::Create(directory, testing::Record("base"));
  }
  REQUIRE_OK(journal);
  for (;;) {
    const uint64_t n = (*journal)->records().size();
    REQUIRE_OK((*journal)->RaiseHighWaterMarks({n, n, n}));
    REQUIRE_OK(
        testing::CommitPayload(**journal, absl::StrCat(n), TransactionNumber(n), ChunksOf(n)));
    REQUIRE(write(kReportDescriptor, &n, sizeof(n)) == sizeof(n));
  }
}

class Child {
 public:
  explicit Child(const std::string& directory) {
    int pipe_ends[2];
    REQUIRE(pipe2(pipe_ends, O_CLOEXEC) == 0);
    reports_ = pipe_ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], kReportDescriptor);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    setenv(kDirectoryVariable, directory.c_str(), 1);
    const char* const arguments[] = {"journal_test", "[crash-child]", nullptr};
    REQUIRE(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr,
                        const_cast<char* const*>(arguments), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_ends[1]);
  }
  ~Child() {
    if (pid_ != 0) Kill();
    close(reports_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // The next record that was acknowledged. Waits for it.
  uint64_t NextReport() {
    uint64_t n = 0;
    REQUIRE(read(reports_, &n, sizeof(n)) == sizeof(n));
    return n;
  }

  // The last one, or `otherwise`.
  uint64_t KillAndDrain(uint64_t otherwise) {
    Kill();
    uint64_t n = otherwise;
    uint64_t next = 0;
    while (read(reports_, &next, sizeof(next)) == sizeof(next)) n = next;
    return n;
  }

 private:
  void Kill() {
    kill(pid_, SIGKILL);
    int status = 0;
    REQUIRE(waitpid(pid_, &status, 0) == pid_);
    pid_ = 0;
    REQUIRE(WIFSIGNALED(status));  // it did not fail before
  }

  pid_t pid_ = 0;
  int reports_ = -1;
};

void RequireWhole(const Journal& journal) {
  REQUIRE(journal.records()[0].body == "base");
  for (size_t n = 1; n < journal.records().size(); ++n) {
    REQUIRE(journal.records()[n].body == absl::StrCat(n));
    const auto chunks = ReadChunks(journal, TransactionNumber(n));
    REQUIRE_OK(chunks);
    REQUIRE(*chunks == ChunksOf(n));
  }
}

TEST_CASE("C02 kill -9 at any moment loses no acknowledged record and halves none") {
  const uint64_t seed = testing::TestSeed("kill");
  std::mt19937_64 random(seed);
  TempDir dir;
  uint64_t last = 0;  // acknowledged
  Journal::Create(dir.path(), testing::Record("base")).value().reset();
  for (int round = 0; round < 20; ++round) {
    INFO("round " << round << " seed " << seed);
    Child child(dir.path());
    if (round % 4 == 0) {
      // Also while it starts and opens.
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 100));
    } else {
      for (uint64_t reports = 1 + random() % 6; reports > 0; --reports) last = child.NextReport();
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    }
    last = child.KillAndDrain(last);
    {
      auto reader = Journal::Open(dir.path(), {.read_only = true});
      REQUIRE_OK(reader);
      REQUIRE((*reader)->records().size() >= last + 1);
      RequireWhole(**reader);
    }
    auto journal = Journal::Open(dir.path(), {});
    REQUIRE_OK(journal);
    // At most the one that was being committed is there as well.
    REQUIRE((*journal)->records().size() >= last + 1);
    REQUIRE((*journal)->records().size() <= last + 2);
    REQUIRE((*journal)->high_water_marks().version >= last);
    last = (*journal)->records().size() - 1;
    RequireWhole(**journal);
    REQUIRE(std::filesystem::is_empty(dir / "stage"));
  }
  REQUIRE(last > 20);
}

// A journal with five records, as a kill -9 would leave it now; the last is a small payload.
void MakeKilled(const std::string& directory, const std::string& copy) {
  std::filesystem::create_directory(directory);
  auto journal = Journal::Create(directory, testing::Record("base"));
  REQUIRE_OK(journal);
  for (uint64_t n = 1; n <= 6; ++n) {
    REQUIRE_OK(
        testing::CommitPayload(**journal, absl::StrCat(n), TransactionNumber(n), ChunksOf(n)));
    if (n == 5) CopyTree(directory, copy + "-before");
  }
  CopyTree(directory, copy);
}

void CutNewestWal(const std::string& directory, uint64_t bytes) {
  const std::string wal = FilesWithSuffix(directory + "/db", ".log").back();
  std::filesystem::resize_file(wal, std::filesystem::file_size(wal) - bytes);
}

TEST_CASE("C02 a WAL that lacks the end of an acknowledged record is damage") {
  TempDir dir;
  MakeKilled(dir / "live", dir / "killed");
  for (uint64_t cut = 1; cut <= 40; ++cut) {
    INFO("cut " << cut);
    const std::string directory = dir / "cut";
    CopyTree(dir / "killed", directory);
    CutNewestWal(directory, cut);
    const auto before = ReadTree(directory);
    REQUIRE_ERROR(
        Journal::Open(directory, {}), absl::StatusCode::kDataLoss,
        "acknowledged records 6 to 6 are missing from the end; the last good record is 5");
    REQUIRE_ERROR(Journal::Open(directory, {.read_only = true}), absl::StatusCode::kDataLoss,
                  "the last good record is 5");
    REQUIRE(ReadTree(directory) == before);
    std::filesystem::remove_all(directory);
  }
}

TEST_CASE("C02 a WAL that lacks the end of an unacknowledged record is in order") {
  TempDir dir;
  MakeKilled(dir / "live", dir / "killed");
  for (uint64_t cut = 0; cut <= 40; ++cut) {
    INFO("cut " << cut);
    const std::string directory = dir / "cut";
    CopyTree(dir / "killed", directory);
    // Killed between the record and its witness.
    WriteWholeFile(directory + "/witness", ReadWholeFile(dir / "killed-before/witness"));
    if (cut > 0) CutNewestWal(directory, cut);
    {
      // Whether it stays is settled by an open for writing; until then readers do not show it.
      auto reader = Journal::Open(directory, {.read_only = true});
      REQUIRE_OK(reader);
      REQUIRE((*reader)->records().size() == 6);
      REQUIRE_ERROR(ReadChunks(**reader, TransactionNumber(6)), absl::StatusCode::kNotFound, "");
    }
    const size_t expected = cut == 0 ? 7 : 6;
    {
      auto journal = Journal::Open(directory, {});
      REQUIRE_OK(journal);
      REQUIRE((*journal)->records().size() == expected);
      RequireWhole(**journal);
    }
    auto reader = Journal::Open(directory, {.read_only = true});
    REQUIRE_OK(reader);
    REQUIRE((*reader)->records().size() == expected);
    std::filesystem::remove_all(directory);
  }
}

TEST_CASE("C02 a manifest whose last, unsynced entry is torn is in order") {
  TempDir dir;
  std::filesystem::create_directory(dir / "live");
  auto journal = Journal::Create(dir / "live", testing::Record("base")).value();
  for (uint64_t n = 1; n <= 3; ++n) {
    REQUIRE_OK(
        testing::CommitPayload(*journal, absl::StrCat(n), TransactionNumber(n), ChunksOf(n)));
  }
  const std::string manifest = testing::ManifestName(dir / "live/db");
  const uint64_t begin = std::filesystem::file_size(dir / "live/db/" + manifest);
  auto writer = *journal->Stage(TransactionNumber(4));
  REQUIRE_OK(testing::AddChunks(*writer, ChunksOf(4)));
  REQUIRE_OK(writer->Finish());
  CopyTree(dir / "live", dir / "killed");
  writer.reset();
  journal.reset();

  const std::string whole = ReadWholeFile(dir / "killed/db/" + manifest);
  REQUIRE(whole.size() > begin + 20);
  for (uint64_t at = begin; at < whole.size(); at += at < begin + 7 ? 2 : 40) {
    INFO("byte " << at << " of " << begin << " to " << whole.size());
    const std::string directory = dir / "torn";
    CopyTree(dir / "killed", directory);
    std::string torn = whole;
    torn[at] = static_cast<char>(~torn[at]);
    WriteWholeFile(directory + "/db/" + manifest, torn);
    const auto before = ReadTree(directory);
    {
      auto reader = Journal::Open(directory, {.read_only = true});
      REQUIRE_OK(reader);
      REQUIRE((*reader)->records().size() == 4);
      RequireWhole(**reader);
    }
    REQUIRE(ReadTree(directory) == before);
    for (uint64_t n = 4; n <= 5; ++n) {
      auto reopened = Journal::Open(directory, {});
      REQUIRE_OK(reopened);
      REQUIRE((*reopened)->records().size() == n);
      REQUIRE_OK(
          testing::CommitPayload(**reopened, absl::StrCat(n), TransactionNumber(n), ChunksOf(n)));
      RequireWhole(**reopened);
    }
    std::filesystem::remove_all(directory);
  }
}

TEST_CASE("C14 a creation that ends before any of its operations can be repeated") {
  for (const bool lose_power : {false, true}) {
    bool fired = true;
    for (uint64_t operation = 1; fired; ++operation) {
      INFO("operation " << operation << (lose_power ? ", then the power fails" : ""));
      TempDir dir;
      const std::string directory = dir / "journal";
      std::filesystem::create_directory(directory);
      {
        const auto fs =
            std::make_shared<FaultyFileSystem>(Fault::kErrors, operation, dir / "graveyard");
        const auto journal = journal::CreateOn(fs, directory, testing::Record("first"));
        fired = fs->fired();
        REQUIRE((journal.ok() == !fired || !journal.ok()));
        if (lose_power) {
          REQUIRE((!journal.ok() || !fired));
          if (!journal.ok()) fs->LosePower(operation);
        }
      }
      const auto clean =
          std::make_shared<FaultyFileSystem>(Fault::kNone, 0, dir / "graveyard/clean");
      auto journal = journal::OpenOn(clean, directory, {});
      if (!journal.ok()) {
        REQUIRE(fired);
        REQUIRE_ERROR(journal, absl::StatusCode::kNotFound, "");
        journal = journal::CreateOn(clean, directory, testing::Record("first"));
      }
      REQUIRE_OK(journal);
      REQUIRE((*journal)->records().size() == 1);
      REQUIRE((*journal)->records()[0].body == "first");
      REQUIRE_OK(testing::CommitPayload(**journal, "1", TransactionNumber(1), ChunksOf(1)));
    }
  }
}

TEST_CASE("C14 kill -9 while a journal is created leaves one, or room for one") {
  std::mt19937_64 random(testing::TestSeed("create"));
  for (int round = 0; round < 6; ++round) {
    TempDir dir;
    {
      Child child(dir.path());
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 80));
      child.KillAndDrain(0);
    }
    Child again(dir.path());
    REQUIRE(again.NextReport() > 0);
    again.KillAndDrain(0);
    auto journal = Journal::Open(dir.path(), {});
    REQUIRE_OK(journal);
    RequireWhole(**journal);
  }
}

}  // namespace
}  // namespace wstore
