// A backend that fails when told to: the Nth write of a unit is refused, lost, wrong, or of unknown
// progress.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "common/status_macros.h"
#include "transfer/replica/backend.h"

namespace wstore::testing {

enum class WriteFault {
  kRefused,    // the unit and all behind it are not written
  kUnknown,    // the unit is written, or not (every other time), and nobody knows
  kMisread,    // the unit is written, but other bits are read back
  kCorrupted,  // the unit is written, and then a bit of memory flips before it is read back
};

// A call of the backend other than Exchange.
enum class BackendCall { kBind, kAcceptPiece, kFetchColumns, kRead, kPrepare, kAudit, kLoad };

// Writes units one by one through another backend.
class FaultyBackend final : public MemoryBackend {
 public:
  explicit FaultyBackend(std::shared_ptr<MemoryBackend> inner) : inner_(std::move(inner)) {}

  // The nth write of a unit from now on (from 1) fails, and if `for_ever` all after it.
  void FailWrite(uint64_t nth, WriteFault fault, bool for_ever) {
    countdown_ = nth;
    fault_ = fault;
    for_ever_ = for_ever;
  }
  // Every call of this kind fails, until the backend is healed.
  void Fail(BackendCall call, absl::Status status) {
    failing_ = call;
    status_ = std::move(status);
  }
  // The nth call or write of a unit, whatever it is, fails, and if `for_ever` all after it. None of
  // them is begun.
  void FailAny(uint64_t nth, bool for_ever) {
    any_countdown_ = nth;
    any_for_ever_ = for_ever;
  }
  void Heal() {
    countdown_ = 0;
    any_countdown_ = 0;
    status_ = absl::OkStatus();
  }
  bool has_failed() const { return has_failed_; }
  // Flips a bit in the memory of the unit that is being written.
  void set_corrupt(std::function<void()> corrupt) { corrupt_ = std::move(corrupt); }

  absl::Status Bind(std::shared_ptr<const Plan> plan,
                    absl::Span<const LocalBuffer> buffers) override {
    RETURN_IF_ERROR(Check(BackendCall::kBind));
    return inner_->Bind(std::move(plan), buffers);
  }
  void Unbind() override { inner_->Unbind(); }
  absl::Status AcceptPiece(StagedPiece* piece) override {
    RETURN_IF_ERROR(Check(BackendCall::kAcceptPiece));
    return inner_->AcceptPiece(piece);
  }
  // Fails with AcceptPiece, which it stands for.
  absl::Status DecodeChunks(const std::shared_ptr<const Plan>& plan, bool allow_dense,
                            absl::Span<const DeviceChunk> chunks,
                            absl::Span<std::optional<DecodedChunk>> decoded) override {
    RETURN_IF_ERROR(Check(BackendCall::kAcceptPiece));
    return inner_->DecodeChunks(plan, allow_dense, chunks, decoded);
  }
  absl::StatusOr<std::string_view> ReadChunk(const DeviceChunk& chunk, std::string* room) override {
    return inner_->ReadChunk(chunk, room);
  }
  absl::Status FetchColumns(StagedPiece* piece) override {
    RETURN_IF_ERROR(Check(BackendCall::kFetchColumns));
    return inner_->FetchColumns(piece);
  }
  absl::Status Read(const MemoryPass& pass, absl::Span<Unit> units,
                    absl::Span<TouchedSums> group_sums) override {
    RETURN_IF_ERROR(Check(BackendCall::kRead));
    return inner_->Read(pass, units, group_sums);
  }
  absl::Status Prepare(absl::Span<const Unit> units) override {
    RETURN_IF_ERROR(Check(BackendCall::kPrepare));
    return inner_->Prepare(units);
  }
  absl::Status Exchange(absl::Span<const Unit> units, absl::Span<UnitOutcome> outcomes) override {
    for (size_t i = 0; i < units.size(); ++i) {
      if (CountsDown(any_countdown_, any_for_ever_)) {
        return absl::InternalError("the device refused a write");
      }
      const auto unit = units.subspan(i, 1);
      const auto outcome = outcomes.subspan(i, 1);
      RETURN_IF_ERROR(CountsDown(countdown_, for_ever_) ? FailUnit(unit, outcome)
                                                        : inner_->Exchange(unit, outcome));
    }
    return absl::OkStatus();
  }
  absl::Status Audit(const MemoryPass& pass, absl::Span<Fingerprint> cells) override {
    RETURN_IF_ERROR(Check(BackendCall::kAudit));
    return inner_->Audit(pass, cells);
  }
  absl::Status Load(const DenseSource& source) override {
    RETURN_IF_ERROR(Check(BackendCall::kLoad));
    return inner_->Load(source);
  }

 private:
  bool CountsDown(uint64_t& countdown, bool for_ever) {
    if (countdown == 0 || --countdown > 0) return false;
    if (for_ever) countdown = 1;
    has_failed_ = true;
    return true;
  }

  absl::Status Check(BackendCall call) {
    if (!status_.ok() && call == failing_) return status_;
    if (CountsDown(any_countdown_, any_for_ever_)) return absl::InternalError("the device is busy");
    return absl::OkStatus();
  }

  absl::Status FailUnit(absl::Span<const Unit> unit, absl::Span<UnitOutcome> outcome) {
    if (fault_ == WriteFault::kRefused) return absl::InternalError("the device refused a write");
    if (fault_ == WriteFault::kUnknown) {
      ++unknowns_;
      if (unknowns_ % 2 == 1) {
        RETURN_IF_ERROR(inner_->Exchange(unit, outcome));
      }
      outcome[0].progress = UnitProgress::kUnknown;
      return absl::InternalError("the device is gone");
    }
    RETURN_IF_ERROR(inner_->Exchange(unit, outcome));
    outcome[0].found.after.lanes[0] += 1;
    if (fault_ == WriteFault::kCorrupted) corrupt_();
    return absl::OkStatus();
  }

  const std::shared_ptr<MemoryBackend> inner_;
  uint64_t countdown_ = 0;
  WriteFault fault_ = WriteFault::kRefused;
  bool for_ever_ = false;
  bool has_failed_ = false;
  uint64_t unknowns_ = 0;
  std::function<void()> corrupt_ = [] {};
  BackendCall failing_ = BackendCall::kBind;
  absl::Status status_;
  uint64_t any_countdown_ = 0;
  bool any_for_ever_ = false;
};

}  // namespace wstore::testing
