// What MakePatched and MakeComposed make, with a budget of one's own: for tests.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "wstore/manifest.h"
#include "wstore/patch_source.h"

namespace wstore {

std::unique_ptr<DenseSource> MakePatched(const Manifest& manifest, const DenseSource& base,
                                         std::vector<const PatchSource*> patches,
                                         uint64_t merge_budget_bytes);

std::unique_ptr<PatchSource> MakeComposed(const Manifest& manifest,
                                          std::vector<const PatchSource*> patches,
                                          uint64_t merge_budget_bytes);

}  // namespace wstore
