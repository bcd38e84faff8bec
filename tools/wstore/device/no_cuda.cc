// Devices where there is no CUDA to build them with.
#include "tools/wstore/device/device.h"

namespace wstore::cli {

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int) {
  return absl::UnavailableError(
      "this wstore was built without CUDA; build it where the CUDA toolkit is found, with the "
      "CMake option WSTORE_WITH_CUDA=ON, or use --device cpu");
}

}  // namespace wstore::cli
