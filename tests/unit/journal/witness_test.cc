#include "journal/witness.h"

#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/journal/faulty_file_system.h"
#include "tests/unit/journal/journal_testing.h"

namespace wstore::journal {
namespace {

using testing::Fault;
using testing::FaultyFileSystem;
using testing::ReadWholeFile;
using testing::TempDir;
using testing::WriteWholeFile;

WitnessState State(uint64_t n) {
  WitnessState state;
  state.records = n;
  state.last_digest = Sha256().UpdateU64(n).Finish();
  state.marks = {n * 2, n * 3, n * 5};
  return state;
}

struct Fixture {
  Fixture() { std::filesystem::create_directory(dir / "stage"); }

  std::unique_ptr<Witness> Replace(const WitnessReading& reading) {
    auto witness = Witness::Replace(rocksdb::FileSystem::Default(), paths, reading);
    REQUIRE_OK(witness);
    return *std::move(witness);
  }
  absl::StatusOr<WitnessReading> Read() {
    return ReadWitness(*rocksdb::FileSystem::Default(), paths.witness);
  }
  // The file after states 1, 2, ... n were written to a new witness.
  std::string After(uint64_t n) {
    auto witness = Replace({});
    for (uint64_t i = 1; i <= n; ++i) REQUIRE_OK(witness->Write(State(i)));
    return ReadWholeFile(paths.witness);
  }

  TempDir dir;
  Paths paths{dir.path()};
};

TEST_CASE("The witness holds what was written last") {
  Fixture f;
  REQUIRE_ERROR(f.Read(), absl::StatusCode::kNotFound, "witness");
  auto witness = f.Replace({});
  REQUIRE(f.Read()->state == WitnessState());
  uint64_t generation = f.Read()->generation;
  for (uint64_t n = 1; n < 6; ++n) {
    REQUIRE_OK(witness->Write(State(n)));
    REQUIRE(f.Read()->state == State(n));
    REQUIRE(f.Read()->generation > generation);
    generation = f.Read()->generation;
  }
  // Another process goes on.
  witness = f.Replace(*f.Read());
  REQUIRE(f.Read()->state == State(5));
  REQUIRE(f.Read()->generation > generation);
  REQUIRE(std::filesystem::file_size(f.paths.witness) == kWitnessBytes);
}

TEST_CASE("The worked example of the format document") {
  WitnessReading reading;
  reading.generation = 7;
  reading.state.records = 3;
  for (size_t i = 0; i < 32; ++i) reading.state.last_digest.bytes[i] = static_cast<uint8_t>(i);
  reading.state.marks = {5, 2, 4};
  const std::string expected =
      "5753545749544e53"
      "01000000"
      "00000000"
      "0700000000000000"
      "0300000000000000"
      "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
      "0500000000000000"
      "0200000000000000"
      "0400000000000000"
      "653ac533fe1373cc";
  std::string hex;
  for (const char c : EncodeWitness(reading)) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex.push_back(kDigits[static_cast<uint8_t>(c) >> 4]);
    hex.push_back(kDigits[static_cast<uint8_t>(c) & 15]);
  }
  REQUIRE(hex == expected);
}

TEST_CASE("One bad block takes nothing with it") {
  Fixture f;
  for (const uint64_t writes : {1, 2, 3, 4}) {
    const std::string good = f.After(writes);
    for (size_t block = 0; block < 4; ++block) {
      for (const size_t byte : {0, 8, 16, 24, 40, 64, 87, 88, 95}) {
        std::string bad = good;
        bad[block * kWitnessBlockBytes + byte] ^= 4;
        WriteWholeFile(f.paths.witness, bad);
        REQUIRE_OK(f.Read());
        REQUIRE(f.Read()->state == State(writes));
      }
    }
  }
}

TEST_CASE("A torn update leaves the state before") {
  Fixture f;
  const std::string before = f.After(4);
  const std::string after = f.After(5);
  for (size_t slot = 0; slot < 2; ++slot) {
    const size_t start = slot * 2 * kWitnessBlockBytes;
    if (before.substr(start, 2 * kWitnessBlockBytes) ==
        after.substr(start, 2 * kWitnessBlockBytes)) {
      continue;
    }
    for (size_t size = 0; size <= 2 * kWitnessBlockBytes; size += 7) {
      std::string torn = before;
      torn.replace(start, size, after.substr(start, size));
      WriteWholeFile(f.paths.witness, torn);
      REQUIRE_OK(f.Read());
      const WitnessState state = f.Read()->state;
      // A first copy that is whole counts already.
      REQUIRE((size >= 96 ? state == State(5) : state == State(4)));
    }
    std::string zeros = before;
    zeros.replace(start, 2 * kWitnessBlockBytes, 2 * kWitnessBlockBytes, '\0');
    WriteWholeFile(f.paths.witness, zeros);
    REQUIRE(f.Read()->state == State(4));
  }
}

TEST_CASE("A witness without a valid block is damage, one of a later format is refused") {
  Fixture f;
  const std::string good = f.After(3);
  std::string bad = good;
  for (size_t block = 0; block < 4; ++block) bad[block * kWitnessBlockBytes + 20] ^= 1;
  WriteWholeFile(f.paths.witness, bad);
  REQUIRE_ERROR(f.Read(), absl::StatusCode::kDataLoss, "none of its blocks is valid");
  for (const size_t size : {0, 50, 95}) {
    WriteWholeFile(f.paths.witness, good.substr(0, size));
    REQUIRE_ERROR(f.Read(), absl::StatusCode::kDataLoss, "none of its blocks is valid");
  }
}

TEST_CASE("After a failed sync the witness moves to a new file") {
  TempDir dir;
  std::filesystem::create_directory(dir / "stage");
  const Paths paths(dir.path());
  // Each operation eight times, since what a power failure leaves is a matter of luck.
  bool fired = true;
  for (uint64_t round = 0; fired || round % 8 != 0; ++round) {
    const uint64_t operation = 1 + round / 8;
    const auto fs =
        std::make_shared<FaultyFileSystem>(Fault::kErrorOnce, operation, dir / "graveyard");
    auto witness = Witness::Replace(fs, paths, {});
    uint64_t last_good = 0;
    if (witness.ok()) {
      for (uint64_t n = 1; n <= 4; ++n) {
        if ((*witness)->Write(State(n)).ok()) last_good = n;
        const auto reading = ReadWitness(*fs, paths.witness);
        REQUIRE_OK(reading);
        REQUIRE(reading->state.records >= last_good);
        REQUIRE(reading->state.records <= n);
      }
      // One operation failed, so the write after it does not.
      if (last_good < 4) REQUIRE_OK((*witness)->Write(State(4)));
      // And it is on the disk.
      witness->reset();
      fs->LosePower(round);
      const auto reading = ReadWitness(*fs, paths.witness);
      REQUIRE_OK(reading);
      REQUIRE(reading->state == State(4));
    }
    fired = fs->fired();
    std::filesystem::remove_all(dir / "graveyard");
  }
}

}  // namespace
}  // namespace wstore::journal
