// Random bytes from the operating system, for identifiers.
#pragma once

#include <cstddef>
#include <string>

namespace wstore {

// Unpredictable, and different in every process. Thread-safe.
std::string SecureRandomBytes(size_t size);

}  // namespace wstore
