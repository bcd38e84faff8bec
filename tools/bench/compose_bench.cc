// wstore bench compose: the difference across many versions.
#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "tools/bench/bench.h"
#include "tools/bench/harness.h"
#include "tools/bench/workload.h"
#include "wstore/store.h"

namespace wstore::bench {
namespace {

constexpr uint64_t kElements = 16 << 20;
constexpr double kDensity = 0.01;

// One random version on top of head: XOR bits of one unit, as an optimizer step makes them.
absl::Status PublishRandom(Store& store, uint64_t seed) {
  const TensorSpec& spec = store.manifest().tensor(0).spec;
  const uint64_t elements = store.manifest().tensor(0).elements;
  std::mt19937_64 random(seed);
  std::geometric_distribution<int64_t> gap(kDensity);
  std::vector<int64_t> indices;
  for (int64_t at = gap(random); at < static_cast<int64_t>(elements); at += 1 + gap(random)) {
    indices.push_back(at);
  }
  std::vector<uint8_t> values(2 * indices.size());
  for (size_t i = 0; i < values.size(); i += 2) {
    values[i] = static_cast<uint8_t>((2u << (random() % 2)) - 1);
  }
  TensorPatch patch;
  patch.name = spec.name;
  patch.dtype = spec.dtype;
  patch.shape = spec.shape;
  patch.indices = indices;
  patch.values = values;
  patch.form = TensorPatch::Form::kXor;
  ASSIGN_OR_RETURN(const std::unique_ptr<Transaction> transaction, store.Begin({}));
  RETURN_IF_ERROR(transaction->Add({&patch, 1}));
  return transaction->Commit().status();
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
  options.report(absl::StrCat("compose: publishing ", versions, " versions"));
  const std::string base = scratch / "base.safetensors";
  RETURN_IF_ERROR(WriteCheckpoints({kElements, kElements, 0, 1}, base, ""));
  ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, Store::Create(scratch / "store", base, {}));
  for (uint64_t i = 1; i <= versions; ++i) RETURN_IF_ERROR(PublishRandom(*store, i));
  const Manifest& manifest = store->manifest();

  options.report("compose: reading and decoding the chain, then its difference");
  uint64_t chain_elements = 0;
  ASSIGN_OR_RETURN(const double chain, Median(3, [&] {
                     return Seconds([&]() -> absl::Status {
                       chain_elements = 0;
                       for (uint64_t i = 1; i <= versions; ++i) {
                         ASSIGN_OR_RETURN(const std::unique_ptr<PatchSource> step,
                                          store->Difference(VersionId(i - 1), VersionId(i)));
                         ASSIGN_OR_RETURN(const uint64_t count, DecodeAll(manifest, *step));
                         chain_elements += count;
                       }
                       return absl::OkStatus();
                     });
                   }));
  uint64_t elements = 0;
  ASSIGN_OR_RETURN(const double composed, Median(3, [&] {
                     return Seconds([&]() -> absl::Status {
                       ASSIGN_OR_RETURN(const std::unique_ptr<PatchSource> difference,
                                        store->Difference(VersionId(0), VersionId(versions)));
                       ASSIGN_OR_RETURN(elements, DecodeAll(manifest, *difference));
                       return absl::OkStatus();
                     });
                   }));
  return std::vector<Measurement>{
      {"compose",
       absl::StrCat(versions, " versions, ", chain_elements, " changes of ", elements,
                    " elements, bf16 ", DensityName(kDensity)),
       composed, "s", "reading and decoding each version", chain,
       static_cast<double>(store->status().journal_bytes)}};
}

}  // namespace wstore::bench
