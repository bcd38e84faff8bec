// The ranks that follow a store, as people read them.
#pragma once

#include <string>
#include <vector>

#include "wstore/served.h"

namespace wstore::cli {

// A line a rank; empty if there are none. `width`: see Table::Render.
std::string RenderWorkers(const std::vector<WorkerInfo>& workers, size_t width);

}  // namespace wstore::cli
