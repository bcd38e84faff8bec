#include <utility>

#include "common/status_macros.h"
#include "transfer/cuda/buffer.h"
#include "transfer/cuda/kernels.h"
#include "transfer/cuda/tensor_table.h"
#include "wstore/cuda_differ.h"

namespace wstore {
namespace {

class Auditor final : public CudaAuditor {
 public:
  Auditor(const Manifest& manifest, CudaStream stream, cuda::TensorTable table)
      : manifest_(manifest), stream_(stream), table_(std::move(table)) {}

  absl::Status Reserve(CudaMemory* memory) {
    ASSIGN_OR_RETURN(
        sums_, cuda::DeviceBuffer<cuda::TensorSumsEntry>::Create(table_.size(), memory, stream_));
    ASSIGN_OR_RETURN(host_sums_, cuda::PinnedBuffer<cuda::TensorSumsEntry>::Create(table_.size()));
    return absl::OkStatus();
  }

  absl::Status Start(absl::Span<const void* const> weights) override {
    is_started_ = false;
    RETURN_IF_ERROR(table_.SetAddresses({}, weights));
    RETURN_IF_ERROR(cuda::ZeroAsync(sums_.get(), sums_.count(), stream_));
    RETURN_IF_ERROR(
        cuda::LaunchAudit({table_.tensors(), table_.tile_tensors(), table_.held_tiles(),
                           table_.multipliers(), sums_.get(), 0, table_.host().held_count()},
                          stream_));
    RETURN_IF_ERROR(cuda::CopyAsync(sums_.get(), host_sums_.get(), sums_.count(), stream_));
    is_started_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Fingerprint>> Finish() override {
    if (!is_started_) return absl::FailedPreconditionError("no audit was started");
    RETURN_IF_ERROR(cuda::Synchronize(stream_));
    std::vector<Fingerprint> sums(manifest_.size());
    for (uint64_t i = 0; i < table_.size(); ++i) {
      sums[table_.index(i)] = {{host_sums_[i].after[0], host_sums_[i].after[1]}};
    }
    return sums;
  }

 private:
  const Manifest& manifest_;
  const CudaStream stream_;
  cuda::TensorTable table_;
  cuda::DeviceBuffer<cuda::TensorSumsEntry> sums_;
  cuda::PinnedBuffer<cuda::TensorSumsEntry> host_sums_;
  bool is_started_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaAuditor>> CudaAuditor::Create(
    const Manifest& manifest, const FingerprintKey& key, CudaStream stream, CudaMemory* memory,
    absl::Span<const TensorShare> share) {
  ASSIGN_OR_RETURN(cuda::TensorTable table,
                   cuda::TensorTable::Create(manifest, key, share, stream, memory));
  auto auditor = std::make_unique<Auditor>(manifest, stream, std::move(table));
  RETURN_IF_ERROR(auditor->Reserve(memory));
  return auditor;
}

}  // namespace wstore
