// Messages of transfer groups, and lists of sums, for both ends.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/patch_source.h"
#include "wstore/regions.h"
#include "wstore/tensor_set.h"
#include "wstore/transfer_group.h"
#include "wstore/v1/service.pb.h"

namespace wstore::wire {

// Sums of tensors or cells.
v1::SumList ToProto(absl::Span<const TensorSums> tensors);
v1::SumList ToProto(absl::Span<const CellSums> cells);
// Behind those that came before.
//   kInvalidArgument: other than four lanes for each, or they do not ascend; nothing is appended
absl::Status AppendTensors(const v1::SumList& list, std::vector<TensorSums>* tensors);
absl::Status AppendCells(const v1::SumList& list, std::vector<CellSums>* cells);

v1::TransferHello ToProto(const TransferHello& hello);
v1::TransferRoute ToProto(TransferRoute route);
v1::TransferPlan ToProto(const TransferPlan& plan, uint32_t contributor);
v1::TransferJoined ToProto(uint64_t epoch, const absl::Status& status);
v1::Frame ToProto(const FrameHeader& frame);
// Not of a set of all tensors, about which nothing is said.
v1::TensorRanges ToProto(const TensorSet& tensors);

// `tensors`: how many there are.
//   kInvalidArgument: a text of more than 4 KiB, or more than 64 settings; see TensorSet::Create
absl::StatusOr<TransferHello> FromProto(const v1::TransferHello& hello, size_t tensors);
// Errors: see TensorSet::Create; also ranges without an end
absl::StatusOr<TensorSet> FromProto(const v1::TensorRanges& ranges, size_t tensors);
TransferRoute FromProto(v1::TransferRoute route);
TransferPlan FromProto(const v1::TransferPlan& plan);
absl::Status FromProto(const v1::TransferJoined& joined);
FrameHeader FromProto(const v1::Frame& frame);

}  // namespace wstore::wire
