// Between messages of transfer groups and wstore/transfer_group.h, for both ends.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "wstore/transfer_group.h"
#include "wstore/v1/service.pb.h"

namespace wstore::wire {

v1::TransferHello ToProto(const TransferHello& hello);
v1::TransferRoute ToProto(TransferRoute route);
v1::TransferPlan ToProto(const TransferPlan& plan, uint32_t contributor);
v1::TransferJoined ToProto(uint64_t epoch, const absl::Status& status);
v1::Frame ToProto(const FrameHeader& frame);

// kInvalidArgument: a text of more than 4 KiB, or more than 64 settings
absl::StatusOr<TransferHello> FromProto(const v1::TransferHello& hello);
TransferRoute FromProto(v1::TransferRoute route);
TransferPlan FromProto(const v1::TransferPlan& plan);
absl::Status FromProto(const v1::TransferJoined& joined);
FrameHeader FromProto(const v1::Frame& frame);

}  // namespace wstore::wire
