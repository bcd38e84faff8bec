#include "wstore/patch_set.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/fault_list.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "transfer/codec/span_writer.h"
#include "transfer/codec/tensor_changes.h"

namespace wstore {
namespace {

// Finding near matches means a look at every name, so only the first unknown names get hints.
constexpr uint64_t kMostHints = 8;
constexpr size_t kHintNames = 3;

std::string UnknownName(const Manifest& manifest, const std::string& name, bool with_hint) {
  std::string text = absl::StrCat("'", name, "'");
  if (!with_hint) return text;
  const std::vector<std::string> near = manifest.NearMatches(name, kHintNames);
  if (!near.empty()) absl::StrAppend(&text, " (near: '", absl::StrJoin(near, "', '"), "')");
  return text;
}

absl::StatusOr<std::vector<TensorIndex>> FindTensors(const Manifest& manifest,
                                                     absl::Span<const TensorPatch> patches) {
  std::vector<TensorIndex> found;
  FaultList unknown;
  found.reserve(patches.size());
  for (const TensorPatch& patch : patches) {
    const std::optional<TensorIndex> tensor = manifest.Find(patch.name);
    if (tensor.has_value()) {
      found.push_back(*tensor);
    } else {
      unknown.Add(UnknownName(manifest, patch.name, unknown.size() < kMostHints));
    }
  }
  if (unknown.empty()) return found;
  return absl::InvalidArgumentError(absl::StrCat("the base has no tensor ", unknown.Text(", ")));
}

// "tensor 'a': BF16 [2, 3] in the patch, F32 [2, 3] in the base", or nothing.
absl::Status CheckSpecs(const Manifest& manifest, absl::Span<const TensorIndex> tensors,
                        absl::Span<const TensorPatch> patches) {
  FaultList faults;
  for (size_t i = 0; i < patches.size(); ++i) {
    const TensorSpec& base = manifest.tensor(tensors[i]).spec;
    const TensorPatch& patch = patches[i];
    if (patch.dtype == base.dtype && patch.shape == base.shape) continue;
    faults.Add(absl::StrCat("tensor '", base.name, "' is ", ToAbsl(DtypeName(patch.dtype)), " ",
                            ShapeString(patch.shape), " in the patch but ",
                            ToAbsl(DtypeName(base.dtype)), " ", ShapeString(base.shape),
                            " in the base"));
  }
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(faults.Text("; "), ". Nothing is converted or reshaped: send the base's"));
}

absl::Status CheckCounts(const Manifest& manifest, absl::Span<const TensorIndex> tensors,
                         absl::Span<const TensorPatch> patches) {
  FaultList faults;
  for (size_t i = 0; i < patches.size(); ++i) {
    const Manifest::Tensor& base = manifest.tensor(tensors[i]);
    const uint64_t needed_bytes = patches[i].indices.size() * base.element_bytes;
    if (patches[i].values.size() == needed_bytes) continue;
    faults.Add(absl::StrCat("tensor '", base.spec.name, "': ", patches[i].indices.size(),
                            " indices need ", needed_bytes, " bytes of values (",
                            base.element_bytes, " each), not ", patches[i].values.size()));
  }
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(faults.Text("; "));
}

// Copies of all patches, or what is wrong with their indices.
absl::StatusOr<std::vector<std::unique_ptr<TensorChanges>>> CopyAll(
    const Manifest& manifest, absl::Span<const TensorIndex> tensors,
    absl::Span<const TensorPatch> patches) {
  std::vector<std::unique_ptr<TensorChanges>> copies(patches.size());
  std::vector<absl::Status> statuses(patches.size());
  RETURN_IF_ERROR(ParallelFor(patches.size(), DefaultParallelism(), [&](uint64_t i) {
    absl::StatusOr<std::unique_ptr<TensorChanges>> copy =
        TensorChanges::Make(manifest.tensor(tensors[i]), patches[i]);
    if (copy.ok()) {
      copies[i] = *std::move(copy);
    } else {
      statuses[i] = copy.status();
    }
    return absl::OkStatus();
  }));
  FaultList repeated;
  FaultList out_of_range;
  for (const absl::Status& status : statuses) {
    if (status.ok()) continue;
    FaultList& faults = absl::IsOutOfRange(status) ? out_of_range : repeated;
    faults.Add(std::string(status.message()));
  }
  if (!repeated.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(repeated.Text("; "), ". An element can change once in a set"));
  }
  if (!out_of_range.empty()) return absl::OutOfRangeError(out_of_range.Text("; "));
  return copies;
}

// Groups of one tensor in one span.
struct Piece {
  uint32_t span;
  TensorIndex tensor;
  TensorChanges* changes;
  size_t first_group;
  size_t end_group;
};

absl::Status ResolvePieces(absl::Span<const Piece> pieces, const DenseSource& old) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SpanTiles> tiles, old.OpenSpan(pieces.front().span));
  const std::unique_ptr<uint8_t[]> old_tile(new uint8_t[kTileElements * 8]);
  for (const Piece& piece : pieces) {
    for (size_t group = piece.first_group; group < piece.end_group; ++group) {
      const TilePlace place{piece.tensor, piece.changes->tile(group)};
      RETURN_IF_ERROR(tiles->ReadTile(place, old_tile.get()));
      piece.changes->ResolveGroup(group, old_tile.get());
    }
  }
  return absl::OkStatus();
}

}  // namespace

