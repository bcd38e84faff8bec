#include "transfer/overlap.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "transfer/grouped_faults.h"
#include "transfer/strided_box.h"

namespace wstore {
namespace {

// Bounds the time of one check to well under a second. The layouts of engines take a few steps a
// placement.
constexpr uint64_t kMaxSteps = uint64_t{1} << 24;

struct Place {
  const Placement* placement;
  StridedBox box;
  uint64_t last;
};

std::string Describe(const Manifest& manifest, const Placement& placement) {
  return absl::StrCat("'", manifest.tensor(placement.tensor).spec.name, "' from element ",
                      placement.checkpoint_offset);
}

class OverlapChecker {
 public:
  OverlapChecker(const Manifest& manifest, const LayoutSpec& spec)
      : manifest_(manifest), spec_(spec) {}

  absl::Status Check() {
    std::vector<Place> places;
    places.reserve(spec_.placements.size());
    for (const Placement& placement : spec_.placements) {
      places.push_back({&placement, LocalBox(placement), 0});
      places.back().last = places.back().box.last();
      RETURN_IF_ERROR(Judge(RepeatsItself(places.back().box, steps_left_), placement, placement));
    }
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return std::tie(a.placement->buffer, a.box.offset) <
             std::tie(b.placement->buffer, b.box.offset);
    });
    // Placements whose range of elements reaches past the beginning of the one at hand: nearly
    // always none.
    std::vector<const Place*> open;
    for (const Place& place : places) {
      const auto is_past = [&place](const Place* other) {
        return other->placement->buffer != place.placement->buffer ||
               other->last < place.box.offset;
      };
      open.erase(std::remove_if(open.begin(), open.end(), is_past), open.end());
      for (const Place* other : open) {
        if (steps_left_ > 0) --steps_left_;
        RETURN_IF_ERROR(Judge(Intersect(other->box, place.box, steps_left_), *other->placement,
                              *place.placement));
      }
      open.push_back(&place);
    }
    return Prefixed(faults_.ToStatus(), "layout");
  }

 private:
  absl::Status Judge(Answer answer, const Placement& a, const Placement& b) {
    const std::string& buffer = spec_.buffers[a.buffer].name;
    if (answer == Answer::kUnknown || steps_left_ == 0) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "layout: whether placements overlap in buffer '", buffer,
          "' takes more than 2^24 steps to tell; let their strides divide each other, or split the "
          "buffer (the check ended at ",
          Describe(manifest_, a), " and ", Describe(manifest_, b), ")"));
    }
    if (answer == Answer::kYes) {
      faults_.Add("placements that overlap in local memory",
                  &a == &b ? absl::StrCat(Describe(manifest_, a), " with itself in '", buffer, "'")
                           : absl::StrCat(Describe(manifest_, a), " and ", Describe(manifest_, b),
                                          " in '", buffer, "'"));
    }
    return absl::OkStatus();
  }

  const Manifest& manifest_;
  const LayoutSpec& spec_;
  uint64_t steps_left_ = kMaxSteps;
  GroupedFaults faults_;
};

}  // namespace

absl::Status CheckLocalOverlaps(const Manifest& manifest, const LayoutSpec& spec) {
  return OverlapChecker(manifest, spec).Check();
}

}  // namespace wstore
