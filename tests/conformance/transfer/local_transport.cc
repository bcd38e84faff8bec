#include "tests/conformance/transfer/transport.h"
#include "wstore/local_transfer.h"

namespace wstore::testing {

Transport TransportUnderTest() { return {TransferRoute::kShared, MakeLocalTransferPort}; }

}  // namespace wstore::testing
