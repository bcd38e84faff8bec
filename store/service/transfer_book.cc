#include "store/service/transfer_book.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/protocol/types.h"

namespace wstore::service {
namespace {

constexpr uint64_t kKeptFrameBytes = uint64_t{64} << 20;

}  // namespace

void TransferBook::Log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

TransferBook::Root* TransferBook::FindRoot(const RootSink* sink) {
  for (auto& [contributor, root] : roots_) {
    if (root.sink.get() == sink) return &root;
  }
  return nullptr;
}

std::optional<TransferBook::Group>* TransferBook::FindGroup(Root& root, uint64_t epoch) {
  for (const auto group : kGroups) {
    if (root.*group && (root.*group)->epoch == epoch) return &(root.*group);
  }
  return nullptr;
}

// --- Ranks ---

void TransferBook::Hello(const RankProcess& process, std::shared_ptr<RankSink> sink,
                         TransferHello hello, int64_t now) {
  Drop(process, "the rank says hello anew", now);
  ranks_[process] = {std::move(sink), std::move(hello)};
  for (auto& [contributor, root] : roots_) Review(contributor, root, now);
}

void TransferBook::Gone(const RankProcess& process, int64_t now) {
  if (ranks_.erase(process) == 0) return;
  Drop(process, absl::StrCat("rank ", protocol::ToString(process.first), " has gone"), now);
  for (auto& [contributor, root] : roots_) Review(contributor, root, now);
}

void TransferBook::Joined(const RankProcess& process, uint64_t epoch, const absl::Status& status,
                          int64_t now) {
  for (auto& [contributor, root] : roots_) {
    std::optional<Group>* const found = FindGroup(root, epoch);
    if (found == nullptr) continue;
    std::optional<Group>& group = *found;
    const auto member = group->members.find(process);
    if (member == group->members.end()) return;
    if (status.ok()) {
      member->second.has_joined = true;
      return SeeWhetherReady(contributor, root, now);
    }
    if (const auto rank = ranks_.find(process); rank != ranks_.end()) {
      rank->second.is_usable = false;
    }
    End(root, group,
        absl::StrCat("rank ", protocol::ToString(process.first), ": ",
                     std::string(status.message())),
        /*tell_root=*/true);
    return Review(contributor, root, now);
  }
}

// Ends the groups that a process is in.
void TransferBook::Drop(const RankProcess& process, const std::string& reason, int64_t) {
  for (auto& [contributor, root] : roots_) {
    for (const auto group : kGroups) {
      if (root.*group && (root.*group)->members.contains(process)) {
        End(root, root.*group, reason, /*tell_root=*/true);
      }
    }
  }
}

// --- Roots ---

absl::Status TransferBook::Lead(uint32_t contributor, std::shared_ptr<RootSink> sink,
                                const std::string& peer, TransferHello hello, uint64_t frame_bytes,
                                int64_t now) {
  if (const auto found = roots_.find(contributor); found != roots_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("contributor ", contributor, " is led by ", found->second.peer,
                     " already; one publisher at a time can lead"));
  }
  if (frame_bytes > kMaxFrameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("frames of ", frame_bytes, " bytes; at most ",
                                                   kMaxFrameBytes, " are allowed"));
  }
  Root& root = roots_[contributor];
  root.sink = std::move(sink);
  root.peer = peer;
  root.hello = std::move(hello);
  root.frame_bytes = frame_bytes;
  Review(contributor, root, now);
  return absl::OkStatus();
}

void TransferBook::RootGone(const RootSink* sink, int64_t) {
  for (auto it = roots_.begin(); it != roots_.end(); ++it) {
    if (it->second.sink.get() != sink) continue;
    for (const auto group : kGroups) {
      if (!(it->second.*group)) continue;
      End(it->second, it->second.*group,
          absl::StrCat("the publisher ", it->second.peer, " has gone"), /*tell_root=*/false);
    }
    roots_.erase(it);
    return;
  }
}

void TransferBook::Name(const RootSink* sink, uint64_t epoch, const std::string& unique_id,
                        int64_t) {
  for (auto& [contributor, root] : roots_) {
    if (root.sink.get() != sink || !root.next || root.next->epoch != epoch) continue;
    return Invite(contributor, root, unique_id);
  }
}

