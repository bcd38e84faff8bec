// Weights in host memory.
#pragma once

#include <memory>

#include "transfer/replica/backend.h"

namespace wstore {

// threads: 0 for one per processor. They are started here.
std::shared_ptr<MemoryBackend> MakeHostBackend(int threads);

}  // namespace wstore
