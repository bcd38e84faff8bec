// The differ's kernels, run on the host, against the host's encoder, byte for byte.
#include <cstring>
#include <memory>
#include <random>

#include "tests/support/catch.h"
#include "tests/support/cuda_emulation.h"
#include "tests/support/random.h"
#include "tests/unit/cuda/differ_reference.h"
#include "transfer/cuda/apply_kernel.cuh"
#include "transfer/cuda/assemble_kernels.cuh"
#include "transfer/cuda/audit_kernel.cuh"
#include "transfer/cuda/chunk_kernels.cuh"
#include "transfer/cuda/diff_kernel.cuh"
#include "transfer/cuda/diff_tables.h"
#include "transfer/cuda/digest_kernels.cuh"
#include "xxhash.h"

namespace wstore::testing {
namespace {

constexpr TransactionNumber kTransaction{0x1122334455667788};
constexpr uint16_t kContributor = 3;
constexpr uint32_t kBlocks = 3;  // of the differ
constexpr uint32_t kMostParts = 8;
// Around what is held of the old side, and of the new one.
constexpr uint8_t kGuards[2] = {0x5a, 0xc3};

// Memory that starts with what no kernel should rely on.
template <typename T>
std::unique_ptr<T[]> Garbage(uint64_t count, uint8_t byte) {
  auto memory = std::make_unique_for_overwrite<T[]>(count + 1);
  std::memset(static_cast<void*>(memory.get()), byte, (count + 1) * sizeof(T));
  return memory;
}

// A pass with its tables in host memory.
struct EmulatedPass {
  std::vector<ElementRange> held;
  cuda::HostTables host;
  cuda::DiffTables tables{};
  cuda::Counters counters{};
  std::vector<cuda::Counters> marks = std::vector<cuda::Counters>(kMostParts + 1);
  std::unique_ptr<cuda::TileRecord[]> tiles;
  std::vector<cuda::TensorSumsEntry> sums;
  std::unique_ptr<__uint128_t[]> slab, arena;
  std::unique_ptr<cuda::ChunkItem[]> items;
  std::unique_ptr<cuda::ChunkRecord[]> chunks;
  std::unique_ptr<cuda::Piece[]> pieces;
  std::unique_ptr<unsigned long long[]> block_sums;
  std::unique_ptr<cuda::LeafJob[]> leaves;
  std::unique_ptr<uint32_t[]> leaf_digests, tile_digests;
  // Sides at addresses of the test's choice, old and new ones in turn.
  std::vector<std::vector<uint8_t>> moved;

  // shift: elements by which both sides are off an aligned address, the new one twice.
  EmulatedPass(const TwoSides& sides, const FingerprintKey& key, uint64_t patch_bytes,
               uint32_t shift)
      : EmulatedPass(sides, AllOf(sides.manifest), key, patch_bytes, shift) {}
  EmulatedPass(const TwoSides& sides, std::vector<ElementRange> ranges, const FingerprintKey& key,
               uint64_t patch_bytes, uint32_t shift)
      : held(std::move(ranges)), host(cuda::MakeHostTables(sides.manifest, key, held)) {
    for (cuda::TensorEntry& entry : host.tensors) {
      const ElementRange& range = held[entry.index];
      const auto begin = [&](const Weights& weights, uint32_t off) {
        return cuda::BeginOfTensor(entry,
                                   Place(HeldBytes(sides.manifest, weights, entry.index, range),
                                         off * entry.element_bytes));
      };
      entry.old_data = begin(sides.before, shift);
      entry.new_data = begin(sides.after, 2 * shift);
    }
    const cuda::TableSizes sizes = cuda::SizesFor(sides.manifest, patch_bytes, true);
    const uint64_t tile_count = sides.manifest.tiles();
    tiles = Garbage<cuda::TileRecord>(tile_count, host.holds_all ? 0xee : 0);
    sums.resize(host.tensors.size());
    slab = Garbage<__uint128_t>(sizes.slab_bytes / 16, 0xee);
    arena = Garbage<__uint128_t>(sizes.arena_bytes / 16, 0xee);
    items = Garbage<cuda::ChunkItem>(sides.manifest.spans() * kSpanTiles, 0xee);
    chunks = Garbage<cuda::ChunkRecord>(sizes.max_chunks, 0xee);
    pieces = Garbage<cuda::Piece>(sizes.max_pieces, 0xee);
    block_sums = Garbage<unsigned long long>(sizes.arena_bytes / 128, 0xee);
    leaves = Garbage<cuda::LeafJob>(sizes.max_leaves, 0xee);
    leaf_digests = Garbage<uint32_t>(8 * uint64_t{sizes.max_leaves}, 0xee);
    tile_digests = Garbage<uint32_t>(8 * tile_count, 0xee);
    tables = {host.tensors.data(),
              host.tile_tensors.data(),
              host.holds_all ? nullptr : host.held_tiles.data(),
              host.multipliers.data(),
              tiles.get(),
              sums.data(),
              &counters,
              marks.data(),
              reinterpret_cast<uint8_t*>(slab.get()),
              reinterpret_cast<uint8_t*>(arena.get()),
              items.get(),
              chunks.get(),
              pieces.get(),
              block_sums.get(),
              leaves.get(),
              leaf_digests.get(),
              tile_digests.get(),
              sizes.slab_bytes,
              sizes.arena_bytes,
              0,
              tile_count,
              0,
              host.held_count(),
              kTransaction.value(),
              kChunkTargetBytes,
              0,
              static_cast<uint32_t>(sides.manifest.spans()),
              sizes.max_chunks,
              sizes.max_pieces,
              sizes.max_leaves,
              kContributor,
              1,
              0};
  }