void TransferBook::RootJoined(const RootSink* sink, uint64_t epoch, const absl::Status& status,
                              int64_t now) {
  for (auto& [contributor, root] : roots_) {
    if (root.sink.get() != sink) continue;
    std::optional<Group>* const found = FindGroup(root, epoch);
    if (found == nullptr) return;
    std::optional<Group>& group = *found;
    if (status.ok()) {
      group->root_has_joined = true;
      return SeeWhetherReady(contributor, root, now);
    }
    // Whose fault it was is not known, unless a member says so, or has not joined.
    for (const auto& [process, member] : group->members) {
      const auto rank = ranks_.find(process);
      const bool is_new = !member.has_joined && member.route == TransferRoute::kNccl;
      if (is_new && rank != ranks_.end()) rank->second.is_usable = false;
    }
    End(root, group, absl::StrCat("the publisher: ", std::string(status.message())),
        /*tell_root=*/false);
    return Review(contributor, root, now);
  }
}

absl::Status TransferBook::Announce(const RootSink* sink, const FrameHeader& frame) {
  Root* const root = FindRoot(sink);
  std::optional<Group>* const found = root == nullptr ? nullptr : FindGroup(*root, frame.epoch);
  if (found == nullptr || found == &root->next) {
    return absl::FailedPreconditionError(
        absl::StrCat("group ", frame.epoch, " is not ready, or has ended"));
  }
  Group& group = **found;
  TransferPlan plan;
  plan.epoch = group.epoch;
  plan.frame_bytes = FrameBytes(*root, group);
  RETURN_IF_ERROR(CheckFrame(frame, plan, group.next_frame));
  if (!frame.audience.empty() && frame.audience.back() > group.members.size()) {
    return absl::InvalidArgumentError(absl::StrCat("frame ", frame.sequence, " of group ",
                                                   frame.epoch, " is refused: it is for ",
                                                   frame.audience.back(), ", and the group has ",
                                                   group.members.size(), " ranks, counted from 1"));
  }
  ++group.next_frame;
  if (found == &root->ready && root->old) {
    End(*root, root->old, "another group has taken its place", /*tell_root=*/true);
  }
  for (const auto& [process, member] : group.members) {
    const auto rank = ranks_.find(process);
    if (rank != ranks_.end()) rank->second.sink->Send(frame);
  }
  return absl::OkStatus();
}

// --- Groups ---

// Ranks over NCCL keep memory for frames. Where nobody does, there is no use in small ones.
uint64_t TransferBook::FrameBytes(const Root& root, const Group& group) {
  if (root.frame_bytes != 0) return root.frame_bytes;
  return group.size == 0 ? kMaxFrameBytes : kKeptFrameBytes;
}

TransferBook::Group TransferBook::Plan(const Root& root, std::vector<RootPlan::Member>* members) {
  std::vector<RankProcess> processes;
  std::vector<TransferHello> hellos;
  for (const auto& [process, rank] : ranks_) {
    processes.push_back(process);
    hellos.push_back(rank.hello);
  }
  const std::vector<RouteChoice> routes = ChooseRoutes(root.hello, hellos);
  Group group;
  uint32_t index = 1;  // the root is 0
  for (size_t i = 0; i < processes.size(); ++i) {
    RouteChoice choice = routes[i];
    if (choice.route != TransferRoute::kService && !ranks_.at(processes[i]).is_usable) {
      choice = {TransferRoute::kService, "it has failed, and has not said hello since"};
    }
    members->push_back({processes[i].first, choice, 0, hellos[i].tensors});
    if (choice.route == TransferRoute::kNccl) members->back().index = index++;
  }
  group.size = index > 1 ? index : 0;
  for (size_t i = 0; i < processes.size(); ++i) {
    RootPlan::Member& member = (*members)[i];
    if (member.choice.route == TransferRoute::kService) continue;
    if (member.choice.route == TransferRoute::kShared) member.index = index++;
    group.members[processes[i]] = {member.choice.route, member.index};
  }
  return group;
}

