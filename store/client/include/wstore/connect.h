// How a program reaches a server: its address, what TLS needs, and how long to wait.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace wstore {

// A moment by which a call must have returned. A copy is the same moment, so that several calls can
// share the time there is. The clock never goes back. A value: any thread.
class Deadline {
 public:
  // More than a hundred years count as a hundred years; less than 0 as 0.
  static Deadline After(int64_t micros);

  // 0 once it has passed.
  int64_t left_micros() const;
  bool has_passed() const { return left_micros() == 0; }

 private:
  explicit Deadline(int64_t at_micros) : at_micros_(at_micros) {}
  int64_t at_micros_;
};

// Files are PEM, and are read when the connection is made.
struct TlsOptions {
  std::string authorities;  // that the server's certificate must come from; empty: the system's
  // What the client shows; both or neither.
  std::string certificate_chain;
  std::string private_key;
  std::string server_name;  // in the server's certificate; empty: the host of the address
};

struct ConnectOptions {
  // "unix:PATH", a path with a slash in it, "HOST:PORT" or "[IPV6]:PORT".
  std::string address;
  std::optional<TlsOptions> tls;  // needed for TCP, unless:
  bool insecure_tcp = false;      // TCP without TLS: everybody on the way can read and change all
};

}  // namespace wstore
