#include "transfer/replica/host_backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "transfer/replica/cell_memory.h"
#include "transfer/replica/host_batch.h"
#include "transfer/replica/host_kernels.h"
#include "transfer/replica/worker_pool.h"

namespace wstore {
namespace {

// A turn of an audit: cells are read in stretches of this many checkpoint elements.
constexpr uint64_t kAuditElements = 1 << 20;
// And so many stretches a worker, before others who want the workers get them.
constexpr uint64_t kAuditRound = 16;

// More of them are no faster at what memory limits, and each has memory of its own.
constexpr int kMostThreads = 32;

struct Stretch {
  uint32_t cell;
  uint64_t begin;
};

// Memory of one worker.
struct Scratch {
  std::array<Batch, 2> batches;
  std::vector<uint8_t> packed = std::vector<uint8_t>(kBatchBytes);
  // The elements of a tile, for sums that want them in place.
  std::vector<uint8_t> tile = std::vector<uint8_t>(kTileElements * 8);
  std::vector<uint16_t> offsets;
  std::vector<uint8_t> values;
};

// Elements of a slice do not always fill whole words.
void ClearPadding(const GroupSlice& slice, uint8_t* packed) {
  const size_t size = slice.size_bytes();
  if (size % 8 != 0) std::memset(packed + size, 0, Batch::PackedBytes(slice) - size);
}

// Half of a batch's lines, handed out to a pass over the batch before it.
class LinesAhead {
 public:
  LinesAhead(const Batch& batch, size_t first)
      : batch_(batch), next_(first), end_(std::min(first + kBatchLines / 2, batch.line_count)) {}

  // Those to be asked for along a pass over `slice`, one with every second element; null if there
  // are none. There may be too few: then stale addresses follow.
  uint8_t* const* For(const GroupSlice& slice) {
    if (slice.is_dense() || next_ >= end_) return nullptr;
    const size_t at = next_;
    next_ += slice.count / 2;
    return &batch_.lines[at];
  }
  // All that are left.
  void Finish() {
    for (; next_ < end_; ++next_) __builtin_prefetch(batch_.lines[next_], 1, 3);
  }

 private:
  const Batch& batch_;
  size_t next_;
  const size_t end_;
};

absl::Status Closed() { return absl::AbortedError("the weights are about to be written or moved"); }

class HostBackend final : public MemoryBackend {
 public:
  explicit HostBackend(int threads)
      : pool_(threads > 0 ? threads : std::min(DefaultParallelism(), kMostThreads)) {}

  absl::Status Bind(std::shared_ptr<const Plan> plan,
                    absl::Span<const LocalBuffer> buffers) override;
  void Unbind() override { buffers_.clear(); }
  absl::Status AcceptPiece(StagedPiece*) override { return absl::OkStatus(); }
  // The host reads them where they are.
  absl::Status DecodeChunks(const std::shared_ptr<const Plan>&, bool, absl::Span<const DeviceChunk>,
                            absl::Span<std::optional<DecodedChunk>>) override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::string_view> ReadChunk(const DeviceChunk& chunk, std::string*) override {
    return std::string_view(static_cast<const char*>(chunk.data), chunk.size_bytes);
  }
  absl::Status FetchColumns(StagedPiece*) override { return absl::OkStatus(); }
  absl::Status Read(const MemoryPass& pass, absl::Span<Unit> units,
                    absl::Span<TouchedSums> group_sums) override;
  absl::Status Prepare(absl::Span<const Unit>) override { return absl::OkStatus(); }
  absl::Status Exchange(absl::Span<const Unit> units, absl::Span<UnitOutcome> outcomes) override;
  absl::Status Audit(const MemoryPass& pass, absl::Span<Fingerprint> cells) override;
  absl::Status Load(const DenseSource& source) override;

 private:
  // Sums bits in the order in which they are staged. Padding between slices is zero.
  void AddPacked(const std::vector<uint8_t>& packed, size_t size, uint64_t batch,
                 Fingerprint* sum) const {
    *sum += packed_sums_->Sum(batch * kBatchBytes, absl::MakeConstSpan(packed.data(), size));
  }
  void ReadUnit(Scratch* scratch, Unit* unit, TouchedSums* group_sums) const;
  void AddTouched(Scratch* scratch, const GroupSlice& slice, const uint8_t* packed,
                  TouchedSums* sums) const;
  void ExchangeUnit(Scratch* scratch, const Unit& unit, UnitOutcome* outcome) const;
  absl::Status LoadSpan(const DenseSource& source, uint32_t span, uint8_t* tile_bytes) const;

