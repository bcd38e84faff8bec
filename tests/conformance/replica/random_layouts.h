// Random layouts of whole instances.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/transfer/placement_reference.h"
#include "wstore/layout_builder.h"

namespace wstore::testing {

// Places `from` in a buffer of its own: as it is, padded, transposed, or with its rows spread.
inline void PlaceAnyhow(std::mt19937_64& random, LayoutBuilder& builder, const StridedView& from,
                        Dtype dtype) {
  static uint64_t number = 0;
  const std::string name = "buffer" + std::to_string(number++);
  const uint64_t rows = from.count(0);
  const uint64_t columns = from.count(1);
  switch (Below(random, 4)) {
    case 0:
      return builder.Place(from, builder.Buffer({name, dtype, {rows, columns}}));
    case 1:
      return builder.Place(from, builder.Buffer({name, dtype, {rows + 3, columns + 5}})
                                     .Slice(0, 2, 2 + rows)
                                     .Slice(1, 1, 1 + columns));
    case 2:
      return builder.Place(from.Permute({1, 0}), builder.Buffer({name, dtype, {columns, rows}}));
    default:
      return builder.Place(
          from, builder.Buffer({name, dtype, {2 * rows, columns}}).Slice(0, 1, 2 * rows, 2));
  }
}

// Cuts every tensor among the ranks by rows or by columns, or gives it to all; some twice.
inline std::vector<Layout> RandomLayouts(std::mt19937_64& random, const Manifest& manifest) {
  const uint64_t ranks = 1 + Below(random, 4);
  std::vector<LayoutBuilder> builders(ranks, LayoutBuilder(manifest));
  for (TensorIndex tensor = 0; tensor < manifest.size(); ++tensor) {
    const uint64_t way = Below(random, 4);
    const Dtype dtype = manifest.tensor(tensor).spec.dtype;
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      LayoutBuilder& builder = builders[rank];
      const StridedView whole = builder.Tensor(tensor);
      if (way < 2) {
        const uint64_t count = whole.count(way);
        const uint64_t begin = count * rank / ranks;
        const uint64_t end = count * (rank + 1) / ranks;
        if (begin < end) PlaceAnyhow(random, builder, whole.Slice(way, begin, end), dtype);
      } else {
        PlaceAnyhow(random, builder, whole, dtype);
        if (way == 3 && Below(random, 2) == 0) PlaceAnyhow(random, builder, whole, dtype);
      }
    }
  }
  std::vector<Layout> layouts;
  for (LayoutBuilder& builder : builders) {
    absl::StatusOr<Layout> layout = builder.Build(1);
    REQUIRE_OK(layout);
    layouts.push_back(*std::move(layout));
  }
  return layouts;
}

}  // namespace wstore::testing
