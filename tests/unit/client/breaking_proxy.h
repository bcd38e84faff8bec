// Stands between a client and a server on unix sockets, and breaks connections on purpose.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

namespace wstore::testing {

class BreakingProxy {
 public:
  BreakingProxy(const std::string& path, const std::string& server) : path_(path), server_(server) {
    listener_ = MakeSocket();
    const sockaddr_un address = AddressOf(path_);
    REQUIRE(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(listen(listener_, 16) == 0);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~BreakingProxy() {
    stopping_ = true;
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
    close(listener_);
  }

  std::string address() const { return "unix:" + path_; }

  // The next `cuts` connections are cut after so many bytes from the client.
  void CutAfter(uint64_t bytes, int cuts) {
    cut_after_ = bytes;
    cuts_ = cuts;
  }
  // From when a client sends `word` on, nothing comes back to it, until SetMuteWord("") cuts those
  // connections.
  void SetMuteWord(const std::string& word) {
    const std::lock_guard<std::mutex> lock(mutex_);
    mute_word_ = word;
  }
  // Bytes from clients since the last cut.
  uint64_t bytes_since_cut() const { return bytes_since_cut_; }
  int connections_cut() const { return connections_cut_; }

 private:
  static int MakeSocket() {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    return fd;
  }
  static sockaddr_un AddressOf(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    return address;
  }
  std::string mute_word() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return mute_word_;
  }

  static bool IsReady(int fd, int milliseconds) {
    pollfd entry{fd, POLLIN, 0};
    return poll(&entry, 1, milliseconds) > 0;
  }

  void Accept() {
    while (!stopping_) {
      if (!IsReady(listener_, 20)) continue;
      const int client = accept(listener_, nullptr, nullptr);
      if (client < 0) continue;
      threads_.emplace_back([this, client] { Serve(client); });
    }
  }

  void Serve(int client) {
    const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un address = AddressOf(server_);
    const bool is_up =
        connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    uint64_t received = 0;
    bool is_mute = false;
    std::vector<char> buffer(64 << 10);
    while (is_up && !stopping_) {
      if (is_mute && mute_word().empty()) break;
      pollfd entries[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
      if (poll(entries, 2, 20) <= 0) continue;
      if (entries[0].revents != 0) {
        const ssize_t got = read(client, buffer.data(), buffer.size());
        if (got <= 0) break;
        const std::string word = mute_word();
        const std::string_view data(buffer.data(), static_cast<size_t>(got));
        if (!word.empty() && data.find(word) != std::string_view::npos) is_mute = true;
        received += static_cast<uint64_t>(got);
        bytes_since_cut_ += static_cast<uint64_t>(got);
        if (!WriteAll(server, data)) break;
        if (received > cut_after_ && cuts_ > 0) {
          --cuts_;
          ++connections_cut_;
          bytes_since_cut_ = 0;
          break;
        }
      }
      if (entries[1].revents != 0) {
        const ssize_t got = read(server, buffer.data(), buffer.size());
        if (got <= 0) break;
        if (!is_mute && !WriteAll(client, {buffer.data(), static_cast<size_t>(got)})) break;
      }
    }
    close(server);
    close(client);
  }

  static bool WriteAll(int fd, std::string_view data) {
    while (!data.empty()) {
      const ssize_t sent = send(fd, data.data(), data.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      data.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  const std::string path_;
  const std::string server_;
  int listener_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> cut_after_{UINT64_MAX};
  std::atomic<int> cuts_{0};
  std::atomic<int> connections_cut_{0};
  std::atomic<uint64_t> bytes_since_cut_{0};
  std::mutex mutex_;
  std::string mute_word_;
  std::vector<std::thread> threads_;  // the acceptor's
  std::thread acceptor_;
};

}  // namespace wstore::testing
