// Chunks staged by a GPU, against the host's staging, byte for byte.
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/gpu/device_weights.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/unit/cuda/stage_reference.h"
#include "transfer/replica/backend.h"
#include "wstore/cuda_replica.h"

namespace wstore::testing {
namespace {

struct StagingGpu {
  std::unique_ptr<CudaMemory> memory = MakeCudaPoolMemory();
  std::unique_ptr<OwnedCudaStream> stream = MakeStream();

  static std::unique_ptr<OwnedCudaStream> MakeStream() {
    absl::StatusOr<OwnedCudaStream> made = OwnedCudaStream::Create();
    REQUIRE_OK(made);
    return std::make_unique<OwnedCudaStream>(*std::move(made));
  }
  std::shared_ptr<MemoryBackend> MakeBackend(uint64_t device_budget_bytes) const {
    CudaBackendOptions options;
    options.stream = stream->get();
    options.memory = memory.get();
    options.device_budget_bytes = device_budget_bytes;
    options.pinned_bytes = 64 << 20;
    auto backend = MakeCudaBackend(options);
    REQUIRE_OK(backend);
    return *std::move(backend);
  }
};

// Chunks in device memory, each in an allocation of its own, so that memcheck sees what is read
// behind it.
class PlacedChunks {
 public:
  PlacedChunks(const std::vector<std::string>& chunks, const StagingGpu& gpu) {
    for (const std::string& chunk : chunks) {
      auto buffer =
          cuda::DeviceBuffer<char>::Create(chunk.size(), gpu.memory.get(), gpu.stream->get());
      REQUIRE_OK(buffer);
      REQUIRE_OK(cuda::CopyAsync(chunk.data(), buffer->get(), chunk.size(), gpu.stream->get()));
      placed_.push_back({buffer->get(), chunk.size()});
      buffers_.push_back(*std::move(buffer));
    }
    REQUIRE_OK(cuda::Synchronize(gpu.stream->get()));
  }
  const std::vector<DeviceChunk>& get() const { return placed_; }

 private:
  std::vector<cuda::DeviceBuffer<char>> buffers_;
  std::vector<DeviceChunk> placed_;
};

std::vector<std::optional<DecodedChunk>> Decode(MemoryBackend& backend,
                                                const std::shared_ptr<const Plan>& plan,
                                                bool allow_dense,
                                                const std::vector<DeviceChunk>& chunks) {
  std::vector<std::optional<DecodedChunk>> decoded(chunks.size());
  REQUIRE_OK(backend.DecodeChunks(plan, allow_dense, chunks, absl::MakeSpan(decoded)));
  return decoded;
}

void RequireStaged(MemoryBackend& backend, const std::string& chunk, const Plan& plan,
                   bool allow_dense, std::optional<DecodedChunk>* decoded) {
  REQUIRE(decoded->has_value());
  const StagedChunk expected = StageOnHost(chunk, plan, allow_dense);
  StagedChunk& content = (*decoded)->content;
  REQUIRE((content.tiles == expected.tiles));
  if (content.piece != nullptr) {
    REQUIRE(content.piece->size_bytes() == expected.piece->size_bytes());
    REQUIRE_OK(backend.FetchColumns(content.piece.get()));
  }
  RequireSamePiece(content.piece.get(), expected.piece.get());
}

void RequireSameOnRandomLayouts(std::mt19937_64& random, int rounds, uint64_t most_rows) {
  const StagingGpu gpu;
  for (int round = 0; round < rounds; ++round) {
    const StageCase made(random, most_rows);
    const PlacedChunks placed(made.chunks, gpu);
    // Some on the device and some in pinned memory.
    const auto backend = gpu.MakeBackend(round % 2 == 0 ? UINT64_MAX : 20000);
    for (const auto& plan : made.plans) {
      const bool allow_dense = Below(random, 2) == 0;
      auto decoded = Decode(*backend, plan, allow_dense, placed.get());
      for (size_t i = 0; i < decoded.size(); ++i) {
        INFO("chunk " << i);
        RequireStaged(*backend, made.chunks[i], *plan, allow_dense, &decoded[i]);
      }
    }
  }
}

}  // namespace

TEST_CASE("a GPU stages chunks as the host does, for all layouts, forms and widths") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("stage"));
  RequireSameOnRandomLayouts(random, 12, 3000);
}

