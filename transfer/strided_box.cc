#include "transfer/strided_box.h"

#include <algorithm>
#include <numeric>

namespace wstore {
namespace {

// One unknown of the equation sum of stride x v = target, lo <= v <= hi.
struct Term {
  int64_t stride = 0;  // at least 1
  int64_t lo = 0;
  int64_t hi = 0;
};

int64_t FloorDiv(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
int64_t CeilDiv(int64_t a, int64_t b) { return -FloorDiv(-a, b); }

// Solves the equation by trying values of the largest stride first. What the other terms can add up
// to leaves one or two values to try where strides nest.
class Solver {
 public:
  Solver(absl::Span<const Term> terms, uint64_t& steps_left)
      : terms_(terms.begin(), terms.end()), steps_left_(steps_left) {
    bounds_.resize(terms_.size() + 1);
    for (size_t k = terms_.size(); k-- > 0;) {
      const Term& term = terms_[k];
      bounds_[k] = {bounds_[k + 1].min + term.stride * term.lo,
                    bounds_[k + 1].max + term.stride * term.hi,
                    std::gcd(bounds_[k + 1].gcd, term.stride)};
    }
  }

  Answer Solve(size_t k, int64_t target) {
    const Bounds& all = bounds_[k];
    if (target < all.min || target > all.max) return Answer::kNo;
    if (k == terms_.size()) return Answer::kYes;
    if (target % all.gcd != 0) return Answer::kNo;
    const Term& term = terms_[k];
    const Bounds& rest = bounds_[k + 1];
    const int64_t lo = std::max(term.lo, CeilDiv(target - rest.max, term.stride));
    const int64_t hi = std::min(term.hi, FloorDiv(target - rest.min, term.stride));
    for (int64_t v = lo; v <= hi; ++v) {
      if (steps_left_ == 0) return Answer::kUnknown;
      --steps_left_;
      const Answer answer = Solve(k + 1, target - term.stride * v);
      if (answer != Answer::kNo) return answer;
    }
    return Answer::kNo;
  }

 private:
  // What the terms from k on can add up to: multiples of gcd within [min, max].
  struct Bounds {
    int64_t min = 0;
    int64_t max = 0;
    int64_t gcd = 0;
  };

  absl::InlinedVector<Term, 8> terms_;
  absl::InlinedVector<Bounds, 9> bounds_;
  uint64_t& steps_left_;
};

// Adds stride x [lo, hi] to terms that are sorted by descending stride. The sum of two ranges of
// one stride is a range.
void AddTerm(absl::InlinedVector<Term, 8>& terms, const Term& added) {
  auto it = terms.begin();
  while (it != terms.end() && it->stride > added.stride) ++it;
  if (it != terms.end() && it->stride == added.stride) {
    it->lo += added.lo;
    it->hi += added.hi;
  } else {
    terms.insert(it, added);
  }
}

}  // namespace

uint64_t StridedBox::last() const {
  uint64_t element = offset;
  for (const BoxDim& dim : dims) element += (dim.count - 1) * dim.stride;
  return element;
}

uint64_t StridedBox::elements() const {
  uint64_t product = 1;
  for (const BoxDim& dim : dims) product *= dim.count;
  return product;
}

void NormalizeDims(Placement& placement) {
  auto& dims = placement.dims;
  size_t kept = 0;
  for (const PlacementDim dim : dims) {
    if (dim.count == 1) continue;
    if (kept > 0) {
      PlacementDim& outer = dims[kept - 1];
      if (outer.checkpoint_stride == dim.count * dim.checkpoint_stride &&
          outer.local_stride == dim.count * dim.local_stride) {
        outer = {outer.count * dim.count, dim.checkpoint_stride, dim.local_stride};
        continue;
      }
    }
    dims[kept++] = dim;
  }
  dims.resize(kept);
}

StridedBox CheckpointBox(const Placement& placement) {
  StridedBox box{placement.checkpoint_offset, {}};
  for (const PlacementDim& dim : placement.dims) {
    if (dim.count > 1) box.dims.push_back({dim.count, dim.checkpoint_stride});
  }
  return box;
}

StridedBox LocalBox(const Placement& placement) {
  StridedBox box{placement.local_offset, {}};
  for (const PlacementDim& dim : placement.dims) {
    if (dim.count > 1) box.dims.push_back({dim.count, dim.local_stride});
  }
  std::sort(box.dims.begin(), box.dims.end(),
            [](const BoxDim& a, const BoxDim& b) { return a.stride > b.stride; });
  return box;
}

Answer Intersect(const StridedBox& a, const StridedBox& b, uint64_t& steps_left) {
  if (a.last() < b.offset || b.last() < a.offset) return Answer::kNo;
  // a.offset + sum over a's dims = b.offset + sum over b's dims.
  absl::InlinedVector<Term, 8> terms;
  for (const BoxDim& dim : a.dims) {
    AddTerm(terms, {static_cast<int64_t>(dim.stride), 0, static_cast<int64_t>(dim.count - 1)});
  }
  for (const BoxDim& dim : b.dims) {
    AddTerm(terms, {static_cast<int64_t>(dim.stride), -static_cast<int64_t>(dim.count - 1), 0});
  }
  const auto target = static_cast<int64_t>(b.offset) - static_cast<int64_t>(a.offset);
  return Solver(terms, steps_left).Solve(0, target);
}

Answer RepeatsItself(const StridedBox& box, uint64_t& steps_left) {
  bool nests = true;
  uint64_t extent = 1;  // of the dimensions inside
  for (size_t k = box.dims.size(); k-- > 0;) {
    nests = nests && box.dims[k].stride >= extent;
    extent += (box.dims[k].count - 1) * box.dims[k].stride;
  }
  if (nests) return Answer::kNo;
  // Two ways to one element differ by v != 0 with sum of stride x v = 0. Let the largest stride
  // with a part in it be that of dimension k, and v_k > 0.
  for (size_t k = 0; k < box.dims.size(); ++k) {
    absl::InlinedVector<Term, 8> terms;
    const auto reach = [](const BoxDim& dim) { return static_cast<int64_t>(dim.count - 1); };
    terms.push_back({static_cast<int64_t>(box.dims[k].stride), 1, reach(box.dims[k])});
    for (size_t j = k + 1; j < box.dims.size(); ++j) {
      // Not AddTerm: dimension k keeps to itself even where another has its stride.
      const BoxDim& dim = box.dims[j];
      terms.push_back({static_cast<int64_t>(dim.stride), -reach(dim), reach(dim)});
    }
    const Answer answer = Solver(terms, steps_left).Solve(0, 0);
    if (answer != Answer::kNo) return answer;
  }
  return Answer::kNo;
}

}  // namespace wstore
