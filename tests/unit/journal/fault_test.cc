// Every operation of the file system fails once, one after the other.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/journal/faulty_file_system.h"
#include "tests/unit/journal/journal_testing.h"

namespace wstore {
namespace {

using journal::CreateOn;
using journal::OpenOn;
using testing::Chunks;
using testing::CopyTree;
using testing::Fault;
using testing::FaultyFileSystem;
using testing::MakeChunks;
using testing::ReadChunks;
using testing::TempDir;

// The script's commits: what they are told by their body.
struct Step {
  std::string body;
  uint64_t transaction = 0;  // 0: no payload
  uint32_t chunks = 0;
  size_t chunk_bytes = 0;
};

const std::vector<Step>& Script() {
  static const std::vector<Step>* const steps = new std::vector<Step>{
      {"small", 101, 3, 1000},          {"large", 102, 12, 100000},   {"none"},
      {"large again", 104, 11, 100000}, {"small again", 103, 2, 200},
  };
  return *steps;
}

// What the caller of the journal knows when the script has ended.
struct Knowledge {
  std::vector<std::string> acknowledged = {"base", "first"};
  std::optional<std::string> unknown;
  HighWaterMarks marks;
};

void RunScript(const std::shared_ptr<FaultyFileSystem>& fs, const std::string& directory,
               Knowledge& knowledge) {
  auto journal = OpenOn(fs, directory, {});
  if (!journal.ok()) {
    // Whatever went wrong, it was no damage.
    INFO(journal.status());
    REQUIRE((absl::IsUnavailable(journal.status()) || absl::IsResourceExhausted(journal.status())));
    return;
  }
  uint64_t mark = 100;
  for (const Step& step : Script()) {
    HighWaterMarks marks{++mark, mark, mark};
    const absl::Status raised = (*journal)->RaiseHighWaterMarks(marks);
    if (raised.ok()) knowledge.marks = marks;
    REQUIRE((*journal)->high_water_marks() == knowledge.marks);
    if (!raised.ok()) continue;  // as a caller would do: no number, no transaction

    const absl::Status status =
        step.transaction == 0
            ? testing::CommitRecord(**journal, step.body)
            : testing::CommitPayload(
                  **journal, step.body, TransactionNumber(step.transaction),
                  MakeChunks(TransactionNumber(step.transaction), step.chunks, step.chunk_bytes));
    INFO(step.body << ": " << status);
    if (status.ok()) {
      knowledge.acknowledged.push_back(step.body);
    } else if (absl::IsUnknown(status)) {
      REQUIRE((*journal)->failed());
      REQUIRE_ERROR(testing::CommitRecord(**journal, "more"), absl::StatusCode::kUnavailable,
                    "reopen");
      knowledge.unknown = step.body;
      return;
    } else {
      REQUIRE((absl::IsUnavailable(status) || absl::IsResourceExhausted(status)));
    }
    REQUIRE((*journal)->records().size() == knowledge.acknowledged.size());
  }
}

void RequireWhole(const Journal& journal) {
  for (const StoredRecord& record : journal.records()) {
    for (const Step& step : Script()) {
      if (record.body != step.body) continue;
      REQUIRE(record.payload.value_or(TransactionNumber(0)).value() == step.transaction);
      if (step.transaction == 0) continue;
      const auto chunks = ReadChunks(journal, *record.payload);
      REQUIRE_OK(chunks);
      REQUIRE(*chunks ==
              MakeChunks(TransactionNumber(step.transaction), step.chunks, step.chunk_bytes));
    }
  }
}

// What must be there after the script, through a clean file system.
void CheckAfterwards(const std::string& directory, const std::string& graveyard,
                     const Knowledge& knowledge) {
  const auto clean = std::make_shared<FaultyFileSystem>(Fault::kNone, 0, graveyard + "/clean");
  std::vector<std::string> settled;
  {
    auto reader = OpenOn(clean, directory, {.read_only = true});
    REQUIRE_OK(reader);
    RequireWhole(**reader);
    REQUIRE((*reader)->records().size() >= knowledge.acknowledged.size());
  }
  {
    auto journal = OpenOn(clean, directory, {});
    REQUIRE_OK(journal);
    for (const StoredRecord& record : (*journal)->records()) settled.push_back(record.body);
    std::vector<std::string> with_unknown = knowledge.acknowledged;
    if (knowledge.unknown.has_value()) with_unknown.push_back(*knowledge.unknown);
    REQUIRE((settled == knowledge.acknowledged || settled == with_unknown));
    RequireWhole(**journal);
    REQUIRE((*journal)->high_water_marks().transaction >= knowledge.marks.transaction);
    REQUIRE((*journal)->high_water_marks().move >= knowledge.marks.move);
    REQUIRE(std::filesystem::is_empty(directory + "/stage"));
    // Nothing of an unfinished commit is left: its number can be committed now.
    for (const Step& step : Script()) {
      if (step.transaction == 0 ||
          std::find(settled.begin(), settled.end(), step.body) != settled.end()) {
        continue;
      }
      REQUIRE_OK(
          testing::CommitPayload(**journal, "later", TransactionNumber(step.transaction),
                                 MakeChunks(TransactionNumber(step.transaction), 11, 100000)));
      settled.emplace_back("later");
    }
  }
  auto journal = OpenOn(clean, directory, {.read_only = true});
  REQUIRE_OK(journal);
  REQUIRE((*journal)->records().size() == settled.size());
  RequireWhole(**journal);
}

// A journal with a base, a record and a payload, closed; and one more commit that sits in the WAL.
void MakeTemplate(const std::string& directory) {
  std::filesystem::create_directory(directory);
  auto journal = Journal::Create(directory, testing::Record("base"));
  REQUIRE_OK(journal);
  REQUIRE_OK(testing::CommitPayload(**journal, "first", TransactionNumber(1),
                                    MakeChunks(TransactionNumber(1), 4, 500)));
}

enum class Then { kNothing, kPowerLoss, kReopenAndPowerLoss };

// Opens on the same file system, which has had its fault, and takes what is there as settled.
Knowledge Settle(const std::shared_ptr<FaultyFileSystem>& fs, const std::string& directory,
                 Knowledge knowledge) {
  auto journal = OpenOn(fs, directory, {});
  REQUIRE_OK(journal);
  if ((*journal)->records().size() > knowledge.acknowledged.size()) {
    knowledge.acknowledged.push_back(knowledge.unknown.value());
  }
  knowledge.unknown.reset();
  knowledge.marks = (*journal)->high_water_marks();
  return knowledge;
}

// The power fails again, at some operation of the next opening or just after it.
void LosePowerWhileOpening(const std::string& directory, const std::string& graveyard,
                           uint64_t seed) {
  const uint64_t operation = 1 + std::mt19937_64(seed)() % 60;
  INFO("and at operation " << operation << " of the opening");
  const auto fs = std::make_shared<FaultyFileSystem>(Fault::kErrors, operation, graveyard);
  {
    auto journal = OpenOn(fs, directory, {});
    INFO(journal.status());
    REQUIRE((journal.ok() || absl::IsUnavailable(journal.status())));
  }
  fs->LosePower(seed);
}

// Runs the script with a fault at one operation of the file system. Says whether it came to that.
bool FailOperation(const TempDir& dir, Fault fault, Then then, uint64_t operation, uint64_t seed) {
  INFO("operation " << operation << " seed " << seed);
  const std::string directory = dir / "journal";
  const std::string graveyard = dir / "graveyard";
  CopyTree(dir / "template", directory);
  Knowledge knowledge;
  bool fired = false;
  {
    const auto fs = std::make_shared<FaultyFileSystem>(fault, operation, graveyard);
    RunScript(fs, directory, knowledge);
    fired = fs->fired();
    if (then == Then::kReopenAndPowerLoss && fired) knowledge = Settle(fs, directory, knowledge);
    if (then != Then::kNothing) fs->LosePower(seed + operation);
  }
  if (then == Then::kPowerLoss) {
    LosePowerWhileOpening(directory, graveyard + "/again", seed + operation);
  }
  CheckAfterwards(directory, graveyard, knowledge);
  if (!fired) REQUIRE(knowledge.acknowledged.size() == 2 + Script().size());
  std::filesystem::remove_all(directory);
  std::filesystem::remove_all(graveyard);
  return fired;
}

// Does so for each operation (of every third, unless all are asked for: which ones, the seed says).
void FailEachOperation(Fault fault, Then then) {
  const uint64_t seed = testing::TestSeed("fault");
  const uint64_t stride = std::getenv("WSTORE_TEST_ALL_FAULTS") != nullptr ? 1 : 3;
  TempDir dir;
  MakeTemplate(dir / "template");
  uint64_t operation = 1 + seed % stride;
  while (FailOperation(dir, fault, then, operation, seed)) operation += stride;
}

TEST_CASE("Any one operation fails with an I/O error") {
  FailEachOperation(Fault::kErrorOnce, Then::kNothing);
}
TEST_CASE("Any one operation fails for lack of space") {
  FailEachOperation(Fault::kNoSpaceOnce, Then::kNothing);
}
TEST_CASE("C02 C14 the process is killed before any operation") {
  FailEachOperation(Fault::kErrors, Then::kNothing);
}
TEST_CASE("C02 the power fails before any operation") {
  FailEachOperation(Fault::kErrors, Then::kPowerLoss);
}
TEST_CASE("C02 the power fails while the manifest is written, and tears its end") {
  TempDir dir;
  MakeTemplate(dir / "template");
  // RocksDB by itself refused what this left.
  REQUIRE(FailOperation(dir, Fault::kErrors, Then::kPowerLoss, 62, 3254762896));
}
TEST_CASE("What reopening after an I/O error has settled stays, though the power fails") {
  FailEachOperation(Fault::kErrorOnce, Then::kReopenAndPowerLoss);
}

TEST_CASE("C01 a full disk refuses commits, and more space lets them go on") {
  TempDir dir;
  MakeTemplate(dir / "journal");
  const auto fs = std::make_shared<FaultyFileSystem>(Fault::kNone, 0, dir / "graveyard");
  auto journal = OpenOn(fs, dir / "journal", {}).value();
  for (const size_t chunk_bytes : {1000, 100000}) {
    const TransactionNumber transaction(chunk_bytes);
    const Chunks chunks = MakeChunks(transaction, 20, chunk_bytes);
    fs->set_free_space(8 << 20);
    REQUIRE_ERROR(testing::CommitPayload(*journal, "x", transaction, chunks),
                  absl::StatusCode::kResourceExhausted, "8388608 bytes are free");
    REQUIRE_FALSE(journal->failed());
    REQUIRE_ERROR(ReadChunks(*journal, transaction), absl::StatusCode::kNotFound, "");
    REQUIRE(ReadChunks(*journal, TransactionNumber(1))->size() == 4);
    REQUIRE(std::filesystem::is_empty(dir / "journal/stage"));
    fs->set_free_space(16 << 20);
    REQUIRE_OK(testing::CommitPayload(*journal, "x", transaction, chunks));
    REQUIRE(ReadChunks(*journal, transaction).value() == chunks);
  }
  REQUIRE(journal->records().size() == 4);
}

TEST_CASE("C02 what is appended is wholly there or wholly gone, and durable after a sync") {
  const uint64_t seed = testing::TestSeed("append");
  TempDir dir;
  MakeTemplate(dir / "template");
  enum class Later { kNothing, kSync, kCommit };
  size_t lost = 0;
  for (uint64_t round = 0; round < 15; ++round) {
    const Later later = static_cast<Later>(round % 3);
    INFO("round " << round << " seed " << seed);
    const std::string directory = dir / "journal";
    CopyTree(dir / "template", directory);
    const auto fs = std::make_shared<FaultyFileSystem>(Fault::kNone, 0, dir / "graveyard");
    // One small payload, one that is ingested.
    const Chunks chunks = MakeChunks(TransactionNumber(9), round % 2 == 0 ? 3 : 12, 100000);
    {
      auto journal = OpenOn(fs, directory, {}).value();
      auto payload = journal->Stage(TransactionNumber(9)).value();
      REQUIRE_OK(testing::AddChunks(*payload, chunks));
      std::vector<NewRecord> records;
      records.push_back({"appended", std::move(payload)});
      records.push_back({"with it", nullptr});
      REQUIRE_OK(journal->Append(std::move(records)));
      REQUIRE(journal->records().size() == 4);
      REQUIRE(ReadChunks(*journal, TransactionNumber(9)).value() == chunks);
      // The witness must not name what may go.
      REQUIRE_OK(journal->RaiseHighWaterMarks({20, 20, 20}));
      if (later == Later::kSync) {
        REQUIRE_OK(journal->Sync());
        REQUIRE_OK(journal->Sync());
      }
      if (later == Later::kCommit) REQUIRE_OK(testing::CommitRecord(*journal, "synced"));
    }
    fs->LosePower(seed + round);
    {
      auto journal = OpenOn(fs, directory, {});
      REQUIRE_OK(journal);
      const size_t records = (*journal)->records().size();
      REQUIRE((*journal)->high_water_marks().transaction == 20);
      if (later == Later::kNothing) {
        REQUIRE((records == 2 || records == 4));
        lost += records == 2 ? 1 : 0;
      } else {
        REQUIRE(records == (later == Later::kSync ? 4 : 5));
      }
      if (records > 2) REQUIRE(ReadChunks(**journal, TransactionNumber(9)).value() == chunks);
    }
    std::filesystem::remove_all(directory);
    std::filesystem::remove_all(dir / "graveyard");
  }
  REQUIRE(lost > 0);  // or this test shows nothing
}

}  // namespace
}  // namespace wstore
