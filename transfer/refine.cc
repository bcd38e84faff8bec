#include "transfer/refine.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace wstore {
namespace {

constexpr size_t kMaxPieces = size_t{1} << 20;
// Deciding whether two boxes meet takes a few steps; where it takes more they are taken to meet.
constexpr uint64_t kMaxSteps = uint64_t{1} << 16;

// A range of values of one digit.
struct Range {
  uint64_t begin = 0;
  uint64_t count = 1;
};

// A mixed-radix system for element numbers: digit j counts steps of strides[j], largest first, and
// each stride divides the one before it. Every box whose strides are among these is a product of
// ranges of digits, but for carries.
class Grid {
 public:
  using Digits = absl::InlinedVector<Range, 8>;

  static absl::StatusOr<Grid> Create(absl::Span<const StridedBox* const> boxes) {
    Grid grid;
    grid.strides_.push_back(1);
    for (const StridedBox* box : boxes) {
      for (const BoxDim& dim : box->dims) grid.strides_.push_back(dim.stride);
    }
    std::sort(grid.strides_.begin(), grid.strides_.end(), std::greater<>());
    grid.strides_.erase(std::unique(grid.strides_.begin(), grid.strides_.end()),
                        grid.strides_.end());
    for (size_t j = 1; j < grid.strides_.size(); ++j) {
      if (grid.strides_[j - 1] % grid.strides_[j] != 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "placements that meet have no common grid: steps of ", grid.strides_[j - 1], " and ",
            grid.strides_[j], " elements; place the tensor in smaller boxes, such as whole rows"));
      }
    }
    return grid;
  }

  size_t digits() const { return strides_.size(); }
  uint64_t stride(size_t digit) const { return strides_[digit]; }

  // Appends the products of ranges that make up `box`.
  void Split(const StridedBox& box, std::vector<Digits>& parts) const {
    Digits digits(strides_.size());
    uint64_t rest = box.offset;
    size_t next_dim = 0;
    for (size_t j = 0; j < strides_.size(); ++j) {
      digits[j].begin = rest / strides_[j];
      rest %= strides_[j];
      if (next_dim < box.dims.size() && box.dims[next_dim].stride == strides_[j]) {
        digits[j].count = box.dims[next_dim++].count;
      }
    }
    SplitCarries(std::move(digits), strides_.size() - 1, parts);
  }

 private:
  // Digits behind `j` are in range. Where digit j runs over, the values before the overrun, whole
  // turns of the digit, and the values of the last turn become parts of their own.
  void SplitCarries(Digits digits, size_t j, std::vector<Digits>& parts) const {
    if (j == 0) {
      parts.push_back(std::move(digits));
      return;
    }
    const uint64_t radix = strides_[j - 1] / strides_[j];
    digits[j - 1].begin += digits[j].begin / radix;
    digits[j].begin %= radix;
    const Range whole = digits[j];
    if (whole.begin + whole.count <= radix) {
      SplitCarries(std::move(digits), j - 1, parts);
      return;
    }
    const uint64_t head = radix - whole.begin;
    const uint64_t turns = (whole.count - head) / radix;
    const uint64_t tail = (whole.count - head) % radix;
    // Dimensions nest, so a digit that makes whole turns is not under another dimension's steps.
    WSTORE_CHECK(turns == 0 || digits[j - 1].count == 1);
    Digits part = digits;
    part[j] = {whole.begin, head};
    SplitCarries(part, j - 1, parts);
    if (turns > 0) {
      part[j] = {0, radix};
      part[j - 1] = {digits[j - 1].begin + 1, turns};
      SplitCarries(part, j - 1, parts);
    }
    if (tail > 0) {
      part[j] = {0, tail};
      part[j - 1] = {digits[j - 1].begin + 1 + turns, digits[j - 1].count};
      SplitCarries(std::move(part), j - 1, parts);
    }
  }

  std::vector<uint64_t> strides_;
};

// Cuts each digit wherever a part begins or ends.
class Cutter {
 public:
  Cutter(const Grid& grid, absl::Span<const std::vector<Grid::Digits>> parts_by_box)
      : grid_(grid), cuts_(grid.digits()) {
    for (const auto& parts : parts_by_box) {
      for (const Grid::Digits& part : parts) {
        for (size_t j = 0; j < part.size(); ++j) {
          cuts_[j].push_back(part[j].begin);
          cuts_[j].push_back(part[j].begin + part[j].count);
        }
      }
    }
    for (std::vector<uint64_t>& cuts : cuts_) {
      std::sort(cuts.begin(), cuts.end());
      cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    }
  }

  // Appends the pieces of a part. False: more than kMaxPieces in all.
  bool Cut(const Grid::Digits& part, std::vector<StridedBox>& pieces) {
    return CutDigit(part, 0, StridedBox{}, pieces);
  }

