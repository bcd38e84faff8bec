// The differ, the encoder, the digests and the audit on a GPU, against the host's, byte for byte.
#include <algorithm>
#include <memory>
#include <random>
#include <string>

#include "tests/gpu/device_weights.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/unit/cuda/differ_reference.h"
#include "transfer/cuda/runtime.h"
#include "wstore/cuda_differ.h"

namespace wstore::testing {
namespace {

constexpr TransactionNumber kTransaction{0x1122334455667788};
constexpr uint16_t kContributor = 3;

FingerprintKey RandomKey(std::mt19937_64& random) {
  Digest digest;
  for (uint8_t& byte : digest.bytes) byte = static_cast<uint8_t>(random());
  return FingerprintKey(digest);
}

uint64_t EnoughRoom(const Manifest& manifest) {
  return manifest.size_bytes() + 16 * manifest.tiles() + 4096;
}

OwnedCudaStream MakeStream() {
  absl::StatusOr<OwnedCudaStream> made = OwnedCudaStream::Create();
  REQUIRE_OK(made);
  return *std::move(made);
}

struct Gpu {
  std::unique_ptr<CudaMemory> memory = MakeCudaPoolMemory();
  OwnedCudaStream stream = MakeStream();

  CudaDifferOptions Options(uint64_t patch_bytes) const {
    return {stream.get(), memory.get(), patch_bytes, kContributor};
  }
};

void RequireSame(const TwoSides& whole, const FingerprintKey& key, CudaDiffer& differ,
                 const CudaDiff& diff, const Share& share = {}) {
  const std::vector<ElementRange> held = *HeldRanges(whole.manifest, share);
  const TwoSides sides = whole.Within(held);
  const ReferenceDiff reference = DiffOnHost(sides, kTransaction, kContributor);
  REQUIRE(diff.changed == reference.changed);
  REQUIRE(diff.chunks.size() == reference.chunks.size());
  auto expected = reference.chunks.begin();
  for (const CudaChunk& chunk : diff.chunks) {
    INFO("span " << chunk.key.span << " part " << chunk.key.part);
    REQUIRE((chunk.key == expected->first));
    std::string bytes(chunk.size_bytes, '\0');
    REQUIRE_OK(differ.ReadChunk(chunk, absl::MakeSpan(bytes.data(), bytes.size())));
    REQUIRE(bytes.size() == expected->second.size());
    const auto difference = std::mismatch(bytes.begin(), bytes.end(), expected->second.begin());
    INFO("differs at " << difference.first - bytes.begin() << " of " << bytes.size());
    REQUIRE((bytes == expected->second));
    ++expected;
  }
  REQUIRE(diff.digest.has_value());
  REQUIRE(ToHex(*diff.digest) == ToHex(reference.digest));
  for (TensorIndex i = 0; i < sides.manifest.size(); ++i) {
    INFO(sides.manifest.tensor(i).spec.name);
    REQUIRE((diff.sums[i].before == SumOnHost(sides.manifest, key, sides.before, i, held[i])));
    REQUIRE((diff.sums[i].after == SumOnHost(sides.manifest, key, sides.after, i, held[i])));
  }
  std::map<TensorIndex, TouchedSums> touched;
  for (const TensorSums& tensor : diff.touched) {
    REQUIRE((touched.empty() || touched.rbegin()->first < tensor.tensor));
    touched.emplace(tensor.tensor, tensor.sums);
  }
  REQUIRE((touched == TouchedOnHost(sides, key)));
}

// The bits of a share, and zero elsewhere.
Weights Held(const Manifest& manifest, const Weights& weights, const Share& share) {
  const std::vector<ElementRange> held = *HeldRanges(manifest, share);
  Weights only(manifest);
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const auto bytes = HeldBytes(manifest, weights, i, held[i]);
    std::copy(bytes.begin(), bytes.end(),
              only.tensors[i].begin() + held[i].first * manifest.tensor(i).element_bytes);
  }
  return only;
}

// One whole publish: diff, compare with the host, move the shadow, audit it.
void RoundTrip(const TwoSides& sides, const FingerprintKey& key, const Gpu& gpu, uint32_t shift,
               MemoryKind shadow_kind, uint32_t parts = 1, const Share& share = {}) {
  PlacedWeights shadow(sides.manifest, sides.before, shift, shadow_kind, gpu.memory.get(),
                       gpu.stream.get(), share);
  PlacedWeights weights(sides.manifest, sides.after, 3 * shift, MemoryKind::kDevice,
                        gpu.memory.get(), gpu.stream.get(), share);
  const Weights before = Held(sides.manifest, sides.before, share);
  const Weights after = Held(sides.manifest, sides.after, share);
  CudaDifferOptions options = gpu.Options(EnoughRoom(sides.manifest));
  options.parts = parts;
  options.share = share;
  auto differ = CudaDiffer::Create(sides.manifest, key, options);
  REQUIRE_OK(differ);
  REQUIRE_OK((*differ)->Start(shadow.addresses(), weights.addresses(), kTransaction));
  absl::StatusOr<CudaDiff> diff = (*differ)->Finish();
  REQUIRE_OK(diff);
  RequireSame(sides, key, **differ, *diff, share);
  REQUIRE((shadow.Read() == before));
  REQUIRE_OK((*differ)->MoveShadow());
  REQUIRE((shadow.Read() == after));
  REQUIRE((weights.Read() == after));
  REQUIRE_ERROR((*differ)->MoveShadow(), absl::StatusCode::kFailedPrecondition, "moves once");

  auto auditor =
      CudaAuditor::Create(sides.manifest, key, gpu.stream.get(), gpu.memory.get(), share);
  REQUIRE_OK(auditor);
  REQUIRE_OK((*auditor)->Start(shadow.addresses()));
  const absl::StatusOr<std::vector<Fingerprint>> sums = (*auditor)->Finish();
  REQUIRE_OK(sums);
  const std::vector<ElementRange> held = *HeldRanges(sides.manifest, share);
  for (TensorIndex i = 0; i < sides.manifest.size(); ++i) {
    REQUIRE(((*sums)[i] == SumOnHost(sides.manifest, key, sides.after, i, held[i])));
  }

  // Nothing is left to change.
  REQUIRE_OK((*differ)->Start(shadow.addresses(), weights.addresses(), kTransaction));
  diff = (*differ)->Finish();
  REQUIRE_OK(diff);
  REQUIRE(diff->changed == 0);
  REQUIRE(diff->chunks.empty());
  REQUIRE(diff->touched.empty());
}

CudaDiffer& Made(const absl::StatusOr<std::unique_ptr<CudaDiffer>>& differ) {
  REQUIRE_OK(differ);
  return **differ;
}

}  // namespace

