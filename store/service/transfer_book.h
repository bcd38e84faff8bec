// The transfer groups of a fleet: who leads, who can be reached how, and what is told to whom.
// Knows nothing of the network, and decides nothing about versions.
//
// For every root (a publisher's contributor) there is at most one group that is ready, and one that
// is being formed, under a new epoch. When a rank that can be reached comes, or a member goes, the
// next one is begun; when all of its members have joined, the root takes it for its next
// transaction, and the one before ends with the first frame of that. A member that fails to join,
// or that says its group is broken, ends that group for all; it is not asked again before it has
// said hello anew. Ranks that are in no group are fed by the service.
//
// Not thread-safe: it is the strand's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/service/fleet_types.h"
#include "wstore/transfer_group.h"

namespace wstore::service {

// What a root is told.
struct RootPlan {
  struct Member {
    protocol::RankId rank;
    RouteChoice choice;
    uint32_t index = 0;  // in the group; 0: it is not in it
    TensorSet tensors;   // that it wants
    friend bool operator==(const Member&, const Member&) = default;
  };
  uint64_t epoch = 0;  // 0: no group is to be formed; this is who is reached how
  uint32_t size = 0;   // of the communicator; 0: none is needed
  std::vector<Member> members;
  uint64_t frame_bytes = 0;  // of a frame at most, in this group
};

// Where messages to a root go. As RankSink.
class RootSink {
 public:
  virtual ~RootSink() = default;
  virtual void Send(const RootPlan& plan) = 0;
  virtual void SendNamed(uint64_t epoch) = 0;
  virtual void SendReady(uint64_t epoch) = 0;
  virtual void SendEnd(uint64_t epoch, const std::string& reason) = 0;
};

class TransferBook {
 public:
  struct Options {
    // Not all parties have joined a group by then: those that have not are left out.
    int64_t join_micros = 20'000'000;
    std::function<void(const std::string&)> log;
  };
  explicit TransferBook(Options options) : options_(std::move(options)) {}

  // Of the server's run; epochs of groups grow with it.
  void SetEpoch(uint64_t server_epoch) { next_epoch_ = server_epoch << 32 | 1; }

  // Ranks. A process that is attached, and can be reached; it may say so again.
  void Hello(const RankProcess& process, std::shared_ptr<RankSink> sink, TransferHello hello,
             int64_t now);
  void Gone(const RankProcess& process, int64_t now);
  void Joined(const RankProcess& process, uint64_t epoch, const absl::Status& status, int64_t now);

  // Roots.
  //   kFailedPrecondition: another one leads as this contributor
  absl::Status Lead(uint32_t contributor, std::shared_ptr<RootSink> sink, const std::string& peer,
                    TransferHello hello, uint64_t frame_bytes, int64_t now);
  void RootGone(const RootSink* sink, int64_t now);
  void Name(const RootSink* sink, uint64_t epoch, const std::string& unique_id, int64_t now);
  void RootJoined(const RootSink* sink, uint64_t epoch, const absl::Status& status, int64_t now);
  // Passes a frame on to the members of its group, at once.
  //   kFailedPrecondition: of a group that has ended, which is no fault; or that is not next
  //   kInvalidArgument: see CheckFrame; or its audience has an index that no member has
  absl::Status Announce(const RootSink* sink, const FrameHeader& frame);

  // Ends what has waited for too long. When to call it again; kNever: not before another call.
  int64_t Tick(int64_t now);

 private:
  struct Rank {
    std::shared_ptr<RankSink> sink;
    TransferHello hello;
    bool is_usable = true;  // false: it has failed since its hello
  };
  struct Member {
    TransferRoute route = TransferRoute::kService;
    uint32_t index = 0;  // in the group
    bool has_joined = false;
  };
  struct Group {
    uint64_t epoch = 0;
    uint32_t size = 0;
    std::map<RankProcess, Member> members;
    bool root_has_joined = false;
    int64_t joins_until = 0;
    uint64_t next_frame = 0;
  };
  struct Root {
    std::shared_ptr<RootSink> sink;
    std::string peer;
    TransferHello hello;
    uint64_t frame_bytes = 0;  // 0: as suits the group
    std::vector<RootPlan::Member> told;
    std::optional<Group> ready;
    std::optional<Group> next;  // is being formed
    std::optional<Group> old;   // until the first frame of the one that is ready
  };

  static constexpr std::optional<Group> Root::*kGroups[] = {&Root::ready, &Root::next, &Root::old};
  Root* FindRoot(const RootSink* sink);
  // The group of that epoch; null: there is none.
  static std::optional<Group>* FindGroup(Root& root, uint64_t epoch);
  void Review(uint32_t contributor, Root& root, int64_t now);
  static uint64_t FrameBytes(const Root& root, const Group& group);
  Group Plan(const Root& root, std::vector<RootPlan::Member>* members);
  void Invite(uint32_t contributor, Root& root, const std::string& unique_id);
  void SeeWhetherReady(uint32_t contributor, Root& root, int64_t now);
  void End(Root& root, std::optional<Group>& group, const std::string& reason, bool tell_root);
  void Drop(const RankProcess& process, const std::string& reason, int64_t now);
  void Log(const std::string& line) const;

  const Options options_;
  uint64_t next_epoch_ = 1;
  std::map<RankProcess, Rank> ranks_;
  std::map<uint32_t, Root> roots_;  // by contributor
};

}  // namespace wstore::service
