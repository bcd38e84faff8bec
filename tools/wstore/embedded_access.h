// A store that this process opens itself.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "tools/wstore/store_access.h"

namespace wstore::cli {

// `reopen` opens the store again, to settle a commit whose outcome was not known.
std::unique_ptr<StoreAccess> MakeEmbeddedAccess(
    std::unique_ptr<Store> store, std::function<absl::StatusOr<std::unique_ptr<Store>>()> reopen);

}  // namespace wstore::cli
