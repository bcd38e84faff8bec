// The kernels that stage chunks, run on the host, against the host's own staging, byte for byte.
#include <sys/mman.h>

#include <cstring>
#include <optional>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/cuda_emulation.h"
#include "tests/support/random.h"
#include "tests/unit/cuda/stage_reference.h"
#include "transfer/cuda/cell_tables.h"
#include "transfer/cuda/stage_check_kernels.cuh"
#include "transfer/cuda/stage_count_kernel.cuh"
#include "transfer/cuda/stage_digest_kernels.cuh"
#include "transfer/cuda/stage_work.h"
#include "transfer/cuda/stage_write_kernel.cuh"

namespace wstore::testing {
namespace {

// Bytes that end where memory ends: reading past them ends the process.
class EndOfMemory {
 public:
  explicit EndOfMemory(const std::string& bytes) {
    constexpr size_t kPage = 4096;
    mapped_ = (bytes.size() + kPage - 1) / kPage * kPage + kPage;
    start_ = static_cast<uint8_t*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(start_ != MAP_FAILED);
    REQUIRE(mprotect(start_ + mapped_ - kPage, kPage, PROT_NONE) == 0);
    data_ = start_ + mapped_ - kPage - bytes.size();
    std::memcpy(data_, bytes.data(), bytes.size());
  }
  ~EndOfMemory() { munmap(start_, mapped_); }
  uint8_t* data() const { return data_; }

 private:
  size_t mapped_;
  uint8_t* start_;
  uint8_t* data_;
};

// What the stager does with one chunk.
class EmulatedStage {
 public:
  EmulatedStage(const std::string& bytes, const Plan& plan)
      : plan_(plan), memory_(bytes), size_(bytes.size()), cells_(cuda::MakeCellEntries(plan, {})) {}

  // Nothing: the host would have to read it.
  std::optional<StagedChunk> Run(bool allow_dense, bool with_digests) {
    if (!CheckSums() || !Count()) return std::nullopt;
    cuda::PieceDraft draft;
    if (!cuda::DraftPiece(plan_, allow_dense, jobs_, found_, &draft)) return std::nullopt;
    StagedChunk chunk;
    chunk.piece = Write(draft);
    if (fault_ != 0) return std::nullopt;
    if (with_digests) chunk.tiles = HashTiles();
    return chunk;
  }

  // Changes the chunk between two kernels.
  std::function<void(uint8_t*)> meddle = [](uint8_t*) {};

 private:
  bool CheckSums() {
    const auto size = static_cast<uint32_t>(size_);
    const cuda::StageSource source{memory_.data(), 0, size, 0};
    std::vector<cuda::Piece> pieces;
    for (uint32_t i = 0; i * cuda::kPieceBytes < size; ++i) pieces.push_back({0, i});
    std::vector<unsigned long long> sums((size_ + 1023) / 1024 * 8);
    std::vector<uint64_t> head(cuda::kHeadBytes / 8, 0xeeeeeeeeeeeeeeee);
    uint32_t verdict = 7;
    tables_.sources = &source;
    tables_.pieces = pieces.data();
    tables_.block_sums = sums.data();
    tables_.heads = reinterpret_cast<uint8_t*>(head.data());
    tables_.verdicts = &verdict;
    emulation::Launch(static_cast<unsigned>(pieces.size()), cuda::kSumThreads,
                      [this] { cuda::StageSumKernel(tables_); });
    emulation::Launch(1, cuda::kSealThreads, [this] { cuda::StageHashKernel(tables_); });
    const std::string bytes(reinterpret_cast<const char*>(memory_.data()), size_);
    REQUIRE(verdict == (ChunkChecksum(bytes) == LoadLe<uint64_t>(bytes.data() + kChecksumAt)));
    if (verdict == 0) return false;
    const std::string_view seen(reinterpret_cast<const char*>(head.data()),
                                std::min<size_t>(size_, cuda::kHeadBytes));
    auto read = ReadChunkDirectory(seen, size_, plan_.manifest());
    if (read.ok()) directory_ = *std::move(read);
    return read.ok();
  }

  static unsigned BlocksOf(size_t warps) {
    return static_cast<unsigned>((warps + cuda::kStageWarps - 1) / cuda::kStageWarps);
  }

  bool Count() {
    cuda::AddJobs(plan_, directory_, memory_.data(), &jobs_);
    found_.resize(jobs_.size());
    std::memset(static_cast<void*>(found_.data()), 0xee, found_.size() * sizeof(found_[0]));
    tables_.cells = cells_.data();
    tables_.jobs = jobs_.data();
    tables_.found = found_.data();
    tables_.faults = &fault_;
    tables_.job_count = static_cast<uint32_t>(jobs_.size());
    emulation::Launch(BlocksOf(jobs_.size()), cuda::kStageThreads,
                      [this] { cuda::StageCountKernel(tables_); });
    return fault_ == 0;
  }

  std::unique_ptr<StagedPiece> Write(cuda::PieceDraft& draft) {
    if (draft.groups.empty()) return nullptr;
    meddle(memory_.data());
    auto piece = std::make_unique<StagedPiece>();
    piece->groups = draft.groups;
    piece->changed = draft.changed;
    piece->offsets.assign(draft.bytes.offsets / 2, 0xeeee);
    piece->near.assign(draft.bytes.near / 2, 0xeeee);
    piece->far.assign(draft.bytes.far / 4, 0xeeeeeeee);
    // At a multiple of 8, and with what must not be touched behind it.
    std::vector<uint64_t> values(draft.bytes.values / 8 + 1, 0xeeeeeeeeeeeeeeee);
    const cuda::PieceColumns columns{
        reinterpret_cast<const cuda::GroupEntry*>(piece->groups.data()), piece->offsets.data(),
        piece->near.data(), piece->far.data(), reinterpret_cast<const uint8_t*>(values.data())};
    std::vector<cuda::StageWrite> writes;
    for (uint32_t i = 0; i < draft.jobs.size(); ++i) writes.push_back({draft.jobs[i], i});
    tables_.columns = &columns;
    tables_.writes = writes.data();
    tables_.write_count = static_cast<uint32_t>(writes.size());
    emulation::Launch(BlocksOf(writes.size()), cuda::kStageThreads,
                      [this] { cuda::StageWriteKernel(tables_); });
    REQUIRE(values.back() == 0xeeeeeeeeeeeeeeee);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data());
    piece->values.assign(bytes, bytes + draft.bytes.values);
    return piece;
  }