TEST_CASE("a GPU is there", "[small]") {
  REQUIRE_GPU();
  const absl::StatusOr<std::string> description = DescribeCudaDevice();
  REQUIRE_OK(description);
  std::cout << *description << std::endl;
  REQUIRE_ERROR(UseCudaDevice(4096), absl::StatusCode::kInvalidArgument, "no CUDA device 4096");
  REQUIRE_ERROR(UseCudaDevice(-1), absl::StatusCode::kInvalidArgument, "no CUDA device -1");
}

TEST_CASE("a GPU's diff is the host's, at all edges, densities, widths and alignments", "[small]") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("differ"));
  const Gpu gpu;
  for (int round = 0; round < 3; ++round) {
    const FingerprintKey key = RandomKey(random);
    std::vector<ChangePattern> patterns = AllDensities();
    std::shuffle(patterns.begin(), patterns.end(), random);
    const TwoSides sides(EdgeTensors(), patterns, random);
    RoundTrip(sides, key, gpu, 0, MemoryKind::kDevice);
    RoundTrip(sides, key, gpu, 1, MemoryKind::kDevice);
  }
}

TEST_CASE("a GPU's diff of a share is the host's of what it has, at all widths and alignments",
          "[small]") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("shares"));
  const Gpu gpu;
  for (const uint32_t shift : {0u, 1u, 5u}) {
    std::vector<ChangePattern> patterns = AllDensities();
    std::shuffle(patterns.begin(), patterns.end(), random);
    const TwoSides sides(ShareTensors(), patterns, random);
    const FingerprintKey key = RandomKey(random);
    for (const Share& share : RandomShares(sides.manifest, 3, random)) {
      RoundTrip(sides, key, gpu, shift, MemoryKind::kDevice, 1 + shift, share);
    }
  }
}

