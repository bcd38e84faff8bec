#include "wstore/transfer_group.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/strings.h"

namespace wstore {
namespace {

std::string VersionName(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::string Shown(const std::map<std::string, std::string>& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "unset" : absl::StrCat("'", found->second, "'");
}

// What differs between two that would meet in a communicator, all of it.
std::vector<std::string> Differences(const TransferHello& root, const TransferHello& rank) {
  std::vector<std::string> differences;
  if (root.nccl_version != rank.nccl_version) {
    differences.push_back(absl::StrCat("NCCL ", VersionName(root.nccl_version), " at the root, ",
                                       VersionName(rank.nccl_version), " here"));
  }
  std::set<std::string> names;
  for (const auto& [name, value] : root.environment) names.insert(name);
  for (const auto& [name, value] : rank.environment) names.insert(name);
  for (const std::string& name : names) {
    const std::string there = Shown(root.environment, name);
    const std::string here = Shown(rank.environment, name);
    if (there != here) {
      differences.push_back(absl::StrCat(name, " ", there, " at the root, ", here, " here"));
    }
  }
  return differences;
}

}  // namespace

std::string_view TransferRouteName(TransferRoute route) {
  switch (route) {
    case TransferRoute::kService:
      return "service";
    case TransferRoute::kShared:
      return "shared";
    case TransferRoute::kNccl:
      return "nccl";
  }
  return "unknown";
}

RouteChoice ChooseRoute(const TransferHello& root, const TransferHello& rank) {
  const auto by_service = [](std::string why) {
    return RouteChoice{TransferRoute::kService, std::move(why)};
  };
  if (root.device.empty()) return by_service("the root has no GPU");
  if (rank.device.empty()) return by_service("it has no GPU");
  if (root.frame_format != rank.frame_format) {
    return by_service(absl::StrCat("frames of format ", root.frame_format, " at the root, ",
                                   rank.frame_format, " here: run one build of wstore"));
  }
  if (root.host == rank.host && root.device == rank.device) return {TransferRoute::kShared, ""};
  if (root.nccl_version == 0) return by_service("the root has no NCCL");
  if (rank.nccl_version == 0) return by_service("it has no NCCL");
  const std::vector<std::string> differences = Differences(root, rank);
  if (!differences.empty()) return by_service(absl::StrJoin(differences, "; "));
  return {TransferRoute::kNccl, ""};
}

std::vector<RouteChoice> ChooseRoutes(const TransferHello& root,
                                      absl::Span<const TransferHello> ranks) {
  std::vector<RouteChoice> routes;
  std::set<std::pair<std::string, std::string>> taken;
  for (const TransferHello& rank : ranks) {
    routes.push_back(ChooseRoute(root, rank));
    if (routes.back().route != TransferRoute::kNccl) continue;
    if (!taken.emplace(rank.host, rank.device).second) {
      routes.back() = {TransferRoute::kService,
                       absl::StrCat("another rank is on its GPU, ", rank.device)};
    }
  }
  return routes;
}

absl::Status CheckTransferPlan(const TransferPlan& plan) {
  const bool is_nccl = plan.route == TransferRoute::kNccl;
  if (plan.frame_bytes > 0 && plan.frame_bytes <= kMaxFrameBytes &&
      (plan.route == TransferRoute::kShared ||
       (is_nccl && plan.size >= 2 && plan.index < plan.size))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("group ", plan.epoch, " cannot be joined: rank ", plan.index, " of ", plan.size,
                   " by the route '", ToAbsl(TransferRouteName(plan.route)), "', with frames of ",
                   plan.frame_bytes, " bytes; at most ", kMaxFrameBytes, " are allowed"));
}

bool IsFor(const FrameHeader& frame, uint32_t index) {
  return frame.audience.empty() ||
         std::binary_search(frame.audience.begin(), frame.audience.end(), index);
}

bool IsForAllOf(const FrameHeader& frame, uint32_t size) {
  if (frame.audience.empty() || size < 2) return true;
  // They ascend from 1 on.
  return frame.audience.size() >= size - 1 && frame.audience[size - 2] == size - 1;
}

absl::Status CheckFrame(const FrameHeader& frame, const TransferPlan& plan,
                        uint64_t next_sequence) {
  if (frame.epoch != plan.epoch || frame.sequence != next_sequence) {
    return absl::FailedPreconditionError(
        absl::StrCat("frame ", frame.sequence, " of group ", frame.epoch, " is refused: frame ",
                     next_sequence, " of group ", plan.epoch, " is next"));
  }
  const auto refuse = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("frame ", frame.sequence, " of group ",
                                                   frame.epoch, " is refused: ", what...));
  };
  uint64_t before = 0;
  for (const uint32_t index : frame.audience) {
    if (index <= before) {
      return refuse("its audience has ", index, " behind ", before, "; it ascends from 1 on");
    }
    before = index;
  }
  const bool is_end =
      frame.audience.empty() && frame.is_last && frame.size_bytes == 0 && frame.chunks.empty();
  if (is_end) return absl::OkStatus();
  if (frame.size_bytes == 0 || frame.size_bytes > plan.frame_bytes || frame.chunks.empty()) {
    return refuse(frame.chunks.size(), " chunks in ", frame.size_bytes, " bytes; 1 to ",
                  plan.frame_bytes, " bytes were agreed");
  }
  uint64_t end = 0;
  for (const FrameHeader::Chunk& chunk : frame.chunks) {
    if (chunk.offset < end || chunk.offset % kFrameAlignment != 0 || chunk.size_bytes == 0 ||
        chunk.offset > frame.size_bytes || chunk.size_bytes > frame.size_bytes - chunk.offset) {
      return refuse("a chunk at byte ", chunk.offset, " of ", chunk.size_bytes,
                    " bytes, behind byte ", end, " of ", frame.size_bytes);
    }
    end = chunk.offset + chunk.size_bytes;
  }
  return absl::OkStatus();
}

absl::Status CheckHeldFrames(const FrameHeader& frame, size_t held) {
  if (held < kMaxHeldFrames) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "frame ", frame.sequence, " of group ", frame.epoch, " is refused: ", held,
      " frames are under way or unreleased, ", kMaxHeldFrames, " may be; release one first"));
}

std::vector<DeviceChunk> ChunksAt(const FrameHeader& frame, const uint8_t* data) {
  std::vector<DeviceChunk> chunks;
  chunks.reserve(frame.chunks.size());
  for (const FrameHeader::Chunk& chunk : frame.chunks) {
    chunks.push_back({data + chunk.offset, chunk.size_bytes});
  }
  return chunks;
}

}  // namespace wstore
