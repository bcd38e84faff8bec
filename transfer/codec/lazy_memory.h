// Address space that becomes memory where it is touched.
#pragma once

#include <cstdint>
#include <utility>

namespace wstore {

// Zeroed, page-aligned memory of a fixed size. Only what is touched takes memory: in small pages at
// the start, in huge ones (where the system has them) past the first 2 MiB, so that neither a
// little nor a lot of use is slow. Move-only.
class LazyMemory {
 public:
  LazyMemory() = default;
  // Stops the process if there is no address space left.
  explicit LazyMemory(uint64_t size_bytes);
  LazyMemory(LazyMemory&& other) noexcept { swap(other); }
  LazyMemory& operator=(LazyMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~LazyMemory();

  uint8_t* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  void swap(LazyMemory& other) {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
  }

  uint8_t* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

}  // namespace wstore
