// libstdc++ calls arc4random, which the C library has only since 2.36; many machines with a GPU
// have 2.35. This one takes its place when the library is linked in.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" uint32_t arc4random() {
  uint32_t value;
  if (getrandom(&value, sizeof(value), 0) != sizeof(value)) std::abort();
  return value;
}