TEST_CASE("a GPU's diff of shares of many spans is the host's, in parts of any number") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("large shares"));
  const Gpu gpu;
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 700; ++i) {
    specs.push_back({absl::StrCat("small.", 1000 + i), Dtype::kBF16, {1 + random() % 5000}});
  }
  specs.push_back({"large", Dtype::kBF16, {700 * kTileElements + 12346}});
  specs.push_back({"wide", Dtype::kF32, {60 * kTileElements + 1}});
  const TwoSides sides(specs, {{0.01}, {0.4}, {0.001}, {0.03}, {0.2}}, random);
  const FingerprintKey key = RandomKey(random);
  uint32_t parts = 1;
  for (const Share& share : RandomShares(sides.manifest, 4, random)) {
    RoundTrip(sides, key, gpu, 0, MemoryKind::kDevice, parts, share);
    parts = 2 * parts;
  }
  // Nothing at all.
  RoundTrip(sides, key, gpu, 0, MemoryKind::kDevice, 2, {{0, {0, 0}}});
}

TEST_CASE("a GPU's diff refuses addresses of what a share does not have", "[small]") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("addresses of shares"));
  const Gpu gpu;
  const TwoSides sides({{"a", Dtype::kBF16, {1000}}, {"b", Dtype::kBF16, {1000}}}, {{1}}, random);
  PlacedWeights weights(sides.manifest, sides.after, 0, MemoryKind::kDevice, gpu.memory.get(),
                        gpu.stream.get());
  CudaDifferOptions options = gpu.Options(1 << 20);
  options.share = {{1, {256, 1000}}};
  const auto made = CudaDiffer::Create(sides.manifest, RandomKey(random), options);
  REQUIRE_ERROR(Made(made).Start(weights.addresses(), weights.addresses(), kTransaction),
                absl::StatusCode::kInvalidArgument, "'a' has one, though nothing of it is held");
  options.share = {{1, {255, 1000}}};
  REQUIRE_ERROR(CudaDiffer::Create(sides.manifest, RandomKey(random), options),
                absl::StatusCode::kInvalidArgument, "elements 255 to 1000 of 'b'");
}

TEST_CASE("a GPU's diff reads a shadow in pinned host memory, and moves it there", "[small]") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("pinned"));
  const Gpu gpu;
  const TwoSides sides(EdgeTensors(), AllDensities(), random);
  RoundTrip(sides, RandomKey(random), gpu, 1, MemoryKind::kPinned);
}

TEST_CASE("a GPU's diff cuts many tiles, tensors and spans into the host's chunks") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("cuts"));
  const Gpu gpu;
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 700; ++i) {
    specs.push_back({absl::StrCat("small.", 1000 + i), Dtype::kBF16, {1 + random() % 5000}});
  }
  specs.push_back({"dense", Dtype::kI64, {13 * kTileElements - 7}});
  specs.push_back({"large", Dtype::kBF16, {700 * kTileElements + 12345}});
  specs.push_back({"wide", Dtype::kF32, {60 * kTileElements + 1}});
  const TwoSides sides(specs, {{0.01}, {0.4}, {0.001}, {0.03}, {0.2}}, random);
  RoundTrip(sides, RandomKey(random), gpu, 0, MemoryKind::kDevice);
}

TEST_CASE("a GPU's diff without room says how much it needs, and a second one has it", "[small]") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("room"));
  const Gpu gpu;
  const FingerprintKey key = RandomKey(random);
  const TwoSides sides({{"t", Dtype::kBF16, {40 * kTileElements}}}, {{0.05}}, random);
  PlacedWeights shadow(sides.manifest, sides.before, 0, MemoryKind::kDevice, gpu.memory.get(),
                       gpu.stream.get());
  PlacedWeights weights(sides.manifest, sides.after, 0, MemoryKind::kDevice, gpu.memory.get(),
                        gpu.stream.get());
  const auto run = [&](uint64_t room) -> absl::Status {
    auto differ = CudaDiffer::Create(sides.manifest, key, gpu.Options(room));
    REQUIRE_OK(differ);
    REQUIRE_OK((*differ)->Start(shadow.addresses(), weights.addresses(), kTransaction));
    const absl::StatusOr<CudaDiff> diff = (*differ)->Finish();
    if (!diff.ok()) {
      REQUIRE_ERROR((*differ)->MoveShadow(), absl::StatusCode::kFailedPrecondition, "finished");
      return diff.status();
    }
    RequireSame(sides, key, **differ, *diff);
    return absl::OkStatus();
  };
  const absl::Status refused = run(1 << 16);
  REQUIRE_ERROR(refused, absl::StatusCode::kOutOfRange, "there is room for 65536");
  const std::string message(refused.message());
  REQUIRE_OK(run(std::stoull(message.substr(message.find("take ") + 5))));
  REQUIRE((shadow.Read() == sides.before));
}

