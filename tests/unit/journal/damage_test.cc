// Damage to the files of a closed or killed journal: it is said, nothing is deleted, and never is
// less than what was acknowledged taken for all there is.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/journal/journal_testing.h"

namespace wstore {
namespace {

using testing::CopyTree;
using testing::FilesWithSuffix;
using testing::MakeChunks;
using testing::ReadChunks;
using testing::ReadTree;
using testing::ReadWholeFile;
using testing::TempDir;
using testing::WriteWholeFile;

constexpr uint64_t kRecords = 13;  // with the base

// Record n commits transaction n: small ones, and every third in an SST file.
testing::Chunks ChunksOf(uint64_t n) {
  return n % 3 == 0 ? MakeChunks(TransactionNumber(n), 12, 90000)
                    : MakeChunks(TransactionNumber(n), 3, 2000);
}

// As kill -9 leaves it: records in several SST files, the last ones in the WAL, payload files.
void MakeJournal(const std::string& live, const std::string& copy) {
  std::filesystem::create_directory(live);
  Journal::Create(live, testing::Record("base")).value().reset();
  std::unique_ptr<Journal> journal;
  for (uint64_t n = 1; n < kRecords; ++n) {
    if (n % 5 == 1) {
      journal.reset();
      journal = Journal::Open(live, {}).value();
    }
    REQUIRE_OK(testing::CommitPayload(*journal, absl::StrCat("record ", n), TransactionNumber(n),
                                      ChunksOf(n)));
  }
  CopyTree(live, copy);
}

enum class Outcome { kRefused, kPayloadRefused, kHarmless };

// Opens a damaged journal for writing. Fails the test on any outcome that hides damage or makes it
// worse.
Outcome OpenDamaged(const std::string& directory) {
  const auto before = ReadTree(directory);
  auto reader = Journal::Open(directory, {.read_only = true});
  auto journal = Journal::Open(directory, {});
  INFO(journal.status());
  REQUIRE(reader.ok() == journal.ok());
  if (!journal.ok()) {
    REQUIRE(absl::IsDataLoss(journal.status()));
    REQUIRE(absl::IsDataLoss(reader.status()));
    REQUIRE(ReadTree(directory) == before);
    return Outcome::kRefused;
  }
  REQUIRE((*journal)->records().size() == kRecords);
  Outcome outcome = Outcome::kHarmless;
  for (uint64_t n = 1; n < kRecords; ++n) {
    REQUIRE((*journal)->records()[n].body == absl::StrCat("record ", n));
    const auto chunks = ReadChunks(**journal, TransactionNumber(n));
    if (chunks.ok()) {
      REQUIRE(*chunks == ChunksOf(n));
    } else {
      REQUIRE(absl::IsDataLoss(chunks.status()));
      outcome = Outcome::kPayloadRefused;
    }
  }
  return outcome;
}

std::vector<std::string> DatabaseFiles(const std::string& directory) {
  std::vector<std::string> files;
  for (const std::string& path : FilesWithSuffix(directory + "/db", "")) {
    if (absl::EndsWith(path, ".sst") || absl::EndsWith(path, ".log") ||
        absl::StrContains(path, "MANIFEST") || absl::EndsWith(path, "CURRENT")) {
      files.push_back(std::filesystem::path(path).filename().string());
    }
  }
  return files;
}

// Applies `damage` to a copy of the journal's file and opens it.
template <typename Damage>
Outcome Try(const TempDir& dir, const std::string& file, const Damage& damage) {
  const std::string directory = dir / "damaged";
  CopyTree(dir / "killed", directory);
  damage(directory + "/" + file);
  const Outcome outcome = OpenDamaged(directory);
  std::filesystem::remove_all(directory);
  return outcome;
}

TEST_CASE("C03 a flipped bit anywhere is found, or harms nothing") {
  const uint64_t seed = testing::TestSeed("flip");
  std::mt19937_64 random(seed);
  TempDir dir;
  MakeJournal(dir / "live", dir / "killed");
  int counts[3] = {0, 0, 0};
  for (const std::string& name : DatabaseFiles(dir / "killed")) {
    const uint64_t size = std::filesystem::file_size(dir / "killed/db/" + name);
    for (int flip = 0; flip < 4 && size > 0; ++flip) {
      const uint64_t at = random() % size;
      const int bit = static_cast<int>(random() % 8);
      INFO(name << " byte " << at << " bit " << bit << " seed " << seed);
      const Outcome outcome = Try(dir, "db/" + name, [&](const std::string& path) {
        std::string content = ReadWholeFile(path);
        content[at] = static_cast<char>(content[at] ^ (1 << bit));
        WriteWholeFile(path, content);
      });
      ++counts[static_cast<int>(outcome)];
    }
  }
  std::cout << "refused " << counts[0] << ", payload refused " << counts[1] << ", harmless "
            << counts[2] << std::endl;
  REQUIRE(counts[0] > 0);
  REQUIRE(counts[1] > 0);
}

TEST_CASE("C03 a flipped bit in a record in the WAL is refused") {
  TempDir dir;
  MakeJournal(dir / "live", dir / "killed");
  // Records 11 and 12 are there; 11 is not the last one.
  const std::string wal =
      std::filesystem::path(FilesWithSuffix(dir / "killed/db", ".log").back()).filename().string();
  for (const char* body : {"record 11", "record 12"}) {
    const Outcome outcome = Try(dir, "db/" + wal, [&](const std::string& path) {
      std::string content = ReadWholeFile(path);
      const size_t at = content.find(body);
      REQUIRE(at != std::string::npos);
      content[at] ^= 1;
      WriteWholeFile(path, content);
    });
    REQUIRE(outcome == Outcome::kRefused);
  }
}

TEST_CASE("C03 damage in a manifest before what was acknowledged is refused") {
  TempDir dir;
  MakeJournal(dir / "live", dir / "killed");
  // Its last entry names the file with the payload of the last record.
  const std::string manifest = "db/" + testing::ManifestName(dir / "killed/db");
  const uint64_t size = std::filesystem::file_size(dir / "killed/" + manifest);
  const uint64_t step = std::max<uint64_t>(1, size / 30);
  for (uint64_t at = size - 1; at < size; at -= step) {
    for (const bool zero : {false, true}) {
      INFO(manifest << " byte " << at << " of " << size
                    << (zero ? " and the next 19 to zero" : ""));
      const Outcome outcome = Try(dir, manifest, [&](const std::string& path) {
        std::string content = ReadWholeFile(path);
        if (zero) {
          const uint64_t bytes = std::min<uint64_t>(20, size - at);
          content.replace(at, bytes, bytes, '\0');
        } else {
          content[at] = static_cast<char>(~content[at]);
        }
        WriteWholeFile(path, content);
      });
      REQUIRE(outcome == Outcome::kRefused);
    }
  }
}

TEST_CASE("C03 a missing file is refused") {
  TempDir dir;
  MakeJournal(dir / "live", dir / "killed");
  for (const std::string& name : DatabaseFiles(dir / "killed")) {
    INFO(name);
    const Outcome outcome =
        Try(dir, "db/" + name, [](const std::string& path) { std::filesystem::remove(path); });
    REQUIRE(outcome == Outcome::kRefused);
  }
  REQUIRE(Try(dir, "witness", [](const std::string& path) { std::filesystem::remove(path); }) ==
          Outcome::kRefused);
  REQUIRE(Try(dir, "db", [](const std::string& path) { std::filesystem::remove_all(path); }) ==
          Outcome::kRefused);
}

TEST_CASE("C03 a file that lacks its end is refused, or lacks nothing that matters") {
  const uint64_t seed = testing::TestSeed("truncate");
  std::mt19937_64 random(seed);
  TempDir dir;
  MakeJournal(dir / "live", dir / "killed");
  for (const std::string& name : DatabaseFiles(dir / "killed")) {
    const uint64_t size = std::filesystem::file_size(dir / "killed/db/" + name);
    for (const uint64_t cut : {uint64_t{1}, 1 + random() % 400, size / 2, size}) {
      if (cut > size) continue;
      INFO(name << " cut by " << cut << " of " << size << " seed " << seed);
      const Outcome outcome = Try(dir, "db/" + name, [&](const std::string& path) {
        std::filesystem::resize_file(path, size - cut);
      });
      const bool manifest = absl::StartsWith(name, "MANIFEST");
      // CURRENT without its line feed alone is refused by RocksDB.
      if (!manifest || cut >= size / 2) REQUIRE(outcome == Outcome::kRefused);
    }
  }
}

TEST_CASE("C03 a witness of another state is refused where it names more") {
  TempDir dir;
  MakeJournal(dir / "live", dir / "killed");
  // The database is older than the witness: somebody restored it alone.
  CopyTree(dir / "killed", dir / "newer");
  {
    auto journal = Journal::Open(dir / "newer", {}).value();
    REQUIRE_OK(testing::CommitRecord(*journal, "one more"));
  }
  REQUIRE(Try(dir, "witness", [&](const std::string& path) {
            WriteWholeFile(path, ReadWholeFile(dir / "newer/witness"));
          }) == Outcome::kRefused);
  // As many records, but others.
  std::filesystem::create_directory(dir / "other");
  {
    auto journal = Journal::Create(dir / "other", testing::Record("another base")).value();
    for (uint64_t n = 1; n < kRecords; ++n) REQUIRE_OK(testing::CommitRecord(*journal, "x"));
  }
  REQUIRE(Try(dir, "witness", [&](const std::string& path) {
            WriteWholeFile(path, ReadWholeFile(dir / "other/witness"));
          }) == Outcome::kRefused);
}

}  // namespace
}  // namespace wstore