PatchSetBuilder::PatchSetBuilder(const Manifest& manifest) : manifest_(manifest) {}
PatchSetBuilder::~PatchSetBuilder() = default;

absl::Status PatchSetBuilder::Add(absl::Span<const TensorPatch> patches) {
  ASSIGN_OR_RETURN(const std::vector<TensorIndex> found, FindTensors(manifest_, patches));
  RETURN_IF_ERROR(CheckOnce(found));
  RETURN_IF_ERROR(CheckSpecs(manifest_, found, patches));
  RETURN_IF_ERROR(CheckCounts(manifest_, found, patches));
  ASSIGN_OR_RETURN(std::vector<std::unique_ptr<TensorChanges>> copies,
                   CopyAll(manifest_, found, patches));
  for (size_t i = 0; i < found.size(); ++i) {
    if (!copies[i]->is_resolved()) ++unresolved_;
    tensors_.emplace(found[i], std::move(copies[i]));
  }
  return absl::OkStatus();
}

absl::Status PatchSetBuilder::CheckOnce(std::vector<TensorIndex> tensors) const {
  std::sort(tensors.begin(), tensors.end());
  FaultList repeated;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool is_first = i == 0 || tensors[i] != tensors[i - 1];
    const bool comes_again = i + 1 < tensors.size() && tensors[i] == tensors[i + 1];
    if (is_first && (comes_again || tensors_.contains(tensors[i]))) {
      repeated.Add(absl::StrCat("'", manifest_.tensor(tensors[i]).spec.name, "'"));
    }
  }
  if (repeated.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("more than one patch in the set for tensor ",
                                                 repeated.Text(", "), "; join them into one"));
}

absl::Status PatchSetBuilder::Resolve(const DenseSource& old) {
  std::vector<TensorChanges*> unresolved;
  std::vector<Piece> pieces;
  std::vector<size_t> span_starts;  // in pieces
  for (const auto& [tensor, changes] : tensors_) {
    if (changes->is_resolved()) continue;
    unresolved.push_back(changes.get());
    const uint64_t first_tile = manifest_.tensor(tensor).first_tile;
    for (size_t group = 0; group < changes->groups();) {
      const uint64_t span = (first_tile + changes->tile(group)) / kSpanTiles;
      // The tensor may have begun before the span, but this group has not.
      const size_t end = changes->LowerBound((span + 1) * kSpanTiles - first_tile);
      if (pieces.empty() || pieces.back().span != span) span_starts.push_back(pieces.size());
      pieces.push_back({static_cast<uint32_t>(span), tensor, changes.get(), group, end});
      group = end;
    }
  }
  for (TensorChanges* const changes : unresolved) changes->BeginResolve();
  span_starts.push_back(pieces.size());
  const absl::Status status =
      ParallelFor(span_starts.size() - 1, DefaultParallelism(), [&](uint64_t i) {
        return ResolvePieces(absl::MakeConstSpan(pieces).subspan(
                                 span_starts[i], span_starts[i + 1] - span_starts[i]),
                             old);
      });
  if (!status.ok()) {
    for (TensorChanges* const changes : unresolved) changes->CancelResolve();
    return status;
  }
  unresolved_ = 0;
  return ParallelFor(unresolved.size(), DefaultParallelism(), [&](uint64_t i) {
    unresolved[i]->FinishResolve();
    return absl::OkStatus();
  });
}

std::vector<TilePlace> PatchSetBuilder::Places() const {
  std::vector<TilePlace> places;
  for (const auto& [tensor, changes] : tensors_) {
    for (size_t group = 0; group < changes->groups(); ++group) {
      places.push_back({tensor, changes->tile(group)});
    }
  }
  return places;
}

uint64_t PatchSetBuilder::size_bytes() const {
  uint64_t size = 0;
  for (const auto& [tensor, changes] : tensors_) size += changes->size_bytes();
  return size;
}

absl::Status PatchSetBuilder::ReadSpan(
    uint32_t span, const std::function<absl::Status(const ChunkView&)>& visit) const {
  if (needs_resolve()) {
    return absl::FailedPreconditionError(absl::StrCat(
        unresolved_,
        " tensors of the patch set hold new bits; resolve them against the old first"));
  }
  const uint64_t first = uint64_t{span} * kSpanTiles;
  const uint64_t end = std::min(first + kSpanTiles, manifest_.tiles());
  SpanWriter writer(manifest_, visit);
  for (auto at = tensors_.lower_bound(manifest_.PlaceOf(first).tensor); at != tensors_.end();
       ++at) {
    const auto& [tensor, changes] = *at;
    const uint64_t first_tile = manifest_.tensor(tensor).first_tile;
    if (first_tile >= end) break;
    size_t group = changes->LowerBound(first > first_tile ? first - first_tile : 0);
    const size_t end_group = changes->LowerBound(end - first_tile);
    for (; group < end_group; ++group) {
      RETURN_IF_ERROR(writer.Add({tensor, changes->tile(group)}, changes->offsets(group),
                                 changes->values(group)));
    }
  }
  return writer.Finish();
}

}  // namespace wstore