TEST_CASE("a GPU's diff that gets no memory changes nothing, and the next one works") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("memory"));
  const Gpu gpu;
  const TwoSides sides({{"t", Dtype::kBF16, {3 * kTileElements}}}, {{0.05}}, random);
  REQUIRE_ERROR(
      CudaDiffer::Create(sides.manifest, RandomKey(random), gpu.Options(uint64_t{1} << 42)),
      absl::StatusCode::kResourceExhausted, "bytes on the device");
  RoundTrip(sides, RandomKey(random), gpu, 0, MemoryKind::kDevice);
}

TEST_CASE("a GPU's diff refuses addresses that it cannot use, and names all of them", "[small]") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("addresses"));
  const Gpu gpu;
  const FingerprintKey key = RandomKey(random);
  const TwoSides sides(
      {{"a", Dtype::kBF16, {100}}, {"b", Dtype::kBF16, {100}}, {"c", Dtype::kF32, {100}}}, {{1}},
      random);
  PlacedWeights weights(sides.manifest, sides.after, 0, MemoryKind::kDevice, gpu.memory.get(),
                        gpu.stream.get());
  auto differ = CudaDiffer::Create(sides.manifest, key, gpu.Options(1 << 20));
  REQUIRE_OK(differ);
  std::vector<const void*> wrong = weights.addresses();
  wrong[0] = nullptr;
  wrong[2] = static_cast<const uint8_t*>(wrong[2]) + 2;
  const absl::Status refused = (*differ)->Start(wrong, weights.addresses(), kTransaction);
  REQUIRE_ERROR(refused, absl::StatusCode::kInvalidArgument, "'a' has none");
  REQUIRE_ERROR(refused, absl::StatusCode::kInvalidArgument, "'c' is at");
  wrong = weights.addresses();
  wrong.pop_back();
  REQUIRE_ERROR((*differ)->Start(wrong, weights.addresses(), kTransaction),
                absl::StatusCode::kInvalidArgument, "2 addresses");
  REQUIRE_ERROR((*differ)->Finish(), absl::StatusCode::kFailedPrecondition, "no pass");
  REQUIRE_OK((*differ)->Start(weights.addresses(), weights.addresses(), kTransaction));
  REQUIRE_OK((*differ)->Finish());
}

TEST_CASE("a GPU's diff in parts that end within a tensor is the host's", "[small]") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("small parts"));
  const Gpu gpu;
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 508; ++i) {
    specs.push_back({absl::StrCat("a.", 1000 + i), Dtype::kBF16, {3}});
  }
  specs.push_back({"b.large", Dtype::kU8, {8 * kTileElements - 7}});
  const TwoSides sides(specs, {{1}, {0.4}, {0}}, random);
  REQUIRE(sides.manifest.spans() == 2);
  for (const uint32_t parts : {2u, kMaxDiffParts}) {
    RoundTrip(sides, RandomKey(random), gpu, 0, MemoryKind::kDevice, parts);
  }
}