  WorkerPool pool_;
  std::vector<Scratch> scratch_;  // by worker
  std::shared_ptr<const Plan> plan_;
  std::vector<uint8_t*> buffers_;
  std::unique_ptr<TensorFingerprinter> packed_sums_;
};

absl::Status HostBackend::Bind(std::shared_ptr<const Plan> plan,
                               absl::Span<const LocalBuffer> buffers) {
  std::vector<uint8_t*> addresses;
  addresses.reserve(buffers.size());
  for (const LocalBuffer& buffer : buffers) addresses.push_back(static_cast<uint8_t*>(buffer.data));
  auto packed_sums = std::make_unique<TensorFingerprinter>(plan->key(), "");
  if (scratch_.empty()) scratch_ = std::vector<Scratch>(pool_.workers());
  plan_ = std::move(plan);
  buffers_ = std::move(addresses);
  packed_sums_ = std::move(packed_sums);
  return absl::OkStatus();
}

// --- Updates ---

void HostBackend::AddTouched(Scratch* scratch, const GroupSlice& slice, const uint8_t* packed,
                             TouchedSums* sums) const {
  const TensorFingerprinter& fingerprinter = plan_->fingerprinter(plan_->cell(slice.group->cell));
  const uint64_t first_element = slice.group->tile * kTileElements;
  const uint32_t width = slice.element_bytes;
  if (slice.group->form != PlaceForm::kDense) {
    const absl::Span<const uint16_t> offsets = slice.offsets();
    for (uint32_t i = 0; i < slice.count; ++i) {
      std::memcpy(&scratch->tile[size_t{offsets[i]} * width], packed + size_t{i} * width, width);
    }
    *sums +=
        fingerprinter.Touched(first_element, width, offsets, scratch->tile.data(), slice.values());
    return;
  }
  const uint32_t first_offset = slice.group->offsets_at + slice.first;
  const uint8_t* const values = slice.values();
  constexpr std::array<uint8_t, 8> kZero{};
  scratch->offsets.clear();
  scratch->values.clear();
  std::memcpy(&scratch->tile[size_t{first_offset} * width], packed, size_t{slice.count} * width);
  for (uint32_t i = 0; i < slice.count; ++i) {
    const uint8_t* const value = values + size_t{i} * width;
    if (std::memcmp(value, kZero.data(), width) == 0) continue;
    scratch->offsets.push_back(static_cast<uint16_t>(first_offset + i));
    scratch->values.insert(scratch->values.end(), value, value + width);
  }
  *sums += fingerprinter.Touched(first_element, width, scratch->offsets, scratch->tile.data(),
                                 scratch->values.data());
}

void HostBackend::ReadUnit(Scratch* scratch, Unit* unit, TouchedSums* group_sums) const {
  BatchReader reader(*plan_, buffers_, *unit);
  Batch& batch = scratch->batches[0];
  std::vector<uint8_t>& packed = scratch->packed;
  TouchedSums expected;
  for (uint64_t number = 0; reader.Next(&batch); ++number) {
    batch.ForEach([&](const GroupSlice& slice, size_t at) {
      ClearPadding(slice, &packed[at]);
      Gather(slice, nullptr, &packed[at]);
      AddTouched(scratch, slice, &packed[at], &group_sums[slice.group - unit->groups().data()]);
    });
    AddPacked(packed, batch.packed_bytes, number, &expected.before);
    batch.ForEach([&](const GroupSlice& slice, size_t at) {
      const uint8_t* const values = slice.values();
      for (size_t i = 0; i < size_t{slice.count} * slice.element_bytes; ++i) {
        packed[at + i] ^= values[i];
      }
    });
    AddPacked(packed, batch.packed_bytes, number, &expected.after);
  }
  unit->expected = expected;
}

absl::Status HostBackend::Read(const MemoryPass& pass, absl::Span<Unit> units,
                               absl::Span<TouchedSums> group_sums) {
  if (!pass.Enter()) return Closed();
  const auto leave = absl::MakeCleanup([&pass] { pass.Leave(); });
  std::vector<uint64_t> first_group(units.size());
  uint64_t groups = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    first_group[i] = groups;
    groups += units[i].group_count;
  }
  std::atomic<bool> is_closed{false};
  pool_.Run(units.size(), [&](int worker, uint64_t i) {
    if (pass.is_over()) {
      is_closed.store(true, std::memory_order_relaxed);
    } else {
      ReadUnit(&scratch_[worker], &units[i], &group_sums[first_group[i]]);
    }
  });
  return is_closed.load(std::memory_order_relaxed) ? Closed() : absl::OkStatus();
}

void HostBackend::ExchangeUnit(Scratch* scratch, const Unit& unit, UnitOutcome* outcome) const {
  BatchReader reader(*plan_, buffers_, unit);
  std::array<Batch, 2>& batches = scratch->batches;
  std::vector<uint8_t>& packed = scratch->packed;
  bool more = reader.Next(&batches[0]);
  for (uint64_t number = 0; more; ++number) {
    const Batch& batch = batches[number % 2];
    Batch& next = batches[(number + 1) % 2];
    more = reader.Next(&next);
    next.LocateLines();
    // Half of the next batch is asked for along each pass over this one.
    LinesAhead ahead(next, 0);
    batch.ForEach([&](const GroupSlice& slice, size_t at) {
      ClearPadding(slice, &packed[at]);
      GatherAndXor(slice, ahead.For(slice), &packed[at]);
    });
    ahead.Finish();
    AddPacked(packed, batch.packed_bytes, number, &outcome->found.before);
    // What follows is read from memory again, not remembered.
    asm volatile("" ::: "memory");
    LinesAhead rest(next, kBatchLines / 2);
    batch.ForEach(
        [&](const GroupSlice& slice, size_t at) { Gather(slice, rest.For(slice), &packed[at]); });
    rest.Finish();
    AddPacked(packed, batch.packed_bytes, number, &outcome->found.after);
  }
  outcome->progress = UnitProgress::kExchanged;
}

absl::Status HostBackend::Exchange(absl::Span<const Unit> units, absl::Span<UnitOutcome> outcomes) {
  pool_.Run(units.size(), [&](int worker, uint64_t i) {
    ExchangeUnit(&scratch_[worker], units[i], &outcomes[i]);
  });
  return absl::OkStatus();
}

// --- Whole cells ---

absl::Status HostBackend::Audit(const MemoryPass& pass, absl::Span<Fingerprint> cells) {
  if (!pass.Enter()) return Closed();
  const auto leave = absl::MakeCleanup([&pass] { pass.Leave(); });
  std::vector<Stretch> stretches;
  for (uint32_t i = 0; i < plan_->cells().size(); ++i) {
    const PlannedCell& cell = plan_->cell(i);
    for (uint64_t at = cell.begin; at < cell.end; at += kAuditElements)
      stretches.push_back({i, at});
  }
  std::vector<Fingerprint> sums(stretches.size());
  const uint64_t round = kAuditRound * pool_.workers();
  for (uint64_t first = 0; first < stretches.size(); first += round) {
    pool_.Run(std::min(round, stretches.size() - first), [&](int worker, uint64_t i) {
      const Stretch& stretch = stretches[first + i];
      const PlannedCell& cell = plan_->cell(stretch.cell);
      if (pass.is_over()) return;
      sums[first + i] =
          SumCell(plan_->fingerprinter(cell), cell, buffers_[cell.box->buffer], stretch.begin,
                  std::min(cell.end, stretch.begin + kAuditElements), &scratch_[worker].tile);
    });
    if (pass.is_over()) return Closed();
  }
  std::fill(cells.begin(), cells.end(), Fingerprint());
  for (size_t i = 0; i < stretches.size(); ++i) cells[stretches[i].cell] += sums[i];
  return absl::OkStatus();
}

absl::Status HostBackend::LoadSpan(const DenseSource& source, uint32_t span,
                                   uint8_t* tile_bytes) const {
  const Manifest& manifest = plan_->manifest();
  const uint64_t first = uint64_t{span} * kSpanTiles;
  std::unique_ptr<SpanTiles> tiles;
  for (uint64_t i = first; i < std::min(first + kSpanTiles, manifest.tiles()); ++i) {
    const TilePlace place = manifest.PlaceOf(i);
    const uint64_t begin = place.tile * kTileElements;
    const uint64_t end = begin + manifest.TileElements(place);
    const absl::Span<const uint32_t> cells = plan_->CellsNear(place.tensor, begin, end);
    if (cells.empty()) continue;
    if (tiles == nullptr) {
      ASSIGN_OR_RETURN(tiles, source.OpenSpan(span));
    }
    RETURN_IF_ERROR(tiles->ReadTile(place, tile_bytes));
    for (const uint32_t cell : cells) {
      const PlannedCell& planned = plan_->cell(cell);
      WriteCell(planned, tile_bytes, begin, end, buffers_[planned.box->buffer]);
    }
  }
  return absl::OkStatus();
}

absl::Status HostBackend::Load(const DenseSource& source) {
  std::mutex mutex;
  absl::Status status;
  pool_.Run(plan_->manifest().spans(), [&](int worker, uint64_t span) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (!status.ok()) return;
    }
    const absl::Status loaded =
        LoadSpan(source, static_cast<uint32_t>(span), scratch_[worker].tile.data());
    std::lock_guard<std::mutex> lock(mutex);
    status.Update(loaded);
  });
  return status;
}

}  // namespace

std::shared_ptr<MemoryBackend> MakeHostBackend(int threads) {
  return std::make_shared<HostBackend>(threads);
}

}  // namespace wstore
