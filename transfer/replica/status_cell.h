// The status of a replica, for readers that must not wait: a sequence lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "wstore/update.h"

namespace wstore {

// One writer at a time; any number of readers, which never block the writer and see one status or
// the next, never a mixture.
class StatusCell {
 public:
  void Store(const ReplicaStatus& status) {
    Words words{};
    words[0] = static_cast<uint64_t>(status.state) | (status.version.has_value() ? kHasVersion : 0);
    words[1] = status.move.value();
    words[2] = status.layout_generation;
    if (status.version.has_value()) {
      words[3] = status.version->version.value();
      std::memcpy(&words[4], status.version->chain_digest.bytes.data(), 32);
    }
    const uint64_t turn = turn_.load(std::memory_order_relaxed);
    turn_.store(turn + 1, std::memory_order_relaxed);
    // Whoever reads one of these words sees the odd turn before it.
    for (size_t i = 0; i < words.size(); ++i) words_[i].store(words[i], std::memory_order_release);
    turn_.store(turn + 2, std::memory_order_release);
  }

  ReplicaStatus Load() const {
    Words words;
    uint64_t turn;
    do {
      turn = turn_.load(std::memory_order_acquire);
      for (size_t i = 0; i < words.size(); ++i)
        words[i] = words_[i].load(std::memory_order_acquire);
    } while (turn % 2 != 0 || turn_.load(std::memory_order_relaxed) != turn);
    ReplicaStatus status;
    status.state = static_cast<ReplicaState>(words[0] & ~kHasVersion);
    status.move = MoveNumber(words[1]);
    status.layout_generation = words[2];
    if ((words[0] & kHasVersion) != 0) {
      VersionName name{VersionId(words[3]), {}};
      std::memcpy(name.chain_digest.bytes.data(), &words[4], 32);
      status.version = name;
    }
    return status;
  }

 private:
  using Words = std::array<uint64_t, 8>;
  static constexpr uint64_t kHasVersion = uint64_t{1} << 32;

  std::atomic<uint64_t> turn_{0};  // odd: being written
  std::array<std::atomic<uint64_t>, 8> words_{};
};

}  // namespace wstore
