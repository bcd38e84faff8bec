// Read-only opens beside a writer.
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/journal/faulty_file_system.h"
#include "tests/unit/journal/journal_testing.h"

namespace wstore {
namespace {

using journal::OpenOn;
using testing::Fault;
using testing::FaultyFileSystem;
using testing::MakeChunks;
using testing::ReadChunks;
using testing::TempDir;

// Large enough that memory is often flushed, and the flushed files merged.
testing::Chunks ChunksOf(uint64_t n) {
  if (n % 4 == 0) return MakeChunks(TransactionNumber(n), 3, 500000);
  return MakeChunks(TransactionNumber(n), 2, 400000);
}

// What a reader found wrong, or empty.
std::string CheckSnapshot(const Journal& journal, uint64_t acknowledged, std::mt19937_64& random) {
  const uint64_t last = journal.records().size() - 1;
  if (last < acknowledged) return absl::StrCat("only ", last, " of ", acknowledged, " records");
  for (uint64_t n = 1; n <= last; ++n) {
    if (journal.records()[n].body != absl::StrCat(n)) return absl::StrCat("record ", n);
  }
  if (last == 0) return "";
  for (const uint64_t n : {last, 1 + random() % last}) {
    const auto chunks = ReadChunks(journal, TransactionNumber(n));
    if (!chunks.ok()) return chunks.status().ToString();
    if (*chunks != ChunksOf(n)) return absl::StrCat("payload ", n);
  }
  return "";
}

TEST_CASE("C06 readers beside a busy writer never see damage and change nothing") {
  const uint64_t seed = testing::TestSeed("reader");
  TempDir dir;
  const std::string directory = dir / "journal";
  std::filesystem::create_directory(directory);
  Journal::Create(directory, testing::Record("base")).value().reset();

  std::atomic<uint64_t> acknowledged = 0;
  std::atomic<bool> done = false;
  std::string writer_problem;
  std::thread writer([&] {
    for (int opens = 0; opens < 12 && writer_problem.empty(); ++opens) {
      auto journal = Journal::Open(directory, {});
      if (!journal.ok()) {
        writer_problem = journal.status().ToString();
        break;
      }
      for (int i = 0; i < 1 + opens % 7; ++i) {
        const uint64_t n = (*journal)->records().size();
        const absl::Status status =
            testing::CommitPayload(**journal, absl::StrCat(n), TransactionNumber(n), ChunksOf(n));
        if (!status.ok()) writer_problem = status.ToString();
        acknowledged = n;
      }
    }
    done = true;
  });

  const auto counted = std::make_shared<FaultyFileSystem>(Fault::kNone, 0, dir / "graveyard");
  std::mt19937_64 random(seed);
  std::string problem;
  uint64_t opens = 0;
  std::unique_ptr<Journal> old;  // one that stays open while the writer goes on
  while (!done && problem.empty()) {
    const uint64_t before = acknowledged;
    auto journal = OpenOn(counted, directory, {.read_only = true});
    if (!journal.ok()) {
      problem = journal.status().ToString();
      break;
    }
    problem = CheckSnapshot(**journal, before, random);
    if (old != nullptr && problem.empty()) problem = CheckSnapshot(*old, 0, random);
    if (old == nullptr || opens % 16 == 0) old = *std::move(journal);
    ++opens;
  }
  writer.join();
  REQUIRE(problem == "");
  REQUIRE(writer_problem == "");
  REQUIRE(opens > 5);
  REQUIRE(counted->operations() == 0);
  REQUIRE(acknowledged == 43);
}

TEST_CASE("C06 a reader of a quiet journal changes no file and no time") {
  TempDir dir;
  std::filesystem::create_directory(dir / "live");
  auto live = Journal::Create(dir / "live", testing::Record("base")).value();
  for (uint64_t n = 1; n <= 6; ++n) {
    REQUIRE_OK(testing::CommitPayload(*live, absl::StrCat(n), TransactionNumber(n), ChunksOf(n)));
  }
  // Once beside the writer, once as a kill would leave it.
  testing::CopyTree(dir / "live", dir / "killed");
  for (const std::string& directory : {dir / "live", dir / "killed"}) {
    const auto times = [&] {
      std::map<std::string, std::pair<int64_t, int64_t>> result;
      for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
        struct stat info {};
        REQUIRE(stat(entry.path().c_str(), &info) == 0);
        result[entry.path()] = {info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec,
                                info.st_ctim.tv_sec * 1000000000 + info.st_ctim.tv_nsec};
      }
      return result;
    };
    const auto times_before = times();
    const auto before = testing::ReadTree(directory);
    {
      auto journal = Journal::Open(directory, {.read_only = true});
      REQUIRE_OK(journal);
      for (uint64_t n = 1; n <= 6; ++n) {
        REQUIRE(ReadChunks(**journal, TransactionNumber(n)).value() == ChunksOf(n));
      }
    }
    REQUIRE(testing::ReadTree(directory) == before);
    REQUIRE(times() == times_before);
  }
}

}  // namespace
}  // namespace wstore
