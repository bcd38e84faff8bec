#include "store/client/transfer_messages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace wstore::wire {
namespace {

constexpr size_t kMaxTextBytes = 4096;
constexpr int kMaxSettings = 64;

// Sums: TensorSums or CellSums, of which `number` is the tensor or the cell.
template <typename Sums>
v1::SumList ListOf(absl::Span<const Sums> all, uint32_t Sums::*number) {
  v1::SumList list;
  list.mutable_of()->Reserve(static_cast<int>(all.size()));
  list.mutable_lanes()->Reserve(static_cast<int>(4 * all.size()));
  for (const Sums& one : all) {
    list.add_of(one.*number);
    for (const uint64_t lane : one.sums.before.lanes) list.add_lanes(lane);
    for (const uint64_t lane : one.sums.after.lanes) list.add_lanes(lane);
  }
  return list;
}

template <typename Sums>
absl::Status Append(const v1::SumList& list, uint32_t Sums::*number, std::vector<Sums>* all) {
  if (list.lanes_size() != 4 * int64_t{list.of_size()}) {
    return absl::InvalidArgumentError(absl::StrCat("sums of ", list.of_size(), " with ",
                                                   list.lanes_size(), " lanes; each has four"));
  }
  uint64_t next = all->empty() ? 0 : uint64_t{all->back().*number} + 1;
  for (const uint32_t of : list.of()) {
    if (of < next) return absl::InvalidArgumentError(absl::StrCat("sums do not ascend at ", of));
    next = uint64_t{of} + 1;
  }
  if (all->empty()) all->reserve(static_cast<size_t>(list.of_size()));
  const uint64_t* lane = list.lanes().data();
  for (const uint32_t of : list.of()) {
    Sums& one = all->emplace_back();
    one.*number = of;
    one.sums = {{{lane[0], lane[1]}}, {{lane[2], lane[3]}}};
    lane += 4;
  }
  return absl::OkStatus();
}

}  // namespace

v1::SumList ToProto(absl::Span<const TensorSums> tensors) {
  return ListOf(tensors, &TensorSums::tensor);
}
v1::SumList ToProto(absl::Span<const CellSums> cells) { return ListOf(cells, &CellSums::cell); }
absl::Status AppendTensors(const v1::SumList& list, std::vector<TensorSums>* tensors) {
  return Append(list, &TensorSums::tensor, tensors);
}
absl::Status AppendCells(const v1::SumList& list, std::vector<CellSums>* cells) {
  return Append(list, &CellSums::cell, cells);
}

v1::TransferHello ToProto(const TransferHello& hello) {
  v1::TransferHello out;
  out.set_host(hello.host);
  out.set_device(hello.device);
  out.set_nccl_version(hello.nccl_version);
  out.set_frame_format(hello.frame_format);
  for (const auto& [name, value] : hello.environment) (*out.mutable_environment())[name] = value;
  if (!hello.tensors.is_all()) *out.mutable_tensors() = ToProto(hello.tensors);
  return out;
}

absl::StatusOr<TransferHello> FromProto(const v1::TransferHello& hello, size_t tensors) {
  size_t longest = std::max(hello.host().size(), hello.device().size());
  for (const auto& [name, value] : hello.environment()) {
    longest = std::max({longest, name.size(), value.size()});
  }
  if (longest > kMaxTextBytes || hello.environment().size() > kMaxSettings) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a transfer hello with a text of ", longest, " bytes and ", hello.environment().size(),
        " settings; at most ", kMaxTextBytes, " and ", kMaxSettings, " are allowed"));
  }
  TransferHello out;
  out.host = hello.host();
  out.device = hello.device();
  out.nccl_version = hello.nccl_version();
  out.frame_format = hello.frame_format();
  out.environment.insert(hello.environment().begin(), hello.environment().end());
  if (hello.has_tensors()) {
    ASSIGN_OR_RETURN(out.tensors, FromProto(hello.tensors(), tensors));
  }
  return out;
}