  const uint8_t* Place(absl::Span<const uint8_t> bytes, uint32_t shift) {
    const uint8_t guard = kGuards[moved.size() % 2];
    std::vector<uint8_t>& copy = moved.emplace_back(bytes.size() + 48, guard);
    uint8_t* const start = StartOf(copy) + shift % 16;
    std::copy(bytes.begin(), bytes.end(), start);
    return start;
  }
  static uint8_t* StartOf(std::vector<uint8_t>& copy) {
    return copy.data() + (16 - reinterpret_cast<uintptr_t>(copy.data()) % 16);
  }

  cuda::DiffTables Part(uint32_t part, uint32_t parts) const {
    return cuda::PartOf(tables, host, part, parts);
  }

  // ahead: so many parts are compared before chunks are made of the first.
  void Run(uint32_t parts = 1, uint32_t ahead = 1) {
    for (uint32_t part = 0; part < ahead; ++part) Compare(Part(part, parts));
    for (uint32_t part = 0; part < parts; ++part) {
      if (part >= ahead) Compare(Part(part, parts));
      Seal(Part(part, parts));
      marks[part + 1] = counters;
    }
  }

  void Compare(cuda::DiffTables part) {
    counters.next_tile = 0;
    const uint64_t held = part.end_held - part.first_held;
    part.tile_runs = cuda::TileRuns(held, kBlocks);
    part.block_turns = held % 2 == 0 ? cuda::kFewTurns : cuda::kAllTurns;
    emulation::Launch(cuda::DiffBlocks(held, kBlocks, part.block_turns), cuda::kDiffThreads,
                      [&part] {
                        part.held_tiles == nullptr ? cuda::DiffKernel<true, false>(part)
                                                   : cuda::DiffKernel<true, true>(part);
                      });
  }
  static void Seal(const cuda::DiffTables& part) {
    using emulation::Launch;
    Launch(part.span_count, cuda::kPlanThreads, [&part] { cuda::PlanKernel(part); });
    Launch(2, cuda::kAssembleThreads, [&part] { cuda::AssembleKernel(part); });
    Launch(2, cuda::kSealThreads, [&part] { cuda::SealKernel(part); });
    Launch(1, cuda::kLeafThreads, [&part] { cuda::LeafKernel(part); });
    Launch(1, cuda::kRootThreads, [&part] { cuda::RootKernel(part); });
  }
};

void RequireSame(const TwoSides& whole, const EmulatedPass& pass, const FingerprintKey& key) {
  const TwoSides sides = whole.Within(pass.held);
  const ReferenceDiff reference = DiffOnHost(sides, kTransaction, kContributor);
  REQUIRE(pass.counters.changed == reference.changed);
  REQUIRE(pass.counters.changed_tiles == reference.tile_digests.size());
  REQUIRE(pass.counters.chunks == reference.chunks.size());
  for (uint32_t i = 0; i < pass.counters.chunks; ++i) {
    const cuda::ChunkRecord& chunk = pass.chunks[i];
    INFO("span " << chunk.span << " part " << chunk.part);
    const auto expected =
        reference.chunks.find({kContributor, chunk.span, static_cast<uint16_t>(chunk.part)});
    REQUIRE(expected != reference.chunks.end());
    const std::string_view bytes(reinterpret_cast<const char*>(pass.tables.arena + chunk.arena_at),
                                 chunk.size);
    const auto difference =
        std::mismatch(bytes.begin(), bytes.end(), expected->second.begin(), expected->second.end());
    INFO("differs at " << difference.first - bytes.begin() << " of " << bytes.size());
    REQUIRE((bytes == expected->second));
  }
  for (const auto& [place, digest] : reference.tile_digests) {
    const uint64_t tile = sides.manifest.GlobalTile(place);
    INFO("tile " << tile);
    REQUIRE(std::memcmp(&pass.tile_digests[8 * tile], digest.bytes.data(), 32) == 0);
  }
  const std::map<TensorIndex, TouchedSums> touched = TouchedOnHost(sides, key);
  for (size_t i = 0; i < pass.sums.size(); ++i) {
    const TensorIndex tensor = pass.host.tensors[i].index;
    INFO(sides.manifest.tensor(tensor).spec.name);
    const ElementRange& held = pass.held[tensor];
    const Fingerprint before = SumOnHost(sides.manifest, key, sides.before, tensor, held);
    const Fingerprint after = SumOnHost(sides.manifest, key, sides.after, tensor, held);
    const cuda::TensorSumsEntry& sums = pass.sums[i];
    const auto found = touched.find(tensor);
    const TouchedSums expected = found == touched.end() ? TouchedSums() : found->second;
    REQUIRE((sums.is_touched != 0) == (found != touched.end()));
    REQUIRE((expected.change() == after - before));
    for (int k = 0; k < 2; ++k) {
      REQUIRE(sums.after[k] == after.lanes[k]);
      REQUIRE(sums.touched_before[k] == expected.before.lanes[k]);
      REQUIRE(sums.touched_after[k] == expected.after.lanes[k]);
    }
  }
}

// The old side, moved by the pass's own changes, is the new one, and nothing beside it was written;
// and an audit of it says so.
void RequireMoved(const TwoSides& sides, const EmulatedPass& pass, const FingerprintKey& key) {
  emulation::Launch(2, cuda::kApplyThreads, [&pass] { cuda::MoveKernel(pass.tables); });
  std::vector<cuda::TensorEntry> entries = pass.host.tensors;
  for (cuda::TensorEntry& entry : entries) {
    const ElementRange& held = pass.held[entry.index];
    const auto wanted = HeldBytes(sides.manifest, sides.after, entry.index, held);
    INFO(sides.manifest.tensor(entry.index).spec.name);
    const uint8_t* const start = entry.old_data + held.first * entry.element_bytes;
    REQUIRE((absl::MakeConstSpan(start, wanted.size()) == wanted));
    const std::vector<uint8_t>& copy = pass.moved[2 * (&entry - entries.data())];
    const auto is_guard = [](uint8_t byte) { return byte == kGuards[0]; };
    REQUIRE(std::all_of(copy.data(), start, is_guard));
    REQUIRE(std::all_of(start + wanted.size(), copy.data() + copy.size(), is_guard));
    entry.new_data = entry.old_data;
  }
  std::vector<cuda::TensorSumsEntry> sums(entries.size());
  const cuda::AuditTables audit{entries.data(),
                                pass.tables.tile_tensors,
                                pass.tables.held_tiles,
                                pass.tables.multipliers,
                                sums.data(),
                                0,
                                pass.tables.end_held};
  emulation::Launch(3, cuda::kAuditThreads, [&audit] { cuda::AuditKernel(audit); });
  for (size_t i = 0; i < sums.size(); ++i) {
    const TensorIndex tensor = entries[i].index;
    const Fingerprint expected =
        SumOnHost(sides.manifest, key, sides.after, tensor, pass.held[tensor]);
    REQUIRE(sums[i].after[0] == expected.lanes[0]);
    REQUIRE(sums[i].after[1] == expected.lanes[1]);
  }
}

FingerprintKey RandomKey(std::mt19937_64& random) {
  Digest digest;
  for (uint8_t& byte : digest.bytes) byte = static_cast<uint8_t>(random());
  return FingerprintKey(digest);
}

}  // namespace

TEST_CASE("the device's differ writes the host's bytes, at all edges, densities and widths") {
  std::mt19937_64 random(TestSeed("differ"));
  const FingerprintKey key = RandomKey(random);
  for (const uint32_t shift : {0, 1}) {
    std::vector<ChangePattern> patterns = AllDensities();
    std::shuffle(patterns.begin(), patterns.end(), random);
    const TwoSides sides(EdgeTensors(), patterns, random);
    EmulatedPass pass(sides, key, sides.manifest.size_bytes() + 16 * sides.manifest.tiles(), shift);
    pass.Run();
    RequireSame(sides, pass, key);
    RequireMoved(sides, pass, key);
  }
}

TEST_CASE("the device's differ cuts chunks and spans where the host does") {
  std::mt19937_64 random(TestSeed("cuts"));
  const FingerprintKey key = RandomKey(random);
  // More than a span of small tensors; then eleven tiles of half a MiB.
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 540; ++i) {
    specs.push_back({absl::StrCat("small.", 1000 + i), Dtype::kBF16, {3}});
  }
  specs.push_back({"large", Dtype::kI64, {11 * kTileElements - 7}});
  const TwoSides sides(specs, {{1}, {0.4}}, random);
  EmulatedPass pass(sides, key, sides.manifest.size_bytes() + 16 * sides.manifest.tiles(), 0);
  pass.Run();
  RequireSame(sides, pass, key);
  REQUIRE(pass.counters.chunks >= 3);
}

