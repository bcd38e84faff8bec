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
  // How long everything may take together, from connecting on; 0: two seconds to connect, a minute
  // for a call, and ten for one that carries content.
  int64_t timeout_ms = 0;
};

// Waits until the server answers.
absl::StatusOr<std::unique_ptr<StoreAccess>> ConnectAccess(std::shared_ptr<Client> client,
                                                           const ServedOptions& options);

}  // namespace wstore::cli
