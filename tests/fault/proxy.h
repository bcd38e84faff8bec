// A TCP proxy between two processes of a test: it delays, freezes and cuts what goes through it.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace wstore::testing {

// Threads: any.
class Proxy {
 public:
  // Listens on a free port of this machine; what connects is joined to 127.0.0.1:`target_port`.
  explicit Proxy(int target_port);
  ~Proxy();

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // Every byte is late by this much, either way.
  void SetDelay(int64_t micros) { delay_micros_ = micros; }
  // While frozen nothing gets through, and neither side is told: a partition.
  void SetFrozen(bool frozen) { frozen_ = frozen; }
  // Resets all connections that there are.
  void Cut();

 private:
  struct Pipe;

  void Accept();
  void Pump(Pipe& pipe, int from, int to);

  const int target_port_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<int64_t> delay_micros_ = 0;
  std::atomic<bool> frozen_ = false;
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;  // guards pipes_
  std::list<std::unique_ptr<Pipe>> pipes_;
  std::thread accepting_;
};

}  // namespace wstore::testing