// Begins the next group, if another one than there is is wanted.
void TransferBook::Review(uint32_t contributor, Root& root, int64_t now) {
  std::vector<RootPlan::Member> members;
  Group wanted = Plan(root, &members);
  const auto has_same_members = [&](const std::optional<Group>& group) {
    return group && std::equal(group->members.begin(), group->members.end(), wanted.members.begin(),
                               wanted.members.end(), [](const auto& a, const auto& b) {
                                 return a.first == b.first && a.second.route == b.second.route;
                               });
  };
  const bool is_right = root.next ? has_same_members(root.next)
                                  : has_same_members(root.ready) || wanted.members.empty();
  if (is_right) {
    if (root.told != members) root.sink->Send(RootPlan{0, 0, members, 0});
    root.told = std::move(members);
    return;
  }
  if (root.next) End(root, root.next, "ranks have come or gone", /*tell_root=*/true);
  root.told = members;
  if (wanted.members.empty()) return root.sink->Send(RootPlan{0, 0, std::move(members), 0});
  wanted.epoch = next_epoch_++;
  wanted.joins_until = now + options_.join_micros;
  root.next = std::move(wanted);
  root.sink->Send(RootPlan{root.next->epoch, root.next->size, std::move(members),
                           FrameBytes(root, *root.next)});
  if (root.next->size == 0) Invite(contributor, root, "");
}

void TransferBook::Invite(uint32_t contributor, Root& root, const std::string& unique_id) {
  const Group& group = *root.next;
  for (const auto& [process, member] : group.members) {
    TransferPlan plan;
    plan.epoch = group.epoch;
    plan.route = member.route;
    plan.index = member.index;
    plan.frame_bytes = FrameBytes(root, group);
    if (member.route == TransferRoute::kNccl) {
      plan.unique_id = unique_id;
      plan.size = group.size;
    }
    const auto rank = ranks_.find(process);
    if (rank != ranks_.end()) rank->second.sink->Send(plan, contributor);
  }
  root.sink->SendNamed(group.epoch);
}

void TransferBook::SeeWhetherReady(uint32_t contributor, Root& root, int64_t) {
  if (!root.next || !root.next->root_has_joined) return;
  const Group& next = *root.next;
  if (!std::all_of(next.members.begin(), next.members.end(),
                   [](const auto& member) { return member.second.has_joined; })) {
    return;
  }
  if (root.old) End(root, root.old, "another group has taken its place", /*tell_root=*/true);
  root.old = std::exchange(root.ready, std::exchange(root.next, std::nullopt));
  Log(absl::StrCat("level=info event=transfer_ready contributor=", contributor,
                   " group=", root.ready->epoch, " ranks=", root.ready->members.size(),
                   " communicator=", root.ready->size));
  root.sink->SendReady(root.ready->epoch);
}

void TransferBook::End(Root& root, std::optional<Group>& group, const std::string& reason,
                       bool tell_root) {
  for (const auto& [process, member] : group->members) {
    const auto rank = ranks_.find(process);
    if (rank != ranks_.end()) rank->second.sink->SendTransferEnd(group->epoch, reason);
  }
  Log(absl::StrCat("level=info event=transfer_end group=", group->epoch, " reason=\"", reason,
                   "\""));
  if (tell_root) root.sink->SendEnd(group->epoch, reason);
  group.reset();
}

int64_t TransferBook::Tick(int64_t now) {
  int64_t next = protocol::kNever;
  for (auto& [contributor, root] : roots_) {
    if (!root.next) continue;
    if (now < root.next->joins_until) {
      next = std::min(next, root.next->joins_until);
      continue;
    }
    std::string missing;
    for (const auto& [process, member] : root.next->members) {
      if (member.has_joined) continue;
      absl::StrAppend(&missing, missing.empty() ? "" : ", ", protocol::ToString(process.first));
      if (const auto rank = ranks_.find(process); rank != ranks_.end()) {
        rank->second.is_usable = false;
      }
    }
    End(root, root.next, absl::StrCat("not joined in time: ", missing), /*tell_root=*/true);
    Review(contributor, root, now);
    if (root.next) next = std::min(next, root.next->joins_until);
  }
  return next;
}

}  // namespace wstore::service
