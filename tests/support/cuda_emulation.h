// Runs CUDA kernels on the host, so that their logic is tested where there is neither a GPU nor a
// compiler for one. Include this, then the .cuh file of the kernel, and call Launch.
//
// Every thread of a block is a coroutine; blocks run one after the other. A thread runs until it
// waits for others (a barrier, a shuffle, a vote), so races between barriers are not found here.
// Whole warps only: all lanes take part in every warp function.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#define __global__ inline
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static
#define __launch_bounds__(...)

struct EmulatedIndex {
  unsigned x = 0;
};
inline EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

namespace wstore::emulation {

class Block {
 public:
  explicit Block(unsigned threads) : threads_(threads), warps_((threads + 31) / 32) {
    for (unsigned i = 0; i < threads; ++i) {
      threads_[i].stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
    }
  }

  void Run(unsigned number, const std::function<void()>& kernel) {
    blockIdx.x = number;
    blockDim.x = static_cast<unsigned>(threads_.size());
    kernel_ = &kernel;
    running_ = this;
    barrier_arrivals_ = 0;
    for (Warp& warp : warps_) warp.arrivals = 0;
    for (Thread& thread : threads_) {
      thread.barriers = 0;
      thread.collectives = 0;
      thread.is_started = false;
      thread.is_done = false;
    }
    for (size_t left = threads_.size(); left > 0;) {
      for (unsigned i = 0; i < threads_.size(); ++i) {
        if (threads_[i].is_done) continue;
        Resume(i);
        left -= threads_[i].is_done ? 1 : 0;
      }
    }
    running_ = nullptr;
  }

  void Barrier() {
    ++barrier_arrivals_;
    const uint64_t wanted = ++Current().barriers * threads_.size();
    while (barrier_arrivals_ < wanted) Yield();
  }

  // The values that all lanes of this warp gave.
  const uint64_t* Collect(uint64_t value) {
    Thread& thread = Current();
    Warp& warp = warps_[current_ / 32];
    uint64_t* const slots = warp.slots[thread.collectives % 2];
    slots[current_ % 32] = value;
    ++warp.arrivals;
    const uint64_t wanted = ++thread.collectives * 32;
    while (warp.arrivals < wanted) Yield();
    return slots;
  }

  unsigned lane() const { return current_ % 32; }
  static Block* running() { return running_; }

 private:
  static constexpr size_t kStackBytes = 64 << 10;
  struct Thread {
    std::unique_ptr<char[]> stack;
    ucontext_t context;
    jmp_buf state;
    uint64_t barriers = 0;
    uint64_t collectives = 0;
    bool is_started = false;
    bool is_done = false;
  };
  struct Warp {
    uint64_t slots[2][32];
    uint64_t arrivals = 0;
  };

  Thread& Current() { return threads_[current_]; }

  // Contexts make the stacks; jumps change between them without a system call.
  void Resume(unsigned i) {
    current_ = i;
    threadIdx.x = i;
    Thread& thread = threads_[i];
    if (_setjmp(scheduler_) != 0) return;
    if (thread.is_started) _longjmp(thread.state, 1);
    thread.is_started = true;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, &Block::Enter, 0);
    setcontext(&thread.context);
  }
  static void Enter() {
    Block* const block = running_;
    (*block->kernel_)();
    block->Current().is_done = true;
    _longjmp(block->scheduler_, 1);
  }
  void Yield() {
    const unsigned self = current_;
    if (_setjmp(threads_[self].state) == 0) _longjmp(scheduler_, 1);
  }

  static inline Block* running_ = nullptr;

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  uint64_t barrier_arrivals_ = 0;
  unsigned current_ = 0;
  const std::function<void()>* kernel_ = nullptr;
  jmp_buf scheduler_;
};

// kernel: a call of the kernel with its arguments.
inline void Launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  // Kept, since stacks take long to make.
  static std::map<unsigned, std::unique_ptr<Block>> made;
  std::unique_ptr<Block>& block = made[threads];
  if (block == nullptr) block = std::make_unique<Block>(threads);
  gridDim.x = blocks;
  for (unsigned i = 0; i < blocks; ++i) block->Run(i, kernel);
}

template <typename T>
T FromLane(T value, unsigned lane) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  const uint64_t* const all = Block::running()->Collect(bits);
  T result;
  std::memcpy(&result, &all[lane], sizeof(result));
  return result;
}

}  // namespace wstore::emulation

inline void __syncthreads() { wstore::emulation::Block::running()->Barrier(); }
inline void __syncwarp() { wstore::emulation::Block::running()->Collect(0); }

template <typename T>
T __shfl_sync(unsigned, T value, unsigned lane) {
  return wstore::emulation::FromLane(value, lane % 32);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  return wstore::emulation::FromLane(value, wstore::emulation::Block::running()->lane() ^ mask);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned by) {
  const unsigned lane = wstore::emulation::Block::running()->lane();
  return wstore::emulation::FromLane(value, lane >= by ? lane - by : lane);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned by) {
  const unsigned lane = wstore::emulation::Block::running()->lane();
  return wstore::emulation::FromLane(value, lane + by < 32 ? lane + by : lane);
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  const uint64_t* const all = wstore::emulation::Block::running()->Collect(vote ? 1 : 0);
  unsigned ballot = 0;
  for (unsigned i = 0; i < 32; ++i) ballot |= static_cast<unsigned>(all[i]) << i;
  return ballot;
}
inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }

inline unsigned __popc(unsigned value) { return static_cast<unsigned>(std::popcount(value)); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t bits) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (bits % 32));
}
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  }
  return result;
}
template <typename T>
T __ldcs(const T* at) {
  return *at;
}
template <typename T>
T atomicOr(T* at, T value) {
  const T old = *at;
  *at |= value;
  return old;
}
template <typename T>
T atomicAdd(T* at, T value) {
  const T old = *at;
  *at += value;
  return old;
}