TEST_CASE("the device's differ finds in parts what it finds in one") {
  std::mt19937_64 random(TestSeed("parts"));
  const FingerprintKey key = RandomKey(random);
  // Two spans; the first ends within the large tensor.
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 508; ++i) {
    specs.push_back({absl::StrCat("a.small.", 1000 + i), Dtype::kBF16, {3}});
  }
  specs.push_back({"b.large", Dtype::kU8, {8 * kTileElements - 7}});
  for (int i = 0; i < 20; ++i) {
    specs.push_back({absl::StrCat("c.small.", 1000 + i), Dtype::kF32, {1 + random() % 9}});
  }
  const TwoSides sides(specs, {{1}, {0.4}, {0}}, random);
  const uint64_t room = sides.manifest.size_bytes() + 16 * sides.manifest.tiles();
  REQUIRE(sides.manifest.spans() == 2);
  uint64_t needed = 0;
  for (const auto& [parts, ahead] : {std::pair(2u, 1u), std::pair(kMostParts, 4u)}) {
    INFO(parts << " parts, " << ahead << " ahead");
    EmulatedPass pass(sides, key, room, 0);
    pass.Run(parts, ahead);
    RequireSame(sides, pass, key);
    // Each part's chunks are listed, and lie, behind those of the one before.
    for (uint32_t part = 0; part < parts; ++part) {
      const cuda::DiffTables tables = pass.Part(part, parts);
      for (uint32_t i = pass.marks[part].chunks; i < pass.marks[part + 1].chunks; ++i) {
        REQUIRE(pass.chunks[i].span >= tables.first_span);
        REQUIRE(pass.chunks[i].span < tables.first_span + tables.span_count);
        REQUIRE(pass.chunks[i].arena_at >= pass.marks[part].arena_used);
      }
    }
    needed = pass.counters.slab_used;
    if (ahead == 1) RequireMoved(sides, pass, key);
  }
  // Room that is missing in a later part is counted to the end.
  EmulatedPass less(sides, key, needed - 16, 0);
  less.Run(2, 1);
  REQUIRE(less.counters.slab_used == needed);
  REQUIRE(less.marks[1].chunks > 0);
  REQUIRE(less.marks[2].chunks == less.marks[1].chunks);
}