TEST_CASE("a GPU stages chunks of small tensors as the host does", "[small]") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("stage small"));
  RequireSameOnRandomLayouts(random, 4, 40);
}

TEST_CASE("a GPU stages chunks of several MiB as the host does") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("stage large"));
  const StagingGpu gpu;
  const TwoSides sides({{"bf16", Dtype::kBF16, {500 * kTileElements + 77}},
                        {"f32", Dtype::kF32, {30 * kTileElements}},
                        {"i64", Dtype::kI64, {20 * kTileElements - 5}}},
                       {{0.06}, {0.4}, {1}}, random);
  std::vector<std::string> chunks;
  for (const auto& [key, bytes] : DiffOnHost(sides, TransactionNumber(9), 0).chunks) {
    chunks.push_back(bytes);
  }
  const auto plan = WholePlanOf(sides.manifest, random);
  const PlacedChunks placed(chunks, gpu);
  const auto backend = gpu.MakeBackend(UINT64_MAX);
  auto decoded = Decode(*backend, plan, true, placed.get());
  for (size_t i = 0; i < decoded.size(); ++i) {
    RequireStaged(*backend, chunks[i], *plan, true, &decoded[i]);
  }
}

TEST_CASE("a GPU accepts of damaged chunks what the host accepts", "[small]") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("damage"));
  const StagingGpu gpu;
  const AllForms made(random);
  const auto plan = WholePlanOf(made.manifest, random);
  const std::vector<std::string> damaged = DamagedChunks(made.chunk, 1, random);
  const auto backend = gpu.MakeBackend(UINT64_MAX);
  const PlacedChunks placed(damaged, gpu);
  auto decoded = Decode(*backend, plan, true, placed.get());
  size_t accepted = 0;
  for (size_t i = 0; i < damaged.size(); ++i) {
    INFO("chunk " << i);
    const bool is_chunk = ChunkView::Parse(damaged[i], made.manifest).ok();
    REQUIRE(decoded[i].has_value() == is_chunk);
    if (!is_chunk) continue;
    ++accepted;
    RequireStaged(*backend, damaged[i], *plan, true, &decoded[i]);
  }
  REQUIRE(accepted > 20);
}

TEST_CASE("a GPU refuses chunks that it does not reach, and says when there is no room",
          "[small]") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("reach"));
  const StagingGpu gpu;
  const AllForms made(random);
  const auto plan = WholePlanOf(made.manifest, random);
  std::optional<DecodedChunk> decoded;
  const auto backend = gpu.MakeBackend(UINT64_MAX);
  const DeviceChunk in_host_memory{made.chunk.data(), made.chunk.size()};
  REQUIRE_ERROR(
      backend->DecodeChunks(plan, true, {&in_host_memory, 1}, absl::MakeSpan(&decoded, 1)),
      absl::StatusCode::kInvalidArgument, "chunk 0 is neither device memory nor pinned");
  CudaBackendOptions options;
  options.stream = gpu.stream->get();
  options.memory = gpu.memory.get();
  options.device_budget_bytes = 100;
  options.pinned_bytes = 200;
  const auto small = MakeCudaBackend(options);
  REQUIRE_OK(small);
  const PlacedChunks placed({made.chunk}, gpu);
  REQUIRE_ERROR((*small)->DecodeChunks(plan, true, placed.get(), absl::MakeSpan(&decoded, 1)),
                absl::StatusCode::kResourceExhausted, "raise pinned_bytes");
  REQUIRE_FALSE(decoded.has_value());
}

}  // namespace wstore::testing
