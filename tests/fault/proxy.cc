#include "tests/fault/proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <deque>
#include <vector>

#include "common/check.h"
#include "common/clock.h"

namespace wstore::testing {
namespace {

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kMaxHeldBytes = 4 << 20;  // past it the sender has to wait
constexpr int kPollMs = 2;

int64_t Now() { return SystemClock().NowMonotonicMicros(); }

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

bool SendAll(int to, const std::vector<char>& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = send(to, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

// One connection: two sockets, and a thread for each direction.
struct Proxy::Pipe {
  int near = -1;
  int far = -1;
  std::atomic<bool> cut = false;
  std::array<std::thread, 2> threads;

  void Cut() {
    cut = true;
    // The peers get a reset, as from a machine that has lost its state.
    const linger at_once = {1, 0};
    setsockopt(near, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    setsockopt(far, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    shutdown(near, SHUT_RDWR);
    shutdown(far, SHUT_RDWR);
  }

  ~Pipe() {
    Cut();
    for (std::thread& thread : threads) {
      if (thread.joinable()) thread.join();
    }
    close(near);
    close(far);
  }
};

Proxy::Proxy(int target_port) : target_port_(target_port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  WSTORE_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  WSTORE_CHECK(listen(listener_, 64) == 0);
  socklen_t size = sizeof(address);
  WSTORE_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  accepting_ = std::thread([this] { Accept(); });
}

Proxy::~Proxy() {
  stopping_ = true;
  accepting_.join();
  close(listener_);
  pipes_.clear();
}

void Proxy::Cut() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& pipe : pipes_) pipe->Cut();
}

void Proxy::Accept() {
  while (!stopping_) {
    pollfd ready = {listener_, POLLIN, 0};
    if (frozen_ || poll(&ready, 1, kPollMs) <= 0) {
      if (frozen_) std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
      continue;
    }
    auto pipe = std::make_unique<Pipe>();
    pipe->near = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    pipe->far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in target = Loopback(target_port_);
    if (connect(pipe->far, reinterpret_cast<sockaddr*>(&target), sizeof(target)) != 0) continue;
    const int on = 1;
    setsockopt(pipe->near, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(pipe->far, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    Pipe& added = *pipe;
    added.threads[0] = std::thread([this, &added] { Pump(added, added.near, added.far); });
    added.threads[1] = std::thread([this, &added] { Pump(added, added.far, added.near); });
    const std::lock_guard<std::mutex> lock(mutex_);
    pipes_.push_back(std::move(pipe));
  }
}

void Proxy::Pump(Pipe& pipe, int from, int to) {
  struct Held {
    int64_t due = 0;
    std::vector<char> bytes;
  };
  std::deque<Held> held;
  size_t held_bytes = 0;
  bool open = true;
  while (!pipe.cut && (open || !held.empty())) {
    pollfd ready = {from, POLLIN, 0};
    const bool reads = open && held_bytes < kMaxHeldBytes;
    if (reads && poll(&ready, 1, kPollMs) > 0) {
      std::vector<char> bytes(kReadBytes);
      const ssize_t got = recv(from, bytes.data(), bytes.size(), 0);
      if (got <= 0) {
        open = false;
      } else {
        bytes.resize(static_cast<size_t>(got));
        held_bytes += bytes.size();
        held.push_back({Now() + delay_micros_, std::move(bytes)});
      }
    } else if (!reads) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
    }
    while (!frozen_ && !pipe.cut && !held.empty() && held.front().due <= Now()) {
      if (!SendAll(to, held.front().bytes)) return pipe.Cut();
      held_bytes -= held.front().bytes.size();
      held.pop_front();
    }
  }
  if (!pipe.cut) shutdown(to, SHUT_WR);
}

}  // namespace wstore::testing
