#include "tools/wstore/difference.h"

#include <memory>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "tools/wstore/format.h"
#include "tools/wstore/table.h"

namespace wstore::cli {

absl::StatusOr<DifferenceCount> CountDifference(StoreAccess& store, VersionId from, VersionId to) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> manifest, store.manifest());
  ASSIGN_OR_RETURN(const std::unique_ptr<PatchSource> patches, store.Difference(from, to));
  DifferenceCount total;
  std::mutex mutex;
  const auto count_span = [&](uint64_t span) -> absl::Status {
    std::map<TensorIndex, uint64_t> in_span;
    const auto count_chunk = [&](const ChunkView& chunk) {
      for (const EncodedTile& tile : chunk.tiles()) in_span[tile.place.tensor] += tile.changed;
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(patches->ReadSpan(static_cast<uint32_t>(span), count_chunk));
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [tensor, changed] : in_span) {
      total.by_tensor[tensor] += changed;
      total.changed += changed;
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ParallelFor(manifest->spans(), DefaultParallelism(), count_span));
  return total;
}

namespace {

std::string SummaryOf(uint64_t changed, uint64_t tensors, uint64_t elements_in_all,
                      uint64_t tensors_in_all) {
  return absl::StrCat(FormatCount(changed), " of ", FormatCountOf(elements_in_all, "element"), " (",
                      FormatPercent(changed, elements_in_all), ") in ", FormatCount(tensors),
                      " of ", FormatCountOf(tensors_in_all, "tensor"));
}

}  // namespace

std::string Summary(uint64_t changed, uint64_t tensors, const BaseInfo& base) {
  return SummaryOf(changed, tensors, base.elements, base.tensors);
}

std::string RenderDifference(const DifferenceCount& difference, const Manifest& manifest) {
  std::string out;
  if (!difference.by_tensor.empty()) {
    using Align = Table::Align;
    // Names come last: they may be long, and nothing has to line up after them.
    Table table({{"CHANGED", Align::kRight},
                 {"OF", Align::kRight},
                 {"DENSITY", Align::kRight},
                 {"DTYPE"},
                 {"SHAPE"},
                 {"TENSOR"}});
    for (const auto& [index, changed] : difference.by_tensor) {
      const Manifest::Tensor& tensor = manifest.tensor(index);
      table.AddRow({FormatCount(changed), FormatCount(tensor.elements),
                    FormatPercent(changed, tensor.elements),
                    std::string(DtypeName(tensor.spec.dtype)), ShapeString(tensor.spec.shape),
                    Printable(tensor.spec.name)});
    }
    out = table.Render(0);
  }
  return out +
         SummaryOf(difference.changed, difference.by_tensor.size(), manifest.elements(),
                   manifest.size()) +
         "\n";
}

}  // namespace wstore::cli
