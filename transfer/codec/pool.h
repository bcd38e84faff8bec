// Objects whose buffers are worth keeping from one use to the next.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace wstore {

// Holds as many objects as were ever in use at a time. Thread-safe. Must outlive what it lends.
template <typename T>
class Pool {
 public:
  struct Return {
    Pool* pool;
    void operator()(T* object) const { pool->Put(std::unique_ptr<T>(object)); }
  };
  using Lease = std::unique_ptr<T, Return>;

  explicit Pool(std::function<std::unique_ptr<T>()> make) : make_(std::move(make)) {}

  // Lends an object, as its last user left it or new; the lease gives it back.
  Lease Take() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        Lease lease(free_.back().release(), Return{this});
        free_.pop_back();
        return lease;
      }
    }
    return Lease(make_().release(), Return{this});
  }

 private:
  void Put(std::unique_ptr<T> object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(object));
  }

  const std::function<std::unique_ptr<T>()> make_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};

}  // namespace wstore
