// `wstore serve` on a store of a benchmark's own.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tools/bench/bench.h"
#include "tools/bench/harness.h"
#include "tools/process/child_process.h"
#include "wstore/client.h"
#include "wstore/deadline.h"

namespace wstore::bench {

// For calls of which none should take long.
inline Deadline Soon() { return Deadline::After(60'000'000); }

class Served {
 public:
  // The store is `scratch / name`. Returns when it takes requests.
  static absl::StatusOr<std::unique_ptr<Served>> Start(const Options& options,
                                                       const Scratch& scratch,
                                                       const std::string& name);

  const std::shared_ptr<Client>& client() const { return client_; }
  const ConnectOptions& connect() const { return connect_; }
  // The most memory that it has had.
  absl::StatusOr<double> PeakBytes() const;

 private:
  std::unique_ptr<ChildProcess> process_;
  ConnectOptions connect_;
  std::shared_ptr<Client> client_;
};

}  // namespace wstore::bench
