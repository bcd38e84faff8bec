// How a program reaches a server: its address, and what TLS needs.
#pragma once

#include <optional>
#include <string>

#include "wstore/deadline.h"

namespace wstore {

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
