// A small model in a temporary directory, a store on it, and plain copies of what every version
// must be.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/naive_safetensors.h"
#include "tests/support/temp_dir.h"
#include "wstore/store.h"

namespace wstore::testing {

inline uint64_t WidthOf(const NaiveTensor& tensor) {
  return StorageElementBytes(*ParseDtype(tensor.dtype));
}

class StoreFixture {
 public:
  explicit StoreFixture(uint64_t seed = 1) : random_(seed) {
    std::filesystem::create_directory(directory_ / "base");
    model_ = {
        {"embed.weight", {"BF16", {1000, 96}, RandomBytes(random_, 1000 * 96 * 2)}},
        {"layer.0.bias", {"F32", {96}, RandomBytes(random_, 96 * 4)}},
        {"layer.0.weight", {"BF16", {96, 96}, RandomBytes(random_, 96 * 96 * 2)}},
        {"layer.1.codes", {"I8", {70000}, RandomBytes(random_, 70000)}},
        {"layer.1.empty", {"F16", {0, 4}, ""}},
        {"layer.1.fp8", {"F8_E4M3", {33, 3}, RandomBytes(random_, 99)}},
        {"layer.1.packed", {"F4", {6, 4}, RandomBytes(random_, 12)}},
        {"step", {"I64", {}, RandomBytes(random_, 8)}},
    };
    WriteFile(base_file(), NaiveWrite(model_, NamesOf(model_), {{"format", "pt"}}));
    WriteFile(directory_ / "base/config.json", "{\"model_type\":\"test\"}\n");
    CreateOptions options;
    options.actor = "tester";
    auto created = Store::Create(store_path(), directory_ / "base", options);
    REQUIRE_OK(created);
    store_ = *std::move(created);
    versions_[0] = model_;
  }

  std::string store_path() const { return directory_ / "store"; }
  std::string base_file() const { return directory_ / "base/model.safetensors"; }
  std::string path(const std::string& name) const { return directory_ / name; }
  Store& store() { return *store_; }
  std::mt19937_64& random() { return random_; }
  const NaiveTensors& version(uint64_t version) const { return versions_.at(version); }

  void CloseStore() { store_.reset(); }
  void Reopen(bool read_only = false) {
    OpenOptions options;
    options.read_only = read_only;
    options.actor = "tester";
    Reopen(options);
  }
  void Reopen(const OpenOptions& options) {
    store_.reset();
    auto opened = Store::Open(store_path(), options);
    REQUIRE_OK(opened);
    store_ = *std::move(opened);
  }

  // The model with about `density` of its bytes changed.
  NaiveTensors Changed(const NaiveTensors& from, double density) {
    NaiveTensors to = from;
    std::uniform_real_distribution<double> uniform;
    for (auto& [name, tensor] : to) {
      for (char& byte : tensor.bytes) {
        if (uniform(random_) < density) byte = static_cast<char>(byte ^ (1 + random_() % 255));
      }
    }
    return to;
  }

  // Writes a checkpoint and returns its path.
  std::string Checkpoint(const NaiveTensors& tensors) {
    const std::string path = directory_ / "new-" + std::to_string(next_file_++) + ".safetensors";
    WriteFile(path, NaiveWrite(tensors, NamesOf(tensors)));
    return path;
  }

  absl::StatusOr<CommitResult> Publish(const NaiveTensors& tensors, BeginOptions options = {}) {
    auto transaction = store_->Begin(options);
    if (!transaction.ok()) return transaction.status();
    const absl::Status set = (*transaction)->SetCheckpoint(Checkpoint(tensors));
    if (!set.ok()) return set;
    auto result = (*transaction)->Commit();
    if (result.ok() && result->outcome == CommitResult::Outcome::kCommitted) {
      versions_[result->version.value()] = tensors;
    }
    return result;
  }

  // Without the refused attempts.
  std::vector<MoveInfo> CommittedMoves() const {
    std::vector<MoveInfo> moves = store_->moves();
    std::erase_if(moves, [](const MoveInfo& move) { return move.outcome != "committed"; });
    return moves;
  }

  // The tensors of a version as the store exports them.
  NaiveTensors Exported(uint64_t version) {
    const std::string out = directory_ / "export-" + std::to_string(next_file_++);
    ExportOptions options;
    options.directory = out;
    REQUIRE_OK(store_->Export(VersionId(version), options));
    const NaiveTensors tensors = NaiveRead(ReadFile(out + "/model.safetensors"));
    std::filesystem::remove_all(out);
    return tensors;
  }

  // Every committed version has exactly the bits that were published, and its digests and sums
  // hold.
  void RequireAllVersions() {
    for (const auto& [version, tensors] : versions_) {
      INFO("v" << version);
      REQUIRE((Exported(version) == tensors));
    }
    VerifyOptions options;
    options.all = true;
    const auto report = store_->Verify(options);
    REQUIRE_OK(report);
    for (const VerifyProblem& problem : report->problems) INFO(problem.what);
    REQUIRE(report->ok());
    REQUIRE(report->checked.size() == store_->versions().size());
  }

 private:
  TempDir directory_;
  std::mt19937_64 random_;
  NaiveTensors model_;
  std::unique_ptr<Store> store_;
  std::map<uint64_t, NaiveTensors> versions_;
  int next_file_ = 0;
};

}  // namespace wstore::testing
