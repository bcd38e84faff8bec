#include "transfer/cuda/tensor_table.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace wstore::cuda {
namespace {

constexpr size_t kListedFaults = 100;

// Copies a vector to the device. Pageable memory: it is synchronized before the vector goes.
template <typename T>
absl::StatusOr<DeviceBuffer<T>> Upload(const std::vector<T>& from, CudaMemory* memory,
                                       CudaStream stream) {
  ASSIGN_OR_RETURN(DeviceBuffer<T> buffer, DeviceBuffer<T>::Create(from.size(), memory, stream));
  RETURN_IF_ERROR(CopyAsync(from.data(), buffer.get(), from.size(), stream));
  return buffer;
}

bool IsReachable(const void* address) {
  cudaPointerAttributes attributes{};
  const absl::Status status = WSTORE_CUDA(cudaPointerGetAttributes(&attributes, address));
  return status.ok() && attributes.devicePointer == address;
}

}  // namespace

absl::StatusOr<TensorTable> TensorTable::Create(const Manifest& manifest, const FingerprintKey& key,
                                                absl::Span<const TensorShare> share,
                                                CudaStream stream, CudaMemory* memory) {
  if (memory == nullptr) return absl::InvalidArgumentError("a CudaMemory is needed");
  ASSIGN_OR_RETURN(const std::vector<ElementRange> held, HeldRanges(manifest, share));
  TensorTable table(manifest, MakeHostTables(manifest, key, held), stream);
  ASSIGN_OR_RETURN(table.device_tensors_, Upload(table.host_.tensors, memory, stream));
  ASSIGN_OR_RETURN(table.tile_tensors_, Upload(table.host_.tile_tensors, memory, stream));
  ASSIGN_OR_RETURN(table.held_tiles_, Upload(table.host_.held_tiles, memory, stream));
  ASSIGN_OR_RETURN(table.multipliers_, Upload(table.host_.multipliers, memory, stream));
  RETURN_IF_ERROR(Synchronize(stream));
  return table;
}

absl::Status TensorTable::CheckSide(absl::Span<const void* const> side, const char* name) const {
  if (side.size() != manifest_->size()) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", side.size(), " addresses of the ",
                                                   name, ", for ", manifest_->size(), " tensors"));
  }
  std::vector<std::string> faults;
  for (const TensorEntry& entry : host_.tensors) {
    const auto address = reinterpret_cast<uintptr_t>(side[entry.index]);
    std::string fault;
    if (entry.held_first == entry.held_end) {
      if (address == 0) continue;
      fault = "has one, though nothing of it is held";
    } else if (address == 0) {
      fault = "has none";
    } else if (address % entry.element_bytes != 0) {
      fault = absl::StrCat("is at ", absl::Hex(address), ", not a multiple of its elements' ",
                           entry.element_bytes, " bytes");
    } else if (!IsReachable(side[entry.index])) {
      fault = absl::StrCat("is at ", absl::Hex(address),
                           ", which is neither device memory nor pinned host memory");
    } else {
      continue;
    }
    faults.push_back(absl::StrCat("'", manifest_->tensor(entry.index).spec.name, "' ", fault));
    if (faults.size() == kListedFaults) break;
  }
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("addresses of the ", name, ": ", absl::StrJoin(faults, "; ")));
}

absl::Status TensorTable::SetAddresses(absl::Span<const void* const> old_side,
                                       absl::Span<const void* const> new_side) {
  bool is_same = old_side.size() == (old_side.empty() ? 0 : manifest_->size()) &&
                 new_side.size() == manifest_->size();
  for (size_t i = 0; is_same && i < host_.tensors.size(); ++i) {
    const TensorEntry& entry = host_.tensors[i];
    is_same = entry.new_data == BeginOfTensor(entry, new_side[entry.index]) &&
              (old_side.empty() || entry.old_data == BeginOfTensor(entry, old_side[entry.index]));
  }
  if (is_same) return absl::OkStatus();
  if (!old_side.empty() || manifest_->size() == 0) {
    RETURN_IF_ERROR(CheckSide(old_side, "shadow"));
  }
  RETURN_IF_ERROR(CheckSide(new_side, "weights"));
  std::vector<TensorEntry> entries = host_.tensors;
  for (TensorEntry& entry : entries) {
    if (!old_side.empty()) entry.old_data = BeginOfTensor(entry, old_side[entry.index]);
    entry.new_data = BeginOfTensor(entry, new_side[entry.index]);
  }
  RETURN_IF_ERROR(CopyAsync(entries.data(), device_tensors_.get(), entries.size(), stream_));
  RETURN_IF_ERROR(Synchronize(stream_));
  host_.tensors = std::move(entries);
  return absl::OkStatus();
}

}  // namespace wstore::cuda
