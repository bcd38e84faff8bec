#include "tools/bench/gpu/floor.h"

#include "common/status_macros.h"
#include "tools/bench/gpu/workload.h"

namespace wstore::bench {
namespace {

constexpr uint64_t kSeed = 9;

}  // namespace

using cuda::DeviceBuffer;

absl::StatusOr<double> TimeRead(const Gpu& gpu, const void* memory, uint64_t size_bytes) {
  ASSIGN_OR_RETURN(const auto sink, DeviceBuffer<uint32_t>::Create(1, gpu.memory(), gpu.stream()));
  return gpu.Time([&] { return ReadAll(memory, size_bytes, sink.get(), gpu.stream()); });
}

absl::StatusOr<double> TimeScatter(const Gpu& gpu, double density, uint64_t elements,
                                   uint16_t* to) {
  const auto room = static_cast<uint64_t>(static_cast<double>(elements) * density * 1.02) + 4096;
  ASSIGN_OR_RETURN(auto indices, DeviceBuffer<uint32_t>::Create(room, gpu.memory(), gpu.stream()));
  ASSIGN_OR_RETURN(auto values, DeviceBuffer<uint16_t>::Create(room, gpu.memory(), gpu.stream()));
  ASSIGN_OR_RETURN(auto counter,
                   DeviceBuffer<unsigned long long>::Create(1, gpu.memory(), gpu.stream()));
  RETURN_IF_ERROR(cuda::ZeroAsync(counter.get(), 1, gpu.stream()));
  RETURN_IF_ERROR(MakeScatter(elements, density, kSeed, indices.get(), values.get(), counter.get(),
                              gpu.stream()));
  unsigned long long count = 0;
  RETURN_IF_ERROR(cuda::CopyAsync(counter.get(), &count, 1, gpu.stream()));
  RETURN_IF_ERROR(cuda::Synchronize(gpu.stream()));
  return gpu.Time([&] { return Scatter(indices.get(), values.get(), count, to, gpu.stream()); });
}

}  // namespace wstore::bench
