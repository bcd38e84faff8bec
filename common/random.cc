#include "common/random.h"

#include <openssl/rand.h>

#include "common/check.h"

namespace wstore {

std::string SecureRandomBytes(size_t size) {
  std::string bytes(size, '\0');
  WSTORE_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(size)) ==
               1);
  return bytes;
}

}  // namespace wstore
