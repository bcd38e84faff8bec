#include <algorithm>
#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "transfer/cuda/buffer.h"
#include "transfer/cuda/cell_tables.h"
#include "transfer/cuda/chunk_stager.h"
#include "transfer/cuda/device_scope.h"
#include "transfer/cuda/piece_store.h"
#include "transfer/cuda/replica_kernels.h"
#include "transfer/replica/backend.h"
#include "wstore/cuda_replica.h"

namespace wstore {
namespace {

using cuda::CopyAsync;
using cuda::DeviceBuffer;
using cuda::PinnedBuffer;
using cuda::Synchronize;
using cuda::ZeroAsync;

// Readers look up from their work after so much of it: some half of a millisecond.
constexpr uint64_t kReadUnits = 1024;
constexpr uint64_t kReadGroups = 65536;
constexpr uint64_t kAuditStretches = 8192;
constexpr uint64_t kStretchBytes = 256 << 10;
constexpr uint64_t kFirstUnits = 4096;
static_assert(kFirstUnits >= kReadUnits);
// Calls that stage chunks at a time.
constexpr size_t kStagers = 2;

absl::Status Closed() { return absl::AbortedError("the weights are about to be written or moved"); }

Fingerprint ToFingerprint(const unsigned long long (&lanes)[2]) { return {{lanes[0], lanes[1]}}; }

TouchedSums ToSums(const cuda::SumsEntry& entry) {
  return {ToFingerprint(entry.before), ToFingerprint(entry.after)};
}

// What depends on where the weights are. Made whole, then put in place.
struct Binding {
  std::shared_ptr<const Plan> plan;
  DeviceBuffer<cuda::CellEntry> cells;
  DeviceBuffer<unsigned long long> multipliers;
  DeviceBuffer<cuda::CellStretch> stretches;
  DeviceBuffer<cuda::SumsEntry> cell_sums;
  PinnedBuffer<cuda::SumsEntry> host_cell_sums;
  uint64_t unit_key[2] = {0, 0};
};

// Every function is called by whatever thread the replica has, whose device may be another.
class CudaBackend final : public MemoryBackend {
 public:
  CudaBackend(const CudaBackendOptions& options, int device, cuda::PieceStore pieces)
      : device_(device),
        stream_(options.stream),
        memory_(options.memory),
        verify_writes_(options.verify_writes),
        pieces_(std::move(pieces)) {}

  absl::Status Reserve();

  absl::Status Bind(std::shared_ptr<const Plan> plan,
                    absl::Span<const LocalBuffer> buffers) override;
  void Unbind() override { binding_ = Binding(); }
  absl::Status AcceptPiece(StagedPiece* piece) override;
  absl::Status DecodeChunks(const std::shared_ptr<const Plan>& plan, bool allow_dense,
                            absl::Span<const DeviceChunk> chunks,
                            absl::Span<std::optional<DecodedChunk>> decoded) override;
  absl::StatusOr<std::string_view> ReadChunk(const DeviceChunk& chunk, std::string* room) override;
  absl::Status FetchColumns(StagedPiece* piece) override;
  absl::Status Read(const MemoryPass& pass, absl::Span<Unit> units,
                    absl::Span<TouchedSums> group_sums) override;
  absl::Status Prepare(absl::Span<const Unit> units) override;
  absl::Status Exchange(absl::Span<const Unit> units, absl::Span<UnitOutcome> outcomes) override;
  absl::Status Audit(const MemoryPass& pass, absl::Span<Fingerprint> cells) override;
  absl::Status Load(const DenseSource& source) override;

 private:
  absl::Status GrowUnits(uint64_t units);
  cuda::ReplicaTables Tables(uint64_t units, uint64_t groups) const;
  // Sends a table of units and zeroes their sums. Returns the number of their groups. With
  // unit_mutex_.
  absl::StatusOr<uint64_t> SendUnits(absl::Span<const Unit> units);
  absl::Status LoadSpan(const DenseSource& source, uint32_t span, uint64_t* loaded);