  std::vector<TileRecord> HashTiles() {
    const cuda::LeafCounts counts = cuda::CountLeaves(directory_);
    std::vector<cuda::StageLeaf> leaves(counts.whole + counts.last);
    std::vector<cuda::StageRoot> roots(directory_.tiles.size());
    std::vector<uint32_t> leaf_digests(8 * leaves.size());
    std::vector<Digest> digests(roots.size());
    cuda::FillLeaves(directory_, memory_.data(),
                     {leaves.data(), leaves.data() + counts.whole, roots.data(), 0});
    tables_.leaves = leaves.data();
    tables_.roots = roots.data();
    tables_.leaf_digests = leaf_digests.data();
    tables_.tile_digests = reinterpret_cast<uint32_t*>(digests.data());
    tables_.leaf_count = static_cast<uint32_t>(leaves.size());
    tables_.root_count = static_cast<uint32_t>(roots.size());
    emulation::Launch(1, cuda::kLeafThreads, [this] { cuda::StageLeafKernel(tables_); });
    emulation::Launch(1, cuda::kRootThreads, [this] { cuda::StageRootKernel(tables_); });
    std::vector<TileRecord> records;
    for (size_t i = 0; i < roots.size(); ++i) {
      const DirectoryTile& tile = directory_.tiles[i];
      records.push_back({tile.place, tile.packed.form, tile.packed.changed, digests[i]});
    }
    return records;
  }

  const Plan& plan_;
  const EndOfMemory memory_;
  const size_t size_;
  const std::vector<cuda::CellEntry> cells_;
  cuda::StageTables tables_{};
  ChunkDirectory directory_;
  std::vector<cuda::StageJob> jobs_;
  std::vector<cuda::StageFound> found_;
  uint32_t fault_ = 0;
};

}  // namespace

TEST_CASE("the device stages chunks as the host does, for all layouts, forms and widths") {
  std::mt19937_64 random(TestSeed("stage"));
  std::set<PlaceForm> forms;
  for (int round = 0; round < 5; ++round) {
    const StageCase made(random, 400);
    for (const std::string& chunk : made.chunks) {
      for (const auto& plan : made.plans) {
        const bool allow_dense = Below(random, 2) == 0;
        const StagedChunk expected = StageOnHost(chunk, *plan, allow_dense);
        const auto staged = EmulatedStage(chunk, *plan).Run(allow_dense, plan == made.plans[0]);
        REQUIRE(staged.has_value());
        RequireSamePiece(staged->piece.get(), expected.piece.get());
        if (plan == made.plans[0]) REQUIRE((staged->tiles == expected.tiles));
        if (staged->piece == nullptr) continue;
        for (const StagedGroup& group : staged->piece->groups) forms.insert(group.form);
      }
    }
  }
  REQUIRE(forms.count(PlaceForm::kSame) + forms.count(PlaceForm::kNear) +
              forms.count(PlaceForm::kDense) ==
          3);
}

TEST_CASE("the device accepts of damaged chunks what the host accepts, and reads nothing else") {
  std::mt19937_64 random(TestSeed("damage"));
  const AllForms made(random);
  const std::shared_ptr<const Plan> plan = WholePlanOf(made.manifest, random);
  int accepted = 0;
  for (const std::string& damaged : DamagedChunks(made.chunk, 4, random)) {
    const bool is_chunk = ChunkView::Parse(damaged, made.manifest).ok();
    const auto staged = EmulatedStage(damaged, *plan).Run(true, false);
    REQUIRE(staged.has_value() == is_chunk);
    if (!is_chunk) continue;
    ++accepted;
    RequireSamePiece(staged->piece.get(), StageOnHost(damaged, *plan, true).piece.get());
  }
  // Other values, say.
  REQUIRE(accepted > 4);
}

TEST_CASE("a chunk that changes while the device stages it leaves nothing beside its groups") {
  std::mt19937_64 random(TestSeed("meddling"));
  const AllForms made(random);
  const std::shared_ptr<const Plan> plan = WholePlanOf(made.manifest, random);
  for (int i = 0; i < 60; ++i) {
    EmulatedStage stage(made.chunk, *plan);
    stage.meddle = [&](uint8_t* data) {
      for (uint64_t k = 1 + Below(random, 40); k > 0; --k) {
        data[Below(random, made.chunk.size())] = static_cast<uint8_t>(random());
      }
    };
    const auto staged = stage.Run(Below(random, 2) == 0, false);
    if (!staged.has_value() || staged->piece == nullptr) continue;
    // Accepted only with offsets that are in their tiles.
    for (const StagedGroup& group : staged->piece->groups) {
      if (group.form == PlaceForm::kDense) continue;
      const uint64_t elements = made.manifest.tensor(plan->cell(group.cell).box->tensor).elements;
      for (const uint16_t offset : staged->piece->offsets_of(group)) REQUIRE(offset < elements);
    }
  }
}

}  // namespace wstore::testing
