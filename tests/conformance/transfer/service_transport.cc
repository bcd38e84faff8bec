#include "tests/conformance/transfer/transport.h"

namespace wstore::testing {

Transport TransportUnderTest() { return {}; }

}  // namespace wstore::testing