// What passes have found, one contributor each.
class FoundChunks final : public PatchSource {
 public:
  explicit FoundChunks(const Manifest& manifest) : manifest_(manifest) {}
  void Take(const EmulatedPass& pass) {
    for (uint32_t i = 0; i < pass.counters.chunks; ++i) {
      const cuda::ChunkRecord& chunk = pass.chunks[i];
      chunks_[{kContributor, chunk.span, static_cast<uint16_t>(chunk.part)}].assign(
          reinterpret_cast<const char*>(pass.tables.arena + chunk.arena_at), chunk.size);
    }
  }
  absl::Status ReadSpan(uint32_t span,
                        const std::function<absl::Status(const ChunkView&)>& visit) const override {
    for (const auto& [key, bytes] : chunks_) {
      if (key.span != span) continue;
      const absl::StatusOr<ChunkView> view = ChunkView::Parse(bytes, manifest_);
      REQUIRE_OK(view);
      REQUIRE_OK(visit(*view));
    }
    return absl::OkStatus();
  }

 private:
  const Manifest& manifest_;
  std::map<ChunkKey, std::string> chunks_;
};

TEST_CASE("the device's differ finds in a share what the host finds there, and in all the whole") {
  std::mt19937_64 random(TestSeed("shares"));
  const FingerprintKey key = RandomKey(random);
  for (const uint32_t shift : {0, 1}) {
    std::vector<ChangePattern> patterns = AllDensities();
    std::shuffle(patterns.begin(), patterns.end(), random);
    const TwoSides sides(ShareTensors(), patterns, random);
    const size_t contributors = 2 + shift;
    std::vector<std::unique_ptr<FoundChunks>> found;
    std::vector<const PatchSource*> sources;
    for (const Share& share : RandomShares(sides.manifest, contributors, random)) {
      const absl::StatusOr<std::vector<ElementRange>> held = HeldRanges(sides.manifest, share);
      REQUIRE_OK(held);
      EmulatedPass pass(sides, *held, key,
                        sides.manifest.size_bytes() + 16 * sides.manifest.tiles(), shift);
      REQUIRE_FALSE(pass.host.holds_all);
      pass.Run();
      RequireSame(sides, pass, key);
      RequireMoved(sides, pass, key);
      found.push_back(std::make_unique<FoundChunks>(sides.manifest));
      found.back()->Take(pass);
      sources.push_back(found.back().get());
    }
    const std::unique_ptr<PatchSource> joined = MakeComposed(sides.manifest, sources);
    const Digest expected = DiffOnHost(sides, kTransaction, kContributor).digest;
    REQUIRE(ToHex(DigestOf(sides.manifest, *joined)) == ToHex(expected));
  }
}

