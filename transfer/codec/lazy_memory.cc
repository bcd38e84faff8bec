#include "transfer/codec/lazy_memory.h"

#include <sys/mman.h>

#include "common/check.h"

namespace wstore {
namespace {

constexpr uint64_t kSmallPagesBytes = 2 << 20;

}  // namespace

LazyMemory::LazyMemory(uint64_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes == 0) return;
  void* const data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  WSTORE_CHECK(data != MAP_FAILED);
  data_ = static_cast<uint8_t*>(data);
  if (size_bytes > kSmallPagesBytes) {
    // Only a hint: a system without huge pages refuses it, and nothing is lost.
    (void)madvise(data_ + kSmallPagesBytes, size_bytes - kSmallPagesBytes, MADV_HUGEPAGE);
  }
}

LazyMemory::~LazyMemory() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
}

}  // namespace wstore
