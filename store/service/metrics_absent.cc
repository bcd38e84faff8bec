// In place of metrics.cc where there is no prometheus-cpp.
#include "store/service/metrics.h"

namespace wstore::service {

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string&, std::function<ServerFigures()>) {
  return absl::UnimplementedError(
      "this program was built without prometheus-cpp, so it has no --metrics; build it where the "
      "package prometheus-cpp-dev is installed");
}

}  // namespace wstore::service