TEST_CASE("the device's differ cuts a share into parts of about as many tiles") {
  std::mt19937_64 random(TestSeed("parts of shares"));
  const FingerprintKey key = RandomKey(random);
  // Four spans of small tensors, of which the share has the second and the last.
  std::vector<TensorSpec> specs;
  for (uint32_t i = 0; i < 4 * kSpanTiles; ++i) {
    specs.push_back({absl::StrCat(10000 + i), Dtype::kBF16, {3}});
  }
  const TwoSides sides(specs, {{1}, {0.4}}, random);
  Share share;
  for (TensorIndex i = 1 * kSpanTiles; i < 2 * kSpanTiles; ++i) share.push_back({i, {0, 3}});
  for (TensorIndex i = 3 * kSpanTiles; i < 4 * kSpanTiles; ++i) share.push_back({i, {0, 3}});
  const std::vector<ElementRange> held = *HeldRanges(sides.manifest, share);
  for (const uint32_t parts : {1u, 2u, kMostParts}) {
    INFO(parts << " parts");
    EmulatedPass pass(sides, held, key, sides.manifest.size_bytes() + 16 * sides.manifest.tiles(),
                      0);
    uint64_t end_tile = 0;
    for (uint32_t part = 0; part < parts; ++part) {
      const cuda::DiffTables tables = pass.Part(part, parts);
      REQUIRE(tables.first_tile == end_tile);
      REQUIRE(tables.first_span * kSpanTiles == end_tile);
      REQUIRE(tables.end_held - tables.first_held <= 1024 / std::min(parts, 2u));
      end_tile = tables.end_tile;
    }
    REQUIRE(end_tile == sides.manifest.tiles());
    if (parts != 2) continue;
    pass.Run(parts, 1);
    RequireSame(sides, pass, key);
    RequireMoved(sides, pass, key);
  }
}

