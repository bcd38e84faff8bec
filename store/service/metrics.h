// A server's figures over HTTP, in the format of Prometheus.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "store/service/figures.h"

namespace wstore::service {

// Answers GET /metrics until it is destroyed. Threads: its own.
class MetricsServer {
 public:
  // `address` is HOST:PORT. `figures` is called once for each scrape, by a thread of the
  // MetricsServer, and must be good until that is destroyed.
  //   kInvalidArgument: nothing can listen there
  //   kUnimplemented: this program was built without prometheus-cpp
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      const std::string& address, std::function<ServerFigures()> figures);
  virtual ~MetricsServer() = default;
};

}  // namespace wstore::service
