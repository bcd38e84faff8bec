#include "transfer/replica/exchange.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace wstore {
namespace {

// Writes that did not begin are tried again, lest one refused write cost the replica.
constexpr int kTakeBackAttempts = 3;

// Takes back the units in room->undo_units. Their expected.before is what must come back.
ExchangeResult TakeBack(MemoryBackend& backend, ExchangeRoom* room) {
  ExchangeResult result;
  absl::Span<Unit> left(room->undo_units);
  for (int attempt = 0; attempt < kTakeBackAttempts && !left.empty(); ++attempt) {
    const absl::Span<UnitOutcome> outcomes = absl::MakeSpan(room->undo_outcomes).first(left.size());
    std::fill(outcomes.begin(), outcomes.end(), UnitOutcome());
    result.backend = backend.Exchange(left, outcomes);
    size_t kept = 0;
    for (size_t i = 0; i < left.size(); ++i) {
      const UnitOutcome& outcome = outcomes[i];
      if (outcome.progress == UnitProgress::kUnknown) {
        return {ExchangeEnd::kUnknown, result.backend, &left[i]};
      }
      const bool is_untouched = outcome.progress == UnitProgress::kUntouched;
      if (!is_untouched && outcome.found.after != left[i].expected.before) {
        return {ExchangeEnd::kNotTakenBack, result.backend, &left[i]};
      }
      if (is_untouched) left[kept++] = left[i];
    }
    left = left.first(kept);
  }
  if (!left.empty()) {
    result.end = ExchangeEnd::kNotTakenBack;
    result.unit = &left[0];
  }
  return result;
}

}  // namespace

void ExchangeRoom::Reserve(size_t units) {
  outcomes.resize(units);
  undo_units.reserve(units);
  undo_outcomes.resize(units);
}

ExchangeResult WritePatch(MemoryBackend& backend, const StagedPatch& patch, ExchangeRoom* room) {
  std::fill(room->outcomes.begin(), room->outcomes.end(), UnitOutcome());
  ExchangeResult result;
  result.backend = backend.Exchange(patch.units, absl::MakeSpan(room->outcomes));
  room->undo_units.clear();
  for (size_t i = 0; i < patch.units.size(); ++i) {
    const Unit& unit = patch.units[i];
    const UnitOutcome& outcome = room->outcomes[i];
    ExchangeEnd end = ExchangeEnd::kDone;
    if (outcome.progress == UnitProgress::kUnknown) {
      end = ExchangeEnd::kUnknown;
    } else if (outcome.progress == UnitProgress::kUntouched) {
      end = ExchangeEnd::kTakenBack;
    } else {
      if (outcome.found.before != unit.expected.before) {
        end = ExchangeEnd::kForeignChange;
      } else if (outcome.found.after != unit.expected.after) {
        end = ExchangeEnd::kTakenBack;
      }
      Unit undo = unit;
      undo.expected = {outcome.found.before, outcome.found.after};
      room->undo_units.push_back(undo);
    }
    if (end > result.end) {
      result.end = end;
      result.unit = &unit;
    }
  }
  if (!result.backend.ok()) result.end = std::max(result.end, ExchangeEnd::kTakenBack);
  if (result.end == ExchangeEnd::kDone || result.end == ExchangeEnd::kUnknown) return result;
  const ExchangeResult undone = TakeBack(backend, room);
  return undone.end == ExchangeEnd::kDone ? result : undone;
}

ExchangeResult TakeBackPatch(MemoryBackend& backend, const StagedPatch& patch, ExchangeRoom* room) {
  room->undo_units.assign(patch.units.begin(), patch.units.end());
  return TakeBack(backend, room);
}

std::string DescribeUnit(const Plan& plan, const Unit& unit) {
  const auto describe = [&plan](const StagedGroup& group) {
    const TensorIndex tensor = plan.cell(group.cell).box->tensor;
    return absl::StrCat("tile ", group.tile, " of tensor '",
                        plan.manifest().tensor(tensor).spec.name, "'");
  };
  const std::string first = describe(unit.groups().front());
  const std::string last = describe(unit.groups().back());
  return first == last ? first : absl::StrCat(first, " to ", last);
}

}  // namespace wstore