 private:
  bool CutDigit(const Grid::Digits& part, size_t j, const StridedBox& outside,
                std::vector<StridedBox>& pieces) {
    if (j == part.size()) {
      pieces.push_back(outside);
      return ++count_ <= kMaxPieces;
    }
    const std::vector<uint64_t>& cuts = cuts_[j];
    const uint64_t end = part[j].begin + part[j].count;
    for (auto cut = std::lower_bound(cuts.begin(), cuts.end(), part[j].begin); *cut != end; ++cut) {
      StridedBox box = outside;
      box.offset += *cut * grid_.stride(j);
      const uint64_t count = *(cut + 1) - *cut;
      if (count > 1) box.dims.push_back({count, grid_.stride(j)});
      if (!CutDigit(part, j + 1, box, pieces)) return false;
    }
    return true;
  }

  const Grid& grid_;
  std::vector<std::vector<uint64_t>> cuts_;
  size_t count_ = 0;
};

// Cuts boxes that meet, given by their indices.
absl::Status RefineGroup(absl::Span<const StridedBox> boxes, absl::Span<const size_t> group,
                         std::vector<std::vector<StridedBox>>& pieces) {
  std::vector<const StridedBox*> members;
  for (const size_t index : group) members.push_back(&boxes[index]);
  ASSIGN_OR_RETURN(const Grid grid, Grid::Create(members));
  std::vector<std::vector<Grid::Digits>> parts(group.size());
  for (size_t i = 0; i < group.size(); ++i) grid.Split(*members[i], parts[i]);
  Cutter cutter(grid, parts);
  for (size_t i = 0; i < group.size(); ++i) {
    std::vector<StridedBox>& out = pieces[group[i]];
    for (const Grid::Digits& part : parts[i]) {
      if (!cutter.Cut(part, out)) {
        return absl::InvalidArgumentError(
            "placements that meet would be cut into more than 2^20 pieces; let them share more "
            "edges");
      }
    }
    std::sort(out.begin(), out.end(),
              [](const StridedBox& a, const StridedBox& b) { return a.offset < b.offset; });
  }
  return absl::OkStatus();
}

// Numbers of the groups of boxes that meet, by box: the least index of a box in the group.
std::vector<size_t> GroupBoxes(absl::Span<const StridedBox> boxes) {
  std::vector<size_t> group(boxes.size());
  std::iota(group.begin(), group.end(), 0);
  const auto find = [&group](size_t i) {
    while (group[i] != i) i = group[i] = group[group[i]];
    return i;
  };
  std::vector<size_t> order = group;
  std::sort(order.begin(), order.end(),
            [&boxes](size_t a, size_t b) { return boxes[a].offset < boxes[b].offset; });
  std::vector<size_t> open;
  for (const size_t i : order) {
    const auto is_past = [&](size_t other) { return boxes[other].last() < boxes[i].offset; };
    open.erase(std::remove_if(open.begin(), open.end(), is_past), open.end());
    for (const size_t other : open) {
      const size_t a = find(i);
      const size_t b = find(other);
      uint64_t steps = kMaxSteps;
      if (a != b && Intersect(boxes[i], boxes[other], steps) != Answer::kNo) {
        group[std::max(a, b)] = std::min(a, b);
      }
    }
    open.push_back(i);
  }
  for (size_t i = 0; i < group.size(); ++i) group[i] = find(i);
  return group;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<StridedBox>>> RefineBoxes(
    absl::Span<const StridedBox> boxes) {
  std::vector<std::vector<StridedBox>> pieces(boxes.size());
  const std::vector<size_t> group_of = GroupBoxes(boxes);
  std::vector<std::vector<size_t>> groups(boxes.size());
  for (size_t i = 0; i < boxes.size(); ++i) groups[group_of[i]].push_back(i);
  for (const std::vector<size_t>& group : groups) {
    if (group.size() == 1) {
      pieces[group[0]].push_back(boxes[group[0]]);
    } else if (!group.empty()) {
      RETURN_IF_ERROR(RefineGroup(boxes, group, pieces));
    }
  }
  return pieces;
}

Placement CutPlacement(const Placement& placement, const StridedBox& piece) {
  Placement cut{placement.tensor, piece.offset, placement.buffer, placement.local_offset, {}};
  uint64_t rest = piece.offset - placement.checkpoint_offset;
  for (const PlacementDim& dim : placement.dims) {
    cut.local_offset += rest / dim.checkpoint_stride * dim.local_stride;
    rest %= dim.checkpoint_stride;
  }
  WSTORE_CHECK(rest == 0);
  for (const BoxDim& dim : piece.dims) {
    // A step of the piece is some steps of the outermost dimension whose own step is not larger.
    uint64_t local_stride = 0;
    for (const PlacementDim& own : placement.dims) {
      if (own.checkpoint_stride <= dim.stride) {
        WSTORE_CHECK(dim.stride % own.checkpoint_stride == 0);
        local_stride = dim.stride / own.checkpoint_stride * own.local_stride;
        break;
      }
    }
    cut.dims.push_back({dim.count, dim.stride, local_stride});
  }
  NormalizeDims(cut);
  return cut;
}

}  // namespace wstore