TEST_CASE("a GPU's diff in parts is the one in one, and its parts are the spans in order") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("parts"));
  const Gpu gpu;
  const FingerprintKey key = RandomKey(random);
  // Some 2,300 tiles, five spans; two of them end within the large tensor, and one has no changes.
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 300; ++i) {
    specs.push_back({absl::StrCat("a.", 1000 + i), Dtype::kBF16, {1 + random() % 3000}});
  }
  specs.push_back({"b.large", Dtype::kU8, {800 * kTileElements + 321}});
  specs.push_back({"c.same", Dtype::kU8, {1000 * kTileElements}});
  for (int i = 0; i < 200; ++i) {
    specs.push_back({absl::StrCat("d.", 1000 + i), Dtype::kF32, {1 + random() % 3000}});
  }
  std::vector<ChangePattern> patterns(specs.size(), ChangePattern{0.02});
  patterns[301] = {0};
  const TwoSides sides(specs, patterns, random);
  REQUIRE(sides.manifest.spans() == 5);
  PlacedWeights weights(sides.manifest, sides.after, 0, MemoryKind::kDevice, gpu.memory.get(),
                        gpu.stream.get());
  for (uint32_t parts = 1; parts <= kMaxDiffParts; ++parts) {
    INFO(parts << " parts");
    PlacedWeights shadow(sides.manifest, sides.before, 0, MemoryKind::kDevice, gpu.memory.get(),
                         gpu.stream.get());
    CudaDifferOptions options = gpu.Options(EnoughRoom(sides.manifest));
    options.parts = parts;
    const auto made = CudaDiffer::Create(sides.manifest, key, options);
    CudaDiffer& differ = Made(made);
    // One that is given up leaves nothing behind, in either stage.
    REQUIRE_OK(differ.Start(weights.addresses(), shadow.addresses()));
    if (parts % 2 == 0) {
      REQUIRE_OK(differ.Seal(TransactionNumber(1)));
      REQUIRE_OK(differ.NextPart());
    }
    REQUIRE_OK(differ.Start(shadow.addresses(), weights.addresses()));
    REQUIRE_OK(differ.Seal(kTransaction));
    std::vector<ChunkKey> keys;
    size_t empty = 0;
    for (uint32_t part = 0; part < parts; ++part) {
      const absl::StatusOr<CudaDiffPart> found = differ.NextPart();
      REQUIRE_OK(found);
      REQUIRE(found->is_last == (part + 1 == parts));
      empty += found->chunks.empty() ? 1 : 0;
      for (const CudaChunk& chunk : found->chunks) {
        REQUIRE((keys.empty() || keys.back() < chunk.key));
        keys.push_back(chunk.key);
        // It is complete while later parts are still being found.
        std::string bytes(chunk.size_bytes, '\0');
        REQUIRE_OK(cuda::CopyAsync(reinterpret_cast<const char*>(chunk.data), bytes.data(),
                                   bytes.size(), nullptr));
        REQUIRE_OK(cuda::Synchronize(nullptr));
        REQUIRE_OK(ChunkView::Parse(bytes, sides.manifest));
      }
    }
    REQUIRE((empty > 0 || parts <= sides.manifest.spans()));
    REQUIRE_ERROR(differ.NextPart(), absl::StatusCode::kFailedPrecondition, "have been taken");
    const absl::StatusOr<CudaDiff> diff = differ.Finish();
    REQUIRE_OK(diff);
    RequireSame(sides, key, differ, *diff);
    REQUIRE(diff->chunks.size() == keys.size());
    REQUIRE_OK(differ.MoveShadow());
    REQUIRE((shadow.Read() == sides.after));
    // Parts that nobody takes are taken by Finish.
    REQUIRE_OK(differ.Start(shadow.addresses(), weights.addresses(), kTransaction));
    const absl::StatusOr<CudaDiff> none = differ.Finish();
    REQUIRE_OK(none);
    REQUIRE(none->chunks.empty());
    REQUIRE(none->changed == 0);
  }
}

