// Frames that stay where the root has them, for ranks that can read its memory. Which memory that
// is, and how it is named, is given: addresses within a process, or device memory by CUDA IPC.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "wstore/transfer_group.h"

namespace wstore {

// Names memory, for FrameHeader::location.
using LocateMemory =
    std::function<absl::StatusOr<std::string>(const void* data, uint64_t size_bytes)>;
// What such a name stands for. It may be read for as long as the function lives.
using OpenMemory =
    std::function<absl::StatusOr<const uint8_t*>(std::string_view location, uint64_t size_bytes)>;

// A rank's end and the root's. Nothing in them waits; Await also has the errors of `open`, and
// Locate those of `locate`.
std::unique_ptr<FrameReceiver> MakeSharedReceiver(const TransferPlan& plan, OpenMemory open);
std::unique_ptr<FrameSender> MakeSharedSender(const TransferPlan& plan, LocateMemory locate);

}  // namespace wstore