  const int device_;
  const CudaStream stream_;
  CudaMemory* const memory_;
  const bool verify_writes_;
  const cuda::PieceStore pieces_;
  Binding binding_;

  // Those that no call uses.
  std::mutex stager_mutex_;
  std::condition_variable stager_free_;
  std::vector<std::unique_ptr<cuda::ChunkStager>> stagers_;

  // Tables of units, of which a read needs few, and an exchange those that it was prepared for.
  std::mutex unit_mutex_;
  DeviceBuffer<cuda::UnitEntry> units_;
  PinnedBuffer<cuda::UnitEntry> host_units_;
  DeviceBuffer<cuda::SumsEntry> unit_sums_;
  PinnedBuffer<cuda::SumsEntry> host_unit_sums_;
  DeviceBuffer<cuda::SumsEntry> group_sums_;
  PinnedBuffer<cuda::SumsEntry> host_group_sums_;

  PinnedBuffer<uint8_t> dense_tiles_;  // two
};

absl::Status CudaBackend::GrowUnits(uint64_t units) {
  if (units <= units_.count()) return absl::OkStatus();
  const uint64_t count = std::max(units + units / 2, kFirstUnits);
  ASSIGN_OR_RETURN(auto entries, DeviceBuffer<cuda::UnitEntry>::Create(count, memory_, stream_));
  ASSIGN_OR_RETURN(auto host_entries, PinnedBuffer<cuda::UnitEntry>::Create(count));
  ASSIGN_OR_RETURN(auto sums, DeviceBuffer<cuda::SumsEntry>::Create(count, memory_, stream_));
  ASSIGN_OR_RETURN(auto host_sums, PinnedBuffer<cuda::SumsEntry>::Create(count));
  units_ = std::move(entries);
  host_units_ = std::move(host_entries);
  unit_sums_ = std::move(sums);
  host_unit_sums_ = std::move(host_sums);
  return absl::OkStatus();
}

absl::Status CudaBackend::Reserve() {
  ASSIGN_OR_RETURN(group_sums_,
                   DeviceBuffer<cuda::SumsEntry>::Create(kReadGroups, memory_, stream_));
  ASSIGN_OR_RETURN(host_group_sums_, PinnedBuffer<cuda::SumsEntry>::Create(kReadGroups));
  ASSIGN_OR_RETURN(dense_tiles_, PinnedBuffer<uint8_t>::Create(2 * kTileElements * 8));
  RETURN_IF_ERROR(GrowUnits(kFirstUnits));
  while (stagers_.size() < kStagers) {
    ASSIGN_OR_RETURN(OwnedCudaStream stream, OwnedCudaStream::CreateLike(stream_));
    stagers_.push_back(std::make_unique<cuda::ChunkStager>(std::move(stream), memory_, pieces_));
  }
  return Synchronize(stream_);
}

// --- Where the weights are ---

// memory: buffers or chunks, called `what`.
template <typename Memory>
absl::Status CheckReachable(const char* what, absl::Span<const Memory> memory) {
  for (size_t i = 0; i < memory.size(); ++i) {
    if (memory[i].size_bytes == 0) continue;
    cudaPointerAttributes attributes{};
    RETURN_IF_ERROR(WSTORE_CUDA(cudaPointerGetAttributes(&attributes, memory[i].data)));
    if (attributes.devicePointer != memory[i].data) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " ", i, " is neither device memory nor pinned host memory"));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::Bind(std::shared_ptr<const Plan> plan,
                               absl::Span<const LocalBuffer> buffers) {
  const cuda::DeviceScope scope(device_);
  RETURN_IF_ERROR(CheckReachable("buffer", buffers));
  const std::vector<cuda::CellEntry> cells = cuda::MakeCellEntries(*plan, buffers);
  std::vector<cuda::CellStretch> stretches;
  for (uint32_t i = 0; i < cells.size(); ++i) {
    const uint64_t step = kStretchBytes / cells[i].element_bytes;
    for (uint64_t begin = 0; begin < cells[i].elements; begin += step) {
      stretches.push_back({begin, std::min(begin + step, cells[i].elements), i, 0});
    }
  }
  std::vector<unsigned long long> multipliers;
  for (const auto& lane : plan->key().b()) {
    multipliers.insert(multipliers.end(), lane.begin(), lane.end());
  }
  Binding made;
  ASSIGN_OR_RETURN(made.cells,
                   DeviceBuffer<cuda::CellEntry>::Create(cells.size(), memory_, stream_));
  ASSIGN_OR_RETURN(made.multipliers,
                   DeviceBuffer<unsigned long long>::Create(multipliers.size(), memory_, stream_));
  ASSIGN_OR_RETURN(made.stretches,
                   DeviceBuffer<cuda::CellStretch>::Create(stretches.size(), memory_, stream_));
  ASSIGN_OR_RETURN(made.cell_sums,
                   DeviceBuffer<cuda::SumsEntry>::Create(cells.size(), memory_, stream_));
  ASSIGN_OR_RETURN(made.host_cell_sums, PinnedBuffer<cuda::SumsEntry>::Create(cells.size()));
  RETURN_IF_ERROR(CopyAsync(cells.data(), made.cells.get(), cells.size(), stream_));
  RETURN_IF_ERROR(
      CopyAsync(multipliers.data(), made.multipliers.get(), multipliers.size(), stream_));
  RETURN_IF_ERROR(CopyAsync(stretches.data(), made.stretches.get(), stretches.size(), stream_));
  RETURN_IF_ERROR(Synchronize(stream_));
  // Sums of units are this process's own, but must not be guessed by what damages memory.
  const std::array<uint64_t, 2> key = TensorFingerprinter(plan->key(), "").philox_key();
  made.unit_key[0] = key[0];
  made.unit_key[1] = key[1];
  made.plan = std::move(plan);
  binding_ = std::move(made);
  return absl::OkStatus();
}

// --- Updates ---

absl::Status CudaBackend::AcceptPiece(StagedPiece* piece) {
  const cuda::DeviceScope scope(device_);
  ASSIGN_OR_RETURN(piece->backend_copy, pieces_.Copy(*piece));
  return absl::OkStatus();
}

absl::Status CudaBackend::DecodeChunks(const std::shared_ptr<const Plan>& plan, bool allow_dense,
                                       absl::Span<const DeviceChunk> chunks,
                                       absl::Span<std::optional<DecodedChunk>> decoded) {
  const cuda::DeviceScope scope(device_);
  RETURN_IF_ERROR(CheckReachable("chunk", chunks));
  std::unique_lock<std::mutex> lock(stager_mutex_);
  stager_free_.wait(lock, [this] { return !stagers_.empty(); });
  std::unique_ptr<cuda::ChunkStager> stager = std::move(stagers_.back());
  stagers_.pop_back();
  lock.unlock();
  const auto give_back = absl::MakeCleanup([&] {
    lock.lock();
    stagers_.push_back(std::move(stager));
    stager_free_.notify_one();
  });
  return stager->Decode(plan, allow_dense, chunks, decoded);
}

absl::StatusOr<std::string_view> CudaBackend::ReadChunk(const DeviceChunk& chunk,
                                                        std::string* room) {
  const cuda::DeviceScope scope(device_);
  RETURN_IF_ERROR(CheckReachable("chunk", absl::MakeConstSpan(&chunk, 1)));
  room->resize(chunk.size_bytes);
  RETURN_IF_ERROR(
      CopyAsync(static_cast<const char*>(chunk.data), room->data(), room->size(), stream_));
  RETURN_IF_ERROR(Synchronize(stream_));
  return *room;
}

absl::Status CudaBackend::FetchColumns(StagedPiece* piece) {
  const cuda::DeviceScope scope(device_);
  return pieces_.Fetch(*static_cast<const cuda::PieceCopy*>(piece->backend_copy.get()), piece);
}

absl::Status CudaBackend::Prepare(absl::Span<const Unit> units) {
  const cuda::DeviceScope scope(device_);
  std::lock_guard<std::mutex> lock(unit_mutex_);
  return GrowUnits(units.size());
}

cuda::ReplicaTables CudaBackend::Tables(uint64_t units, uint64_t groups) const {
  return {binding_.cells.get(),
          units_.get(),
          binding_.multipliers.get(),
          unit_sums_.get(),
          group_sums_.get(),
          {binding_.unit_key[0], binding_.unit_key[1]},
          groups,
          static_cast<uint32_t>(units),
          0};
}

absl::StatusOr<uint64_t> CudaBackend::SendUnits(absl::Span<const Unit> units) {
  if (units.size() > units_.count()) {
    return absl::InternalError(
        absl::StrCat(units.size(), " units, of which ", units_.count(), " were accepted"));
  }
  uint64_t groups = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const Unit& unit = units[i];
    const auto* const copy = static_cast<const cuda::PieceCopy*>(unit.piece->backend_copy.get());
    host_units_[i] = {copy->columns(), unit.first_group, unit.group_count, groups};
    groups += unit.group_count;
  }
  RETURN_IF_ERROR(CopyAsync(host_units_.get(), units_.get(), units.size(), stream_));
  RETURN_IF_ERROR(ZeroAsync(unit_sums_.get(), units.size(), stream_));
  return groups;
}

absl::Status CudaBackend::Read(const MemoryPass& pass, absl::Span<Unit> units,
                               absl::Span<TouchedSums> group_sums) {
  const cuda::DeviceScope scope(device_);
  if (!pass.Enter()) return Closed();
  const auto leave = absl::MakeCleanup([&pass] { pass.Leave(); });
  while (!units.empty()) {
    if (pass.is_over()) return Closed();
    uint64_t count = 0;
    uint64_t groups = 0;
    while (count < units.size() && count < kReadUnits &&
           groups + units[count].group_count <= kReadGroups) {
      groups += units[count++].group_count;
    }
    std::lock_guard<std::mutex> lock(unit_mutex_);
    RETURN_IF_ERROR(SendUnits(units.first(count)).status());
    RETURN_IF_ERROR(ZeroAsync(group_sums_.get(), groups, stream_));
    RETURN_IF_ERROR(cuda::LaunchRead(Tables(count, groups), stream_));
    RETURN_IF_ERROR(CopyAsync(unit_sums_.get(), host_unit_sums_.get(), count, stream_));
    RETURN_IF_ERROR(CopyAsync(group_sums_.get(), host_group_sums_.get(), groups, stream_));
    RETURN_IF_ERROR(Synchronize(stream_));
    for (uint64_t i = 0; i < count; ++i) units[i].expected = ToSums(host_unit_sums_[i]);
    for (uint64_t i = 0; i < groups; ++i) group_sums[i] = ToSums(host_group_sums_[i]);
    units.remove_prefix(count);
    group_sums.remove_prefix(groups);
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::Exchange(absl::Span<const Unit> units, absl::Span<UnitOutcome> outcomes) {
  const cuda::DeviceScope scope(device_);
  if (units.empty()) return absl::OkStatus();
  std::lock_guard<std::mutex> lock(unit_mutex_);
  ASSIGN_OR_RETURN(const uint64_t groups, SendUnits(units));
  RETURN_IF_ERROR(cuda::LaunchExchange(Tables(units.size(), groups), verify_writes_, stream_));
  // From here on it may have written, whatever is answered.
  absl::Status status = CopyAsync(unit_sums_.get(), host_unit_sums_.get(), units.size(), stream_);
  status.Update(Synchronize(stream_));
  for (size_t i = 0; i < units.size(); ++i) {
    if (!status.ok()) {
      outcomes[i].progress = UnitProgress::kUnknown;
    } else {
      outcomes[i] = {UnitProgress::kExchanged, ToSums(host_unit_sums_[i])};
    }
  }
  return status;
}

// --- Whole cells ---

absl::Status CudaBackend::Audit(const MemoryPass& pass, absl::Span<Fingerprint> cells) {
  const cuda::DeviceScope scope(device_);
  if (!pass.Enter()) return Closed();
  const auto leave = absl::MakeCleanup([&pass] { pass.Leave(); });
  RETURN_IF_ERROR(ZeroAsync(binding_.cell_sums.get(), binding_.cell_sums.count(), stream_));
  const uint64_t stretches = binding_.stretches.count();
  for (uint64_t first = 0; first < stretches; first += kAuditStretches) {
    if (pass.is_over()) return Closed();
    RETURN_IF_ERROR(
        cuda::LaunchCells(Tables(0, 0), binding_.stretches.get() + first,
                          static_cast<uint32_t>(std::min(kAuditStretches, stretches - first)),
                          binding_.cell_sums.get(), stream_));
    RETURN_IF_ERROR(Synchronize(stream_));
  }
  RETURN_IF_ERROR(CopyAsync(binding_.cell_sums.get(), binding_.host_cell_sums.get(),
                            binding_.cell_sums.count(), stream_));
  RETURN_IF_ERROR(Synchronize(stream_));
  for (size_t i = 0; i < cells.size(); ++i) {
    cells[i] = ToFingerprint(binding_.host_cell_sums[i].after);
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::LoadSpan(const DenseSource& source, uint32_t span, uint64_t* loaded) {
  const Plan& plan = *binding_.plan;
  const Manifest& manifest = plan.manifest();
  const uint64_t first = uint64_t{span} * kSpanTiles;
  std::unique_ptr<SpanTiles> tiles;
  for (uint64_t i = first; i < std::min(first + kSpanTiles, manifest.tiles()); ++i) {
    const TilePlace place = manifest.PlaceOf(i);
    const uint64_t begin = place.tile * kTileElements;
    const uint32_t count = manifest.TileElements(place);
    const absl::Span<const uint32_t> cells = plan.CellsNear(place.tensor, begin, begin + count);
    if (cells.empty()) continue;
    if (tiles == nullptr) {
      ASSIGN_OR_RETURN(tiles, source.OpenSpan(span));
    }
    // Of two buffers one is read by the device while the other is filled.
    if (*loaded % 2 == 0) RETURN_IF_ERROR(Synchronize(stream_));
    uint8_t* const dense = dense_tiles_.get() + *loaded % 2 * (kTileElements * 8);
    ++*loaded;
    RETURN_IF_ERROR(tiles->ReadTile(place, dense));
    for (const uint32_t cell : cells) {
      RETURN_IF_ERROR(cuda::LaunchWriteCell(Tables(0, 0), cell, dense, begin, count, stream_));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::Load(const DenseSource& source) {
  const cuda::DeviceScope scope(device_);
  absl::Status status;
  uint64_t loaded = 0;
  for (uint32_t span = 0; status.ok() && span < binding_.plan->manifest().spans(); ++span) {
    status = LoadSpan(source, span, &loaded);
  }
  // Whatever happened, nothing is under way afterwards.
  status.Update(Synchronize(stream_));
  return status;
}

}  // namespace

absl::StatusOr<std::shared_ptr<MemoryBackend>> MakeCudaBackend(const CudaBackendOptions& options) {
  if (options.memory == nullptr) return absl::InvalidArgumentError("a CudaMemory is needed");
  ASSIGN_OR_RETURN(const int device, cuda::DeviceOf(options.stream));
  const cuda::DeviceScope scope(device);
  ASSIGN_OR_RETURN(cuda::PieceStore pieces,
                   cuda::PieceStore::Create(options.stream, options.memory,
                                            options.device_budget_bytes, options.pinned_bytes));
  auto backend = std::make_shared<CudaBackend>(options, device, std::move(pieces));
  RETURN_IF_ERROR(backend->Reserve());
  return backend;
}

}  // namespace wstore
