#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/strings.h"
#include "wstore/layout_builder.h"
#include "wstore/layout_file.h"

namespace wstore {
namespace {

// Elements begin, begin + step, ... below end of a dimension.
struct Range {
  uint64_t begin = 0;
  uint64_t end = 1;
  uint64_t step = 1;
};

// A dimension of a tensor that a placement has more than one element of.
struct Axis {
  uint64_t count = 0;
  uint64_t local_stride = 0;
};

// A placement as one range per dimension of its tensor.
struct Box {
  std::vector<Range> ranges;
  std::vector<uint64_t> local_strides;  // 0 where the range has one element
  std::vector<Axis> axes;               // the others, outermost first
};

std::string Quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Text(const std::vector<Range>& ranges) {
  const auto append = [](std::string* out, const Range& range) {
    absl::StrAppend(out, "[", range.begin, ", ", range.end);
    if (range.step != 1) absl::StrAppend(out, ", ", range.step);
    absl::StrAppend(out, "]");
  };
  return absl::StrCat("[", absl::StrJoin(ranges, ", ", append), "]");
}

// Nothing, if some dimension of the tensor is split into blocks.
std::optional<Box> ToBox(const Placement& placement, const Shape& shape) {
  Box box;
  box.ranges.resize(shape.size());
  box.local_strides.resize(shape.size());
  auto dims = placement.dims;
  uint64_t rest = placement.checkpoint_offset;
  uint64_t stride = 1;
  for (size_t j = shape.size(); j-- > 0; stride *= shape[j]) {
    const uint64_t begin = rest % shape[j];
    rest /= shape[j];
    box.ranges[j] = {begin, begin + 1, 1};
    // The innermost dimension of the placement is that of this dimension if it steps within it.
    if (dims.empty() || dims.back().checkpoint_stride >= stride * shape[j]) continue;
    PlacementDim& dim = dims.back();
    if (dim.checkpoint_stride % stride != 0) return std::nullopt;
    const uint64_t step = dim.checkpoint_stride / stride;
    box.local_strides[j] = dim.local_stride;
    const uint64_t last = begin + (dim.count - 1) * step;
    if (last < shape[j]) {
      box.ranges[j] = {begin, last + 1, step};
      box.axes.insert(box.axes.begin(), {dim.count, dim.local_stride});
      dims.pop_back();
      continue;
    }
    // It goes on in the dimension outside.
    if (step != 1 || begin != 0 || dim.count % shape[j] != 0) return std::nullopt;
    box.ranges[j] = {0, shape[j], 1};
    box.axes.insert(box.axes.begin(), {shape[j], dim.local_stride});
    dim = {dim.count / shape[j], stride * shape[j], dim.local_stride * shape[j]};
  }
  if (!dims.empty()) return std::nullopt;
  return box;
}

// The place of a box as a range per dimension of the buffer; nothing if it is no such thing.
std::optional<std::vector<Range>> ToSlice(const Placement& placement, const Box& box,
                                          const Shape& shape) {
  std::vector<Range> ranges(shape.size());
  uint64_t rest = placement.local_offset;
  uint64_t stride = 1;
  size_t axis = box.axes.size();  // those from here on have a dimension
  for (size_t k = shape.size(); k-- > 0; stride *= shape[k]) {
    const uint64_t begin = rest % shape[k];
    rest /= shape[k];
    ranges[k] = {begin, begin + 1, 1};
    if (axis == 0) continue;
    const Axis& next = box.axes[axis - 1];
    if (next.local_stride % stride != 0 || next.local_stride >= stride * shape[k]) continue;
    const uint64_t step = next.local_stride / stride;
    const uint64_t last = begin + (next.count - 1) * step;
    if (last >= shape[k]) return std::nullopt;
    ranges[k] = {begin, last + 1, step};
    --axis;
  }
  if (axis > 0) return std::nullopt;
  return ranges;
}

std::string PlacementText(const Placement& placement, const TensorSpec& tensor,
                          const LayoutBuffer& buffer) {
  std::string text = absl::StrCat("{\"tensor\": ", Quoted(tensor.name));
  const std::optional<Box> box = ToBox(placement, StorageShape(tensor));
  if (box) absl::StrAppend(&text, ", \"box\": ", Text(box->ranges));
  absl::StrAppend(&text, ", \"buffer\": ", Quoted(buffer.name));
  if (!box) {
    const auto append = [](std::string* out, const PlacementDim& dim) {
      absl::StrAppend(out, "[", dim.count, ", ", dim.checkpoint_stride, ", ", dim.local_stride,
                      "]");
    };
    absl::StrAppend(&text, ", \"from\": ", placement.checkpoint_offset,
                    ", \"to\": ", placement.local_offset, ", \"loops\": [",
                    absl::StrJoin(placement.dims, ", ", append), "]}");
    return text;
  }
  if (const auto slice = ToSlice(placement, *box, StorageShape(buffer))) {
    absl::StrAppend(&text, ", \"slice\": ", Text(*slice), "}");
  } else {
    absl::StrAppend(&text, ", \"offset\": ", placement.local_offset, ", \"strides\": [",
                    absl::StrJoin(box->local_strides, ", "), "]}");
  }
  return text;
}

// A list with one item a line.
std::string List(std::string_view key, const std::vector<std::string>& items) {
  if (items.empty()) return absl::StrCat("  ", Quoted(key), ": []");
  return absl::StrCat("  ", Quoted(key), ": [\n    ", absl::StrJoin(items, ",\n    "), "\n  ]");
}

}  // namespace

std::string WriteLayout(const Manifest& manifest, const Layout& layout) {
  const auto name = [&manifest](TensorIndex tensor) {
    return Quoted(manifest.tensor(tensor).spec.name);
  };
  std::vector<std::string> buffers;
  for (const LayoutBuffer& buffer : layout.buffers()) {
    buffers.push_back(absl::StrCat("{\"name\": ", Quoted(buffer.name), ", \"dtype\": \"",
                                   ToAbsl(DtypeName(buffer.dtype)),
                                   "\", \"shape\": ", ShapeString(buffer.shape), "}"));
  }
  std::vector<std::string> placements;
  for (const Placement& placement : layout.placements()) {
    placements.push_back(PlacementText(placement, manifest.tensor(placement.tensor).spec,
                                       layout.buffers()[placement.buffer]));
  }
  std::vector<std::string> aliases;
  for (const AliasGroup& group : layout.aliases()) {
    const auto append = [&name](std::string* out, TensorIndex tensor) { *out += name(tensor); };
    aliases.push_back(absl::StrCat("[", absl::StrJoin(group, ", ", append), "]"));
  }
  std::vector<std::string> ignored;
  for (const TensorIndex tensor : layout.ignored()) ignored.push_back(name(tensor));
  return absl::StrCat("{\n  \"format\": \"wstore layout\",\n  \"version\": 1,\n",
                      List("buffers", buffers), ",\n", List("placements", placements), ",\n",
                      List("aliases", aliases), ",\n", List("ignored", ignored), "\n}\n");
}

}  // namespace wstore
