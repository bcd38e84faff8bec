// A store that a server holds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tools/wstore/store_access.h"

namespace wstore::cli {

struct ServedOptions {
  // Of the store, if it is on this machine; empty: elsewhere.
  std::string directory;
  // How long a call may take, and what sends content; 0: a minute, and ten.
  int64_t timeout_ms = 0;
};

std::unique_ptr<StoreAccess> MakeServedAccess(std::shared_ptr<Client> client,
                                              const ServedOptions& options);

}  // namespace wstore::cli
