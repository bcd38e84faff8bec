// Writing a staged patch so that it can always be taken back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "transfer/replica/backend.h"
#include "transfer/replica/staged_patch.h"

namespace wstore {

// The memory that writing needs, taken before it begins.
struct ExchangeRoom {
  std::vector<UnitOutcome> outcomes;
  std::vector<Unit> undo_units;
  std::vector<UnitOutcome> undo_outcomes;

  // For a patch of so many units.
  void Reserve(size_t units);
};

enum class ExchangeEnd : uint8_t {
  kDone,           // every unit is written, and was read back as expected
  kTakenBack,      // something failed; every bit is as it was before
  kForeignChange,  // the bits that were overwritten were not those expected; they are back
  kUnknown,        // some write may or may not have happened
  kNotTakenBack,   // a write went wrong, and the bits from before did not come back
};

struct ExchangeResult {
  ExchangeEnd end = ExchangeEnd::kDone;
  absl::Status backend;        // what the backend said
  const Unit* unit = nullptr;  // the first at fault
};

// Writes all units and takes them back on any fault. Allocates nothing.
ExchangeResult WritePatch(MemoryBackend& backend, const StagedPatch& patch, ExchangeRoom* room);

// Takes a written patch back. kDone, kUnknown or kNotTakenBack. Allocates nothing.
ExchangeResult TakeBackPatch(MemoryBackend& backend, const StagedPatch& patch, ExchangeRoom* room);

// "tile 3 of tensor 'a' to tile 9 of tensor 'b'".
std::string DescribeUnit(const Plan& plan, const Unit& unit);

}  // namespace wstore
