#include "common/check.h"

#include <cstdio>
#include <cstdlib>

namespace wstore::internal {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "wstore: internal error at %s:%d: check failed: %s\n", file, line,
               condition);
  std::abort();
}

}  // namespace wstore::internal