v1::TransferRoute ToProto(TransferRoute route) {
  switch (route) {
    case TransferRoute::kService:
      return v1::TRANSFER_ROUTE_SERVICE;
    case TransferRoute::kShared:
      return v1::TRANSFER_ROUTE_SHARED;
    case TransferRoute::kNccl:
      return v1::TRANSFER_ROUTE_NCCL;
  }
  return v1::TRANSFER_ROUTE_SERVICE;
}

TransferRoute FromProto(v1::TransferRoute route) {
  switch (route) {
    case v1::TRANSFER_ROUTE_SHARED:
      return TransferRoute::kShared;
    case v1::TRANSFER_ROUTE_NCCL:
      return TransferRoute::kNccl;
    default:
      return TransferRoute::kService;
  }
}

v1::TransferPlan ToProto(const TransferPlan& plan, uint32_t contributor) {
  v1::TransferPlan out;
  out.set_epoch(plan.epoch);
  out.set_contributor(contributor);
  out.set_route(ToProto(plan.route));
  out.set_unique_id(plan.unique_id);
  out.set_index(plan.index);
  out.set_size(plan.size);
  out.set_frame_bytes(plan.frame_bytes);
  return out;
}

TransferPlan FromProto(const v1::TransferPlan& plan) {
  TransferPlan out;
  out.epoch = plan.epoch();
  out.route = FromProto(plan.route());
  out.unique_id = plan.unique_id();
  out.index = plan.index();
  out.size = plan.size();
  out.frame_bytes = plan.frame_bytes();
  return out;
}

v1::TensorRanges ToProto(const TensorSet& tensors) {
  v1::TensorRanges out;
  for (const TensorRange& range : tensors.ranges()) {
    out.add_begin(range.begin);
    out.add_end(range.end);
  }
  return out;
}

absl::StatusOr<TensorSet> FromProto(const v1::TensorRanges& ranges, size_t tensors) {
  if (ranges.begin_size() != ranges.end_size()) {
    return absl::InvalidArgumentError(absl::StrCat("ranges of tensors with ", ranges.begin_size(),
                                                   " begins and ", ranges.end_size(), " ends"));
  }
  std::vector<TensorRange> list;
  list.reserve(static_cast<size_t>(ranges.begin_size()));
  for (int i = 0; i < ranges.begin_size(); ++i) list.push_back({ranges.begin(i), ranges.end(i)});
  return TensorSet::Create(std::move(list), tensors);
}

v1::TransferJoined ToProto(uint64_t epoch, const absl::Status& status) {
  v1::TransferJoined out;
  out.set_epoch(epoch);
  out.set_ok(status.ok());
  out.set_error(std::string(status.message()).substr(0, kMaxTextBytes));
  return out;
}

absl::Status FromProto(const v1::TransferJoined& joined) {
  if (joined.ok()) return absl::OkStatus();
  return absl::UnavailableError(joined.error().substr(0, kMaxTextBytes));
}

v1::Frame ToProto(const FrameHeader& frame) {
  v1::Frame out;
  out.set_epoch(frame.epoch);
  out.set_sequence(frame.sequence);
  out.set_transaction(frame.transaction.value());
  out.set_size_bytes(frame.size_bytes);
  for (const FrameHeader::Chunk& chunk : frame.chunks) {
    v1::Frame::Chunk& added = *out.add_chunks();
    added.set_offset(chunk.offset);
    added.set_size_bytes(chunk.size_bytes);
  }
  out.set_is_last(frame.is_last);
  out.set_location(frame.location);
  for (const uint32_t index : frame.audience) out.add_audience(index);
  out.set_unsent_chunks(frame.unsent_chunks);
  return out;
}

FrameHeader FromProto(const v1::Frame& frame) {
  FrameHeader out;
  out.epoch = frame.epoch();
  out.sequence = frame.sequence();
  out.transaction = TransactionNumber(frame.transaction());
  out.size_bytes = frame.size_bytes();
  out.chunks.reserve(frame.chunks_size());
  for (const v1::Frame::Chunk& chunk : frame.chunks()) {
    out.chunks.push_back({chunk.offset(), chunk.size_bytes()});
  }
  out.is_last = frame.is_last();
  out.location = frame.location();
  out.audience.assign(frame.audience().begin(), frame.audience().end());
  out.unsent_chunks = frame.unsent_chunks();
  return out;
}

}  // namespace wstore::wire
