// wstore bench compose: the difference across many versions.
#include <random>

#include "absl/strings/str_cat.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "store/journal_patch.h"
#include "tools/bench/bench.h"
#include "tools/bench/harness.h"
#include "tools/bench/workload.h"
#include "wstore/chunk.h"
#include "wstore/journal.h"
#include "wstore/patch_set.h"

namespace wstore::bench {
namespace {

constexpr uint64_t kElements = 16 << 20;
constexpr double kDensity = 0.01;
constexpr int kRepetitions = 5;

// Writes the patch set of one version into the journal: XOR bits of one unit, as an optimizer step
// makes them. There is no store around it, because that would sum the old bits of every change, and
// so read the whole chain before each of a thousand versions.
absl::Status WriteVersion(const Manifest& manifest, uint64_t version, Journal& journal) {
  std::mt19937_64 random(version);
  std::geometric_distribution<int64_t> gap(kDensity);
  std::vector<int64_t> indices;
  for (int64_t at = gap(random); at < static_cast<int64_t>(kElements); at += 1 + gap(random)) {
    indices.push_back(at);
  }
  std::vector<uint8_t> values(2 * indices.size());
  for (size_t i = 0; i < values.size(); i += 2) {
    values[i] = static_cast<uint8_t>((2u << (random() % 2)) - 1);
  }
  const TensorSpec& spec = manifest.tensor(0).spec;
  const TensorPatch patch{spec.name, spec.dtype, spec.shape,
                          indices,   values,     TensorPatch::Form::kXor};
  PatchSetBuilder set(manifest);
  RETURN_IF_ERROR(set.Add({&patch, 1}));

  const TransactionNumber transaction(version);
  std::vector<NewRecord> records(1);
  records[0].body = absl::StrCat("v", version);
  ASSIGN_OR_RETURN(records[0].payload, journal.Stage(transaction));
  ChunkBuilder builder(manifest);
  for (uint32_t span = 0; span < manifest.spans(); ++span) {
    ChunkKey key{0, span, 0};
    RETURN_IF_ERROR(set.ReadSpan(span, [&](const ChunkView& chunk) {
      for (const EncodedTile& tile : chunk.tiles()) builder.AddTile(tile);
      const std::string packed = PackChunk(builder.Finish({transaction, key}), manifest);
      const absl::Status status = records[0].payload->Add(key, packed);
      ++key.part;
      return status;
    }));
  }
  return journal.Commit(std::move(records));
}

// Reads all spans of a difference on all cores and decodes every tile. Returns the elements.
absl::StatusOr<uint64_t> DecodeAll(const Manifest& manifest, const PatchSource& patch) {
  std::vector<uint64_t> counts(manifest.spans());
  RETURN_IF_ERROR(ParallelFor(manifest.spans(), DefaultParallelism(), [&](uint64_t span) {
    return patch.ReadSpan(static_cast<uint32_t>(span), [&](const ChunkView& chunk) {
      thread_local TileChanges changes;
      for (const EncodedTile& tile : chunk.tiles()) {
        DecodeTile(tile, &changes);
        counts[span] += changes.offsets.size();
      }
      return absl::OkStatus();
    });
  }));
  uint64_t total = 0;
  for (const uint64_t count : counts) total += count;
  return total;
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> RunCompose(const Options& options) {
  const uint64_t versions = options.full ? 1000 : 100;
  ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Create(options.directory));
  options.report(absl::StrCat("compose: writing ", versions, " versions"));
  ASSIGN_OR_RETURN(const Manifest manifest,
                   Manifest::Create({{"weights", Dtype::kBF16, {kElements}}}));
  ASSIGN_OR_RETURN(const std::unique_ptr<Journal> journal,
                   Journal::Create(scratch.path(), {"v0", nullptr}));
  std::vector<JournalPatch> chain;
  std::vector<const PatchSource*> patches;
  chain.reserve(versions);
  for (uint64_t i = 1; i <= versions; ++i) {
    RETURN_IF_ERROR(WriteVersion(manifest, i, *journal));
    patches.push_back(&chain.emplace_back(*journal, manifest, TransactionNumber(i)));
  }

  options.report("compose: reading and decoding the chain, and its difference");
  uint64_t changes = 0;
  const auto read_chain = [&]() -> absl::Status {
    changes = 0;
    for (const PatchSource* const patch : patches) {
      ASSIGN_OR_RETURN(const uint64_t count, DecodeAll(manifest, *patch));
      changes += count;
    }
    return absl::OkStatus();
  };
  uint64_t elements = 0;
  const auto read_difference = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(elements, DecodeAll(manifest, *MakeComposed(manifest, patches)));
    return absl::OkStatus();
  };
  std::vector<double> chain_seconds;
  std::vector<double> difference_seconds;
  for (int i = 0; i < kRepetitions; ++i) {
    ASSIGN_OR_RETURN(chain_seconds.emplace_back(), Seconds(read_chain));
    ASSIGN_OR_RETURN(difference_seconds.emplace_back(), Seconds(read_difference));
  }
  return std::vector<Measurement>{
      {"compose",
       absl::StrCat(versions, " versions, ", changes, " changes of ", elements, " elements, bf16 ",
                    DensityName(kDensity)),
       MedianOf(std::move(difference_seconds)), "s", "reading and decoding each version",
       MedianOf(std::move(chain_seconds)), static_cast<double>(journal->size_bytes())}};
}

}  // namespace wstore::bench
