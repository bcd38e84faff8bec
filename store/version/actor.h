// Who this process acts for.
#pragma once

#include <string>

namespace wstore {

// "user@host".
std::string DefaultActor();

}  // namespace wstore
