// How chunks come from a trainer to ranks. Each program of the suite links one way; where ranks and
// chunks lie is said beside it, by the TestDevice that it links.
#pragma once

#include <functional>
#include <memory>

#include "tests/conformance/replica/device.h"
#include "wstore/transfer_group.h"

namespace wstore::testing {

struct Transport {
  // Of a rank that is reached.
  TransferRoute route = TransferRoute::kService;
  // A port for a publisher or a rank. Empty: all goes through the service.
  std::function<std::shared_ptr<TransferPort>()> make_port;

  bool has_port() const { return make_port != nullptr; }
};

Transport TransportUnderTest();

}  // namespace wstore::testing
