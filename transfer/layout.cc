#include "wstore/layout.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "transfer/grouped_faults.h"
#include "transfer/overlap.h"
#include "transfer/strided_box.h"

namespace wstore {
namespace {

constexpr std::string_view kDigestLabel = "wstore layout 1";

// The last element that a nest reaches, or nothing if that is not below `limit`.
std::optional<uint64_t> LastElement(uint64_t offset, const Placement& placement,
                                    uint64_t PlacementDim::*stride, uint64_t limit) {
  uint64_t last = offset;
  for (const PlacementDim& dim : placement.dims) {
    uint64_t reach;
    if (__builtin_mul_overflow(dim.count - 1, dim.*stride, &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return std::nullopt;
    }
  }
  if (last >= limit) return std::nullopt;
  return last;
}

bool Nests(const Placement& placement) {
  uint64_t extent = 1;
  for (size_t k = placement.dims.size(); k-- > 0;) {
    const PlacementDim& dim = placement.dims[k];
    if (dim.count > 1 && dim.checkpoint_stride < extent) return false;
    extent += (dim.count - 1) * dim.checkpoint_stride;
  }
  return true;
}

// Checks a spec before anything is computed from it.
class SpecChecker {
 public:
  SpecChecker(const Manifest& manifest, const LayoutSpec& spec)
      : manifest_(manifest), spec_(spec) {}

  // Sizes of the buffers in bytes; 0 where there is a fault.
  std::vector<uint64_t> CheckBuffers() {
    std::vector<uint64_t> sizes;
    sizes.reserve(spec_.buffers.size());
    for (size_t i = 0; i < spec_.buffers.size(); ++i) {
      const LayoutBuffer& buffer = spec_.buffers[i];
      if (i > 0 && buffer.name == spec_.buffers[i - 1].name) {
        faults_.Add("repeated buffer names", absl::StrCat("'", buffer.name, "'"));
      }
      const absl::StatusOr<uint64_t> bytes = TensorBytes(buffer);
      if (!bytes.ok()) faults_.Add("buffers", std::string(bytes.status().message()));
      sizes.push_back(bytes.ok() ? *bytes : 0);
    }
    return sizes;
  }

  void CheckPlacements(absl::Span<const uint64_t> buffer_bytes) {
    for (const Placement& placement : spec_.placements) {
      if (placement.buffer >= spec_.buffers.size()) {
        faults_.Add("unknown buffers", absl::StrCat("index ", placement.buffer, " of ",
                                                    spec_.buffers.size(), " buffers"));
      } else if (CheckTensor(placement.tensor)) {
        CheckPlacement(placement, buffer_bytes[placement.buffer]);
      }
    }
  }

  // Fills `canonical`, which maps every tensor to itself so far.
  void CheckAliases(std::vector<TensorIndex>& canonical) {
    std::vector<bool> seen(manifest_.size());
    for (const AliasGroup& group : spec_.aliases) {
      if (group.size() < 2) {
        faults_.Add("alias groups", "one of fewer than two tensors");
        continue;
      }
      for (const TensorIndex member : group) {
        if (!CheckTensor(member) || !CheckTensor(group[0])) continue;
        const TensorSpec& first = manifest_.tensor(group[0]).spec;
        const TensorSpec& spec = manifest_.tensor(member).spec;
        if (seen[member]) faults_.Add("tensors in alias groups twice", Name(member));
        seen[member] = true;
        canonical[member] = group[0];
        if (spec.dtype != first.dtype || spec.shape != first.shape) {
          faults_.Add("aliases of unlike tensors",
                      absl::StrCat(Describe(first), " and ", Describe(spec)));
        }
      }
    }
    for (const Placement& placement : spec_.placements) {
      if (placement.tensor < canonical.size() && canonical[placement.tensor] != placement.tensor) {
        faults_.Add(
            "placed, but an alias of another tensor, whose placement is its own",
            absl::StrCat(Name(placement.tensor), " of ", Name(canonical[placement.tensor])));
      }
    }
  }

  void CheckIgnored() {
    std::vector<bool> is_ignored(manifest_.size());
    for (const TensorIndex tensor : spec_.ignored) {
      if (CheckTensor(tensor)) is_ignored[tensor] = true;
    }
    for (const Placement& placement : spec_.placements) {
      if (placement.tensor < is_ignored.size() && is_ignored[placement.tensor]) {
        faults_.Add("tensors both placed and ignored", Name(placement.tensor));
        is_ignored[placement.tensor] = false;  // named once
      }
    }
  }

  absl::Status ToStatus() const { return Prefixed(faults_.ToStatus(), "layout"); }

 private:
  std::string Name(TensorIndex tensor) const {
    return absl::StrCat("'", manifest_.tensor(tensor).spec.name, "'");
  }

  static std::string Describe(const TensorSpec& spec) {
    return absl::StrCat("'", spec.name, "' ", ToAbsl(DtypeName(spec.dtype)), " ",
                        ShapeString(spec.shape));
  }

  bool CheckTensor(TensorIndex tensor) {
    if (tensor < manifest_.size()) return true;
    faults_.Add("unknown tensors",
                absl::StrCat("index ", tensor, " of ", manifest_.size(), " tensors"));
    return false;
  }

  void CheckPlacement(const Placement& placement, uint64_t buffer_bytes) {
    const Manifest::Tensor& tensor = manifest_.tensor(placement.tensor);
    const LayoutBuffer& buffer = spec_.buffers[placement.buffer];
    const auto where = [&] {
      return absl::StrCat(Name(placement.tensor), " in '", buffer.name, "'");
    };
    if (placement.dims.size() > kMaxPlacementDims) {
      faults_.Add(
          "placements of too many dimensions",
          absl::StrCat(where(), ": ", placement.dims.size(), " of at most ", kMaxPlacementDims));
      return;
    }
    for (const PlacementDim& dim : placement.dims) {
      if (dim.count == 0 || dim.checkpoint_stride == 0 || dim.local_stride == 0) {
        faults_.Add("placements with a zero count or stride", where());
        return;
      }
    }
    if (tensor.spec.dtype != buffer.dtype) {
      faults_.Add("placements of another dtype than their buffer (nothing is converted)",
                  absl::StrCat(where(), ": ", ToAbsl(DtypeName(tensor.spec.dtype)), " in ",
                               ToAbsl(DtypeName(buffer.dtype))));
    }
    if (!LastElement(placement.checkpoint_offset, placement, &PlacementDim::checkpoint_stride,
                     tensor.elements)) {
      faults_.Add("placements out of the tensor's range",
                  absl::StrCat(where(), " from element ", placement.checkpoint_offset, " of ",
                               tensor.elements));
    } else if (!Nests(placement)) {
      faults_.Add("placements whose checkpoint dimensions do not nest, outermost first", where());
    }
    const uint64_t buffer_elements = buffer_bytes / StorageElementBytes(buffer.dtype);
    if (!LastElement(placement.local_offset, placement, &PlacementDim::local_stride,
                     buffer_elements)) {
      faults_.Add(
          "placements out of the buffer's range",
          absl::StrCat(where(), " from element ", placement.local_offset, " of ", buffer_elements));
    }
  }

  const Manifest& manifest_;
  const LayoutSpec& spec_;
  GroupedFaults faults_;
};

void SortBuffers(LayoutSpec& spec) {
  std::vector<uint32_t> order(spec.buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&spec](uint32_t a, uint32_t b) {
    return std::tie(spec.buffers[a].name, a) < std::tie(spec.buffers[b].name, b);
  });
  std::vector<LayoutBuffer> buffers;
  std::vector<uint32_t> place(order.size());
  buffers.reserve(order.size());
  for (const uint32_t old : order) {
    place[old] = static_cast<uint32_t>(buffers.size());
    buffers.push_back(std::move(spec.buffers[old]));
  }
  spec.buffers = std::move(buffers);
  for (Placement& placement : spec.placements) {
    // An index out of range stays so, and is refused.
    if (placement.buffer < place.size()) placement.buffer = place[placement.buffer];
  }
}

void SortPlacements(LayoutSpec& spec) {
  for (Placement& placement : spec.placements) NormalizeDims(placement);
  std::sort(spec.placements.begin(), spec.placements.end(),
            [](const Placement& a, const Placement& b) {
              return std::tie(a.tensor, a.checkpoint_offset, a.buffer, a.local_offset) <
                     std::tie(b.tensor, b.checkpoint_offset, b.buffer, b.local_offset);
            });
}

void SortSets(LayoutSpec& spec) {
  for (AliasGroup& group : spec.aliases) {
    if (!group.empty()) std::sort(group.begin() + 1, group.end());
  }
  std::sort(spec.aliases.begin(), spec.aliases.end());
  std::sort(spec.ignored.begin(), spec.ignored.end());
  spec.ignored.erase(std::unique(spec.ignored.begin(), spec.ignored.end()), spec.ignored.end());
}

void HashName(Sha256& hash, std::string_view name) { hash.UpdateU64(name.size()).Update(name); }

Digest ComputeDigest(const Manifest& manifest, const LayoutSpec& spec) {
  Sha256 hash;
  const auto hash_tensor = [&](TensorIndex tensor) {
    HashName(hash, manifest.tensor(tensor).spec.name);
  };
  HashName(hash, kDigestLabel);
  hash.UpdateU64(spec.buffers.size());
  for (const LayoutBuffer& buffer : spec.buffers) {
    HashName(hash, buffer.name);
    hash.UpdateU64(static_cast<uint64_t>(buffer.dtype)).UpdateU64(buffer.shape.size());
    for (const uint64_t dimension : buffer.shape) hash.UpdateU64(dimension);
  }
  hash.UpdateU64(spec.placements.size());
  for (const Placement& placement : spec.placements) {
    hash_tensor(placement.tensor);
    hash.UpdateU64(placement.checkpoint_offset).UpdateU64(placement.buffer);
    hash.UpdateU64(placement.local_offset).UpdateU64(placement.dims.size());
    for (const PlacementDim& dim : placement.dims) {
      hash.UpdateU64(dim.count).UpdateU64(dim.checkpoint_stride).UpdateU64(dim.local_stride);
    }
  }
  hash.UpdateU64(spec.aliases.size());
  for (const AliasGroup& group : spec.aliases) {
    hash.UpdateU64(group.size());
    for (const TensorIndex member : group) hash_tensor(member);
  }
  hash.UpdateU64(spec.ignored.size());
  for (const TensorIndex tensor : spec.ignored) hash_tensor(tensor);
  return hash.Finish();
}

}  // namespace

uint64_t Placement::elements() const {
  uint64_t product = 1;
  for (const PlacementDim& dim : dims) product *= dim.count;
  return product;
}

absl::StatusOr<Layout> Layout::Create(const Manifest& manifest, LayoutSpec spec,
                                      uint64_t generation) {
  Layout layout;
  layout.generation_ = generation;
  layout.canonical_.resize(manifest.size());
  std::iota(layout.canonical_.begin(), layout.canonical_.end(), 0);

  SortBuffers(spec);
  SpecChecker checker(manifest, spec);
  layout.buffer_bytes_ = checker.CheckBuffers();
  checker.CheckPlacements(layout.buffer_bytes_);
  checker.CheckAliases(layout.canonical_);
  checker.CheckIgnored();
  RETURN_IF_ERROR(checker.ToStatus());

  SortPlacements(spec);
  SortSets(spec);
  RETURN_IF_ERROR(CheckLocalOverlaps(manifest, spec));

  layout.first_placement_.resize(manifest.size() + 1);
  for (const Placement& placement : spec.placements)
    ++layout.first_placement_[placement.tensor + 1];
  std::partial_sum(layout.first_placement_.begin(), layout.first_placement_.end(),
                   layout.first_placement_.begin());
  layout.digest_ = ComputeDigest(manifest, spec);
  layout.spec_ = std::move(spec);
  return layout;
}

absl::Span<const Placement> Layout::placements(TensorIndex tensor) const {
  WSTORE_CHECK(tensor + 1 < first_placement_.size());
  const uint32_t first = first_placement_[tensor];
  return absl::MakeConstSpan(spec_.placements).subspan(first, first_placement_[tensor + 1] - first);
}

TensorSet TensorsHeld(const Layout& layout) {
  std::vector<TensorIndex> held;
  for (TensorIndex tensor = 0; tensor < layout.tensors(); ++tensor) {
    if (!layout.placements(layout.CanonicalTensor(tensor)).empty()) held.push_back(tensor);
  }
  return TensorSet::Of(held, layout.tensors());
}

}  // namespace wstore
