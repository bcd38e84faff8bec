#include "wstore/journal.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/journal/journal_testing.h"

namespace wstore {
namespace {

using testing::AddChunks;
using testing::Chunks;
using testing::CommitPayload;
using testing::CommitRecord;
using testing::MakeChunks;
using testing::ReadChunks;
using testing::Record;
using testing::TempDir;

std::unique_ptr<Journal> Create(const TempDir& dir) {
  auto journal = Journal::Create(dir.path(), Record("base"));
  REQUIRE_OK(journal);
  return *std::move(journal);
}

std::unique_ptr<Journal> Open(const TempDir& dir, bool read_only = false) {
  auto journal = Journal::Open(dir.path(), {.read_only = read_only});
  REQUIRE_OK(journal);
  return *std::move(journal);
}

void RequireBodies(const Journal& journal, const std::vector<std::string>& bodies) {
  REQUIRE(journal.records().size() == bodies.size());
  for (size_t i = 0; i < bodies.size(); ++i) {
    REQUIRE(journal.records()[i].sequence == i);
    REQUIRE(journal.records()[i].body == bodies[i]);
  }
}

TEST_CASE("Records come back in order, with and without a reopen") {
  TempDir dir;
  std::vector<std::string> bodies = {"base"};
  Digest last;
  {
    auto journal = Create(dir);
    for (int i = 1; i <= 20; ++i) {
      bodies.push_back(absl::StrCat("record ", i, std::string(i * 100, 'x')));
      REQUIRE_OK(CommitRecord(*journal, bodies.back()));
    }
    RequireBodies(*journal, bodies);
    last = journal->records().back().digest;
  }
  for (int opens = 0; opens < 6; ++opens) {
    RequireBodies(*Open(dir, /*read_only=*/true), bodies);
    auto journal = Open(dir);
    RequireBodies(*journal, bodies);
    REQUIRE(journal->records().back().digest == last);
    bodies.push_back(absl::StrCat("after open ", opens));
    REQUIRE_OK(CommitRecord(*journal, bodies.back()));
    last = journal->records().back().digest;
  }
}

TEST_CASE("Payloads of every size come back, small and large ones mixed and out of order") {
  TempDir dir;
  const struct {
    uint64_t transaction;
    uint32_t chunks;
    size_t chunk_bytes;
  } kCases[] = {
      {7, 1, 0},       {3, 10, 100},     {9, 1, 1 << 20}, {8, 1, (1 << 20) + 1},
      {5, 40, 100000}, {6, 5000, 3},     {1, 2, 1 << 19}, {20, 3, 1 << 19},
      {4, 0, 0},       {19, 2500, 1000}, {2, 300, 10},    {18, 3, 2 << 20},
  };
  const auto require_all = [&](const Journal& journal) {
    for (const auto& c : kCases) {
      const TransactionNumber transaction(c.transaction);
      const auto chunks = ReadChunks(journal, transaction);
      REQUIRE_OK(chunks);
      REQUIRE(*chunks == MakeChunks(transaction, c.chunks, c.chunk_bytes));
    }
  };
  {
    auto journal = Create(dir);
    for (const auto& c : kCases) {
      const TransactionNumber transaction(c.transaction);
      REQUIRE_OK(CommitPayload(*journal, "publish", transaction,
                               MakeChunks(transaction, c.chunks, c.chunk_bytes)));
      REQUIRE(journal->records().back().payload == transaction);
    }
    require_all(*journal);
  }
  require_all(*Open(dir));
  require_all(*Open(dir, /*read_only=*/true));
  REQUIRE(std::filesystem::is_empty(dir / "stage"));
}

TEST_CASE("A payload is read from any chunk on, until the visitor stops or fails") {
  TempDir dir;
  auto journal = Create(dir);
  for (const auto& [number, chunk_bytes] : {std::pair<uint64_t, size_t>{1, 50}, {2, 20000}}) {
    const TransactionNumber transaction(number);
    const Chunks all = MakeChunks(transaction, 100, chunk_bytes);
    REQUIRE_OK(CommitPayload(*journal, "x", transaction, all));
    for (const size_t start : {0, 1, 57, 99}) {
      const auto some = ReadChunks(*journal, transaction, all[start].first);
      REQUIRE_OK(some);
      REQUIRE(*some == Chunks(all.begin() + static_cast<ptrdiff_t>(start), all.end()));
    }
    // Between two keys, and behind the last.
    REQUIRE(ReadChunks(*journal, transaction, {0, all[5].first.span + 1, 0})->front() == all[6]);
    REQUIRE(ReadChunks(*journal, transaction, {0xffff, 0xffffffff, 0xffff})->empty());

    int visited = 0;
    REQUIRE_OK(journal->ReadPayload(transaction, {}, [&](const ChunkKey&, std::string_view) {
      return absl::StatusOr<bool>(++visited < 3);
    }));
    REQUIRE(visited == 3);
    REQUIRE_ERROR(journal->ReadPayload(transaction, {},
                                       [&](const ChunkKey&, std::string_view) {
                                         return absl::StatusOr<bool>(absl::AbortedError("enough"));
                                       }),
                  absl::StatusCode::kAborted, "enough");
  }
  REQUIRE_ERROR(ReadChunks(*journal, TransactionNumber(3)), absl::StatusCode::kNotFound,
                "transaction 3");
}

TEST_CASE("Several records commit together") {
  TempDir dir;
  const Chunks small = MakeChunks(TransactionNumber(1), 3, 30);
  const Chunks large = MakeChunks(TransactionNumber(2), 30, 100000);
  {
    auto journal = Create(dir);
    std::vector<NewRecord> records(3);
    records[0] = {"a", *journal->Stage(TransactionNumber(1))};
    records[1] = {"b", nullptr};
    records[2] = {"c", *journal->Stage(TransactionNumber(2))};
    REQUIRE_OK(AddChunks(*records[0].payload, small));
    REQUIRE_OK(AddChunks(*records[2].payload, large));
    REQUIRE_OK(records[2].payload->Finish());
    REQUIRE_OK(journal->Commit(std::move(records)));
  }
  auto journal = Open(dir);
  RequireBodies(*journal, {"base", "a", "b", "c"});
  REQUIRE(*ReadChunks(*journal, TransactionNumber(1)) == small);
  REQUIRE(*ReadChunks(*journal, TransactionNumber(2)) == large);
}

TEST_CASE("A payload that is not committed leaves nothing") {
  TempDir dir;
  auto journal = Create(dir);
  const uint64_t before = journal->size_bytes();
  for (const bool finish : {false, true}) {
    auto writer = *journal->Stage(TransactionNumber(1));
    REQUIRE_OK(AddChunks(*writer, MakeChunks(TransactionNumber(1), 30, 100000)));
    REQUIRE(writer->chunks() == 30);
    REQUIRE(writer->size_bytes() == 3000000);
    if (finish) REQUIRE_OK(writer->Finish());
    REQUIRE_ERROR(ReadChunks(*journal, TransactionNumber(1)), absl::StatusCode::kNotFound, "");
    writer.reset();
    REQUIRE(std::filesystem::is_empty(dir / "stage"));
    REQUIRE(journal->size_bytes() < before + 100000);
  }
  // The number is free again.
  const Chunks other = MakeChunks(TransactionNumber(1), 20, 90000);
  REQUIRE_OK(CommitPayload(*journal, "x", TransactionNumber(1), other));
  REQUIRE(*ReadChunks(*journal, TransactionNumber(1)) == other);
}

TEST_CASE("What cannot be committed is refused and changes nothing") {
  TempDir dir;
  auto journal = Create(dir);
  auto writer = *journal->Stage(TransactionNumber(1));
  REQUIRE_OK(writer->Add({1, 2, 3}, "a"));
  REQUIRE_ERROR(writer->Add({1, 2, 3}, "b"), absl::StatusCode::kInvalidArgument,
                "chunk (contributor 1, span 2, part 3) of transaction 1 does not come after");
  REQUIRE_ERROR(writer->Add({1, 1, 9}, "b"), absl::StatusCode::kInvalidArgument, "must ascend");
  REQUIRE_OK(writer->Add({1, 2, 4}, "b"));
  REQUIRE(writer->chunks() == 2);
  REQUIRE_OK(writer->Finish());
  REQUIRE_ERROR(writer->Add({1, 2, 5}, "c"), absl::StatusCode::kFailedPrecondition, "after Finish");
  std::vector<NewRecord> records(1);
  records[0] = {"x", std::move(writer)};
  REQUIRE_OK(journal->Commit(std::move(records)));

  for (const size_t chunk_bytes : {10, 2000000}) {
    REQUIRE_ERROR(CommitPayload(*journal, "again", TransactionNumber(1),
                                MakeChunks(TransactionNumber(1), 2, chunk_bytes)),
                  absl::StatusCode::kInvalidArgument, "transaction 1 has committed a payload");
  }
  RequireBodies(*journal, {"base", "x"});
  REQUIRE_FALSE(journal->failed());
  REQUIRE_OK(CommitRecord(*journal, "y"));
  REQUIRE(ReadChunks(*journal, TransactionNumber(1))->size() == 2);
}

TEST_CASE("High-water marks survive and never go back") {
  TempDir dir;
  {
    auto journal = Create(dir);
    REQUIRE(journal->high_water_marks() == HighWaterMarks());
    REQUIRE_OK(journal->RaiseHighWaterMarks({5, 1, 2}));
    REQUIRE_OK(journal->RaiseHighWaterMarks({4, 3, 2}));
    REQUIRE(journal->high_water_marks() == HighWaterMarks{5, 3, 2});
    REQUIRE_OK(CommitRecord(*journal, "x"));
  }
  REQUIRE(Open(dir, /*read_only=*/true)->high_water_marks() == HighWaterMarks{5, 3, 2});
  auto journal = Open(dir);
  REQUIRE(journal->high_water_marks() == HighWaterMarks{5, 3, 2});
  RequireBodies(*journal, {"base", "x"});
}

TEST_CASE("A second writer is refused by name, and may follow") {
  TempDir dir;
  auto journal = Create(dir);
  REQUIRE_ERROR(Journal::Open(dir.path(), {}), absl::StatusCode::kUnavailable,
                absl::StrCat("held by process ", getpid(), ", which"));
  REQUIRE_ERROR(Journal::Create(dir.path(), Record("x")), absl::StatusCode::kUnavailable,
                absl::StrCat("held by process ", getpid(), ", which"));
  REQUIRE_OK(CommitRecord(*journal, "still here"));
  journal.reset();
  RequireBodies(*Open(dir), {"base", "still here"});
}

TEST_CASE("A lock that a forked child inherited is said to be held by a child") {
  TempDir dir;
  int ready[2];
  int go_on[2];
  REQUIRE(pipe(ready) == 0);
  REQUIRE(pipe(go_on) == 0);
  const pid_t parent = fork();
  if (parent == 0) {
    auto journal = Journal::Create(dir.path(), Record("base"));
    if (!journal.ok() || fork() != 0) _exit(0);
    char byte = 'r';
    [[maybe_unused]] ssize_t ignored = write(ready[1], &byte, 1);
    close(go_on[1]);
    ignored = read(go_on[0], &byte, 1);
    _exit(0);
  }
  REQUIRE(waitpid(parent, nullptr, 0) == parent);
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  REQUIRE_ERROR(Journal::Open(dir.path(), {}), absl::StatusCode::kUnavailable,
                absl::StrCat("process ", parent, " (which has ended; a process that it started"));
  for (const int descriptor : {ready[0], ready[1], go_on[0], go_on[1]}) close(descriptor);
}

TEST_CASE("A read-only journal refuses to write") {
  TempDir dir;
  Create(dir).reset();
  auto journal = Open(dir, /*read_only=*/true);
  REQUIRE_ERROR(CommitRecord(*journal, "x"), absl::StatusCode::kFailedPrecondition, "read-only");
  REQUIRE_ERROR(journal->Stage(TransactionNumber(1)), absl::StatusCode::kFailedPrecondition,
                "read-only");
  REQUIRE_ERROR(journal->RaiseHighWaterMarks({1, 1, 1}), absl::StatusCode::kFailedPrecondition,
                "read-only");
}

TEST_CASE("Create and Open say what they find instead of a journal") {
  TempDir dir;
  REQUIRE_ERROR(Journal::Open(dir.path(), {}), absl::StatusCode::kNotFound, "no journal in");
  REQUIRE_ERROR(Journal::Open(dir.path(), {.read_only = true}), absl::StatusCode::kNotFound,
                "no journal in");
  REQUIRE_ERROR(Journal::Create(dir / "nowhere", Record("x")), absl::StatusCode::kNotFound,
                "no directory");
  Create(dir).reset();
  REQUIRE_ERROR(Journal::Create(dir.path(), Record("x")), absl::StatusCode::kAlreadyExists,
                "witness");
  std::filesystem::remove(dir / "witness");
  REQUIRE_ERROR(Journal::Create(dir.path(), Record("x")), absl::StatusCode::kAlreadyExists, "db");
  REQUIRE_ERROR(Journal::Open(dir.path(), {}), absl::StatusCode::kDataLoss, "witness is missing");
}

TEST_CASE("size_bytes follows what is on disk") {
  TempDir dir;
  auto journal = Create(dir);
  const uint64_t before = journal->size_bytes();
  REQUIRE(before > 0);
  REQUIRE_OK(CommitPayload(*journal, "x", TransactionNumber(1),
                           MakeChunks(TransactionNumber(1), 80, 100000)));
  REQUIRE_OK(CommitPayload(*journal, "x", TransactionNumber(2),
                           MakeChunks(TransactionNumber(2), 10, 10000)));
  uint64_t on_disk = 0;
  for (const auto& [path, content] : testing::ReadTree(dir / "db")) on_disk += content.size();
  const uint64_t size = journal->size_bytes();
  REQUIRE(size > before + 8100000);
  REQUIRE(size <= on_disk);
  REQUIRE(size > on_disk - 50000);  // CURRENT, IDENTITY, OPTIONS
  REQUIRE(Open(dir, /*read_only=*/true)->size_bytes() > 8100000);
}

}  // namespace
}  // namespace wstore
