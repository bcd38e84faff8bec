// Frames within one process, in host memory: for a trainer and CPU ranks that share one, and for
// tests of what is built upon transfer groups.
#pragma once

#include <memory>

#include "wstore/transfer_group.h"

namespace wstore {

// All ports of a process reach each other by the shared route; ports of others do not.
std::shared_ptr<TransferPort> MakeLocalTransferPort();

}  // namespace wstore