TEST_CASE("the device's differ finds nothing where nothing is held") {
  std::mt19937_64 random(TestSeed("nothing held"));
  const FingerprintKey key = RandomKey(random);
  const TwoSides sides({{"t", Dtype::kBF16, {kTileElements}}}, {{1}}, random);
  EmulatedPass pass(sides, *HeldRanges(sides.manifest, {{{0, {256, 256}}}}), key, 1 << 20, 0);
  REQUIRE(pass.host.held_count() == 0);
  pass.Run(4, 2);
  RequireSame(sides, pass, key);
  REQUIRE(pass.counters.changed == 0);
}

TEST_CASE("the device's differ says how much room it would have needed, and writes no further") {
  std::mt19937_64 random(TestSeed("room"));
  const FingerprintKey key = RandomKey(random);
  const TwoSides sides({{"t", Dtype::kBF16, {3 * kTileElements}}}, {{0.02}}, random);
  EmulatedPass enough(sides, key, 1 << 20, 0);
  enough.Run();
  RequireSame(sides, enough, key);
  const uint64_t needed = enough.counters.slab_used;
  EmulatedPass exact(sides, key, needed, 0);
  exact.Run();
  RequireSame(sides, exact, key);
  EmulatedPass less(sides, key, needed - 16, 0);
  less.Run();
  REQUIRE(less.counters.slab_used == needed);
  REQUIRE(less.counters.chunks == 0);
  REQUIRE(less.tables.slab[less.tables.slab_bytes] == 0xee);
}

TEST_CASE("the device's XXH3 is xxHash's at every length of whole words") {
  std::mt19937_64 random(TestSeed("xxh3"));
  for (uint32_t words = 3; words <= 30; ++words) {
    std::vector<uint64_t> data(words);
    for (uint64_t& word : data) word = random();
    const auto word_at = [&data](uint32_t i) { return data[i]; };
    REQUIRE(cuda::XxhShort(word_at, 8 * words) == XXH3_64bits(data.data(), 8 * words));
  }
}

TEST_CASE("the device's tree digest is the host's at every length") {
  std::mt19937_64 random(TestSeed("tree digest"));
  for (uint32_t size = 1; size < 9000; size += size < 300 ? 1 : 97 + random() % 50) {
    std::vector<__uint128_t> words(size / 16 + 1);
    uint8_t* const bytes = reinterpret_cast<uint8_t*>(words.data());
    for (uint32_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(random());
    std::vector<uint32_t> leaves;
    for (uint32_t at = 0; at < size; at += cuda::kLeafBytes) {
      const uint4* const sixteens = reinterpret_cast<const uint4*>(bytes + at);
      const cuda::ShaState leaf = cuda::LeafHash([sixteens](uint32_t i) { return sixteens[i]; },
                                                 std::min(size - at, cuda::kLeafBytes));
      leaves.insert(leaves.end(), leaf.h, leaf.h + 8);
    }
    const cuda::ShaState root =
        cuda::RootHash(leaves.data(), static_cast<uint32_t>(leaves.size() / 8), size);
    Digest digest;
    for (int i = 0; i < 32; ++i) {
      digest.bytes[i] = static_cast<uint8_t>(root.h[i / 4] >> (24 - i % 4 * 8));
    }
    REQUIRE(digest == TreeDigest(absl::MakeConstSpan(bytes, size), cuda::kLeafBytes));
  }
}

}  // namespace wstore::testing