TEST_CASE("a GPU's diff in parts is refused out of order, and tells all room that it lacks") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("order of parts"));
  const Gpu gpu;
  const FingerprintKey key = RandomKey(random);
  const TwoSides sides({{"t", Dtype::kU8, {1100 * kTileElements}}}, {{0.001}}, random);
  PlacedWeights shadow(sides.manifest, sides.before, 0, MemoryKind::kDevice, gpu.memory.get(),
                       gpu.stream.get());
  PlacedWeights weights(sides.manifest, sides.after, 0, MemoryKind::kDevice, gpu.memory.get(),
                        gpu.stream.get());
  CudaDifferOptions options = gpu.Options(EnoughRoom(sides.manifest));
  for (const uint32_t parts : {0u, kMaxDiffParts + 1}) {
    options.parts = parts;
    REQUIRE_ERROR(CudaDiffer::Create(sides.manifest, key, options),
                  absl::StatusCode::kInvalidArgument, "1 to 8 are allowed");
  }
  options.parts = 3;
  const auto made = CudaDiffer::Create(sides.manifest, key, options);
  CudaDiffer& differ = Made(made);
  constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
  REQUIRE_ERROR(differ.Seal(kTransaction), kRefused, "no pass was started");
  REQUIRE_ERROR(differ.NextPart(), kRefused, "no pass under way");
  REQUIRE_OK(differ.Start(shadow.addresses(), weights.addresses()));
  REQUIRE_ERROR(differ.NextPart(), kRefused, "no pass under way");
  REQUIRE_ERROR(differ.Finish(), kRefused, "no transaction's number");
  REQUIRE_ERROR(differ.MoveShadow(), kRefused, "finished");
  REQUIRE_OK(differ.Seal(kTransaction));
  REQUIRE_ERROR(differ.Seal(kTransaction), kRefused, "a transaction's number already");
  REQUIRE_OK(differ.NextPart());
  REQUIRE_ERROR(differ.MoveShadow(), kRefused, "finished");
  const absl::StatusOr<CudaDiff> diff = differ.Finish();
  REQUIRE_OK(diff);
  RequireSame(sides, key, differ, *diff);
  REQUIRE_ERROR(differ.NextPart(), kRefused, "no pass under way");

  uint64_t needed = 0;
  for (const uint32_t parts : {1u, 3u}) {
    CudaDifferOptions small = gpu.Options(1 << 16);
    small.parts = parts;
    const auto without = CudaDiffer::Create(sides.manifest, key, small);
    REQUIRE_OK(Made(without).Start(shadow.addresses(), weights.addresses(), kTransaction));
    const absl::Status refused = Made(without).NextPart().status();
    REQUIRE_ERROR(refused, absl::StatusCode::kOutOfRange, "there is room for 65536");
    const std::string message(refused.message());
    const uint64_t found = std::stoull(message.substr(message.find("take ") + 5));
    REQUIRE((needed == 0 || found == needed));
    needed = found;
    REQUIRE_ERROR(Made(without).Finish(), absl::StatusCode::kOutOfRange, "there is room for 65536");
  }
  // Room that only the last part lacks.
  CudaDifferOptions less = gpu.Options(needed - 16);
  less.parts = 3;
  const auto almost = CudaDiffer::Create(sides.manifest, key, less);
  REQUIRE_OK(Made(almost).Start(shadow.addresses(), weights.addresses(), kTransaction));
  REQUIRE_OK(Made(almost).NextPart());
  REQUIRE_OK(Made(almost).NextPart());
  REQUIRE_ERROR(Made(almost).NextPart(), absl::StatusCode::kOutOfRange,
                "the changes take " + std::to_string(needed));
  REQUIRE((shadow.Read() == sides.before));
}

TEST_CASE("a publish whose Nth CUDA call fails leaves the shadow at the old version or the new") {
  REQUIRE_GPU();
  std::mt19937_64 random(TestSeed("calls"));
  const Gpu gpu;
  const FingerprintKey key = RandomKey(random);
  const TwoSides sides({{"a", Dtype::kBF16, {2 * kTileElements + 5}}, {"b", Dtype::kF32, {1000}}},
                       {{0.02}, {0.5}}, random);
  PlacedWeights weights(sides.manifest, sides.after, 0, MemoryKind::kDevice, gpu.memory.get(),
                        gpu.stream.get());
  int failed = 0;
  for (uint64_t nth = 1;; ++nth) {
    PlacedWeights shadow(sides.manifest, sides.before, 0, MemoryKind::kDevice, gpu.memory.get(),
                         gpu.stream.get());
    bool has_struck = false;
    const absl::Status status = [&]() -> absl::Status {
      const cuda::CallFault fault(nth,
                                  nth % 2 == 0 ? cudaErrorMemoryAllocation : cudaErrorInvalidValue);
      const auto publish = [&]() -> absl::Status {
        CudaDifferOptions options = gpu.Options(1 << 22);
        options.parts = 2;
        auto differ = CudaDiffer::Create(sides.manifest, key, options);
        if (!differ.ok()) return differ.status();
        const absl::Status started =
            (*differ)->Start(shadow.addresses(), weights.addresses(), kTransaction);
        if (!started.ok()) return started;
        const absl::StatusOr<CudaDiff> diff = (*differ)->Finish();
        if (!diff.ok()) return diff.status();
        return (*differ)->MoveShadow();
      };
      const absl::Status published = publish();
      has_struck = fault.has_struck();
      return published;
    }();
    INFO("call " << nth << ": " << status.ToString());
    REQUIRE((shadow.Read() == (status.ok() ? sides.after : sides.before)));
    if (!has_struck) {
      REQUIRE_OK(status);
      break;
    }
    failed += status.ok() ? 0 : 1;
  }
  // Calls that give memory back may fail unseen; the others not.
  REQUIRE(failed > 30);
}

}  // namespace wstore::testing
