// A fleet in one thread: the real coordinator and workers, with clocks, network, disk, memory and
// engines made of random numbers. The same seed gives the same run.
//
// After every step the world is compared with what the promises allow (checks.cc). When faults have
// stopped, everything must come to serve head.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/protocol/counts.h"
#include "tests/protocol/processes.h"
#include "tests/protocol/random.h"

namespace wstore::protocol::testing {

struct WorldOptions {
  uint64_t seed = 1;
  bool trace = false;
};

class World {
 public:
  explicit World(const WorldOptions& options);

  // Runs to the end. Empty: all promises were kept; otherwise what was broken.
  std::string Run();
  const std::vector<std::string>& trace() const { return trace_; }
  uint64_t steps() const { return steps_; }
  uint64_t commits() const { return journal_.moves.size() - 1; }
  const Counts& counts() const { return counts_; }

 private:
  struct Timed {
    Micros at = 0;
    uint64_t order = 0;
    std::function<void()> action;
  };
  struct Later {
    bool operator()(const Timed& a, const Timed& b) const {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };

  // world.cc
  void At(Micros at, std::function<void()> action);
  void After(Micros delay, std::function<void()> action) { At(now_ + delay, std::move(action)); }
  void Trace(const std::string& text);
  void Violation(const std::string& text);
  void Count(Seen seen) { ++counts_[static_cast<size_t>(seen)]; }
  bool Chaos() const { return now_ < chaos_end_; }
  // Runs `action` in the process when it is not frozen, unless it died meanwhile.
  void InProcess(Process& process, uint64_t run, Micros at, std::function<void()> action);
  Micros MessageDelay();
  void Transmit(Process& from, Process& to, std::function<void()> deliver);
  void InjectFaults();
  void CutOffInstance(const std::string& instance, Micros until);
  void ReplayOrders();
  void Heal();
  void StartAgain();

  // store_process.cc
  void StartStore();
  void CrashStore();
  JournalView ViewJournal();
  void StepStore(const CoordinatorEvent& event);
  void StoreLater(Micros delay, CoordinatorEvent event);
  void WriteLater(Micros delay, std::function<void()> write, std::optional<CoordinatorEvent> event);
  void Do(const SendOrder& effect);
  void Do(const SyncEpoch& effect);
  void Do(const ReserveNumbers& effect);
  void Do(const CompleteContent& effect);
  void Do(const WriteRecord& effect);
  void Do(const ReopenJournal& effect);
  void Do(const DiscardContent& effect);
  void Do(const Answer& effect);
  void Do(const Alarm& effect);
  void Do(const CoordinatorLog& effect);
  const Memory& Content(const Digest& chain_digest) const;

  // damage.cc: bits that flip, votes that show it, audits that find the rest
  void Do(const Judge& effect);
  absl::Status JudgeVotes(const std::string& instance, const std::vector<Vote>& votes);
  void CheckVerdict(const std::string& instance, const std::vector<Vote>& votes,
                    const absl::Status& verdict);
  Vote Foretell(const RankProcess& rank, const Plan& plan);
  bool IsDamaged(const RankProcess& rank, const Plan& plan) const;
  void Damage(RankProcess& rank);
  void Audit(RankProcess& rank);
  void CheckInstalled(const WriteRecord& effect);

  // rank_process.cc
  void StartRank(RankProcess& rank);
  void CrashRank(RankProcess& rank);
  void StepRank(RankProcess& rank, const WorkerEvent& event);
  void RankLater(RankProcess& rank, Micros delay, WorkerEvent event, bool is_job = false);
  Memory Expected(const RankProcess& rank, const Digest& chain_digest) const;
  void Write(RankProcess& rank, const Plan& plan, size_t unit);
  void ReadAgain(RankProcess& rank, const Plan& plan);
  void Exchange(RankProcess& rank, Plan plan, size_t unit, std::function<void()> done);
  void ApplySlowly(RankProcess& rank, Plan plan, size_t unit, size_t fail_at);
  void Poison(RankProcess& rank, const std::string& why);
  void Relayout(RankProcess& rank);
  void CompareKeys(const std::string& instance);
  void Do(RankProcess& rank, const SendReport& effect);
  void Do(RankProcess& rank, const Begin& effect);
  void Do(RankProcess& rank, const Finish& effect);
  void Do(RankProcess& rank, const Drop& effect);
  void Do(RankProcess& rank, const Pause& effect);
  void Do(RankProcess& rank, const Apply& effect);
  void Do(RankProcess& rank, const Commit& effect);
  void Do(RankProcess& rank, const Undo& effect);
  void Do(RankProcess& rank, const TakeBack& effect);
  void Do(RankProcess& rank, const ForgetUndo& effect);
  void Do(RankProcess& rank, const Ready& effect);
  void Do(RankProcess& rank, const NotReady& effect);
  void Do(RankProcess& rank, const Start& effect);
  void Do(RankProcess& rank, const Stop& effect);
  void Do(RankProcess& rank, const WorkerLog& effect);

  // clients.cc
  void Tell(CoordinatorEvent event);  // over the network
  void RunClient(size_t index);
  void ChooseRequest(Client& client, bool is_operator);
  void TakeAnswer(size_t index, const Answer& answer);
  void CountAnswer(const Answer& answer);
  void Operate();

  // checks.cc
  void Check();
  void CheckServing(const RankProcess& rank);
  bool ServesWithoutLease(const RankProcess& rank) const;
  bool IsExcused(const RankProcess& rank) const;
  void CheckStatus(const RankProcess& rank);
  void CheckJournal();
  void CountRecord(const Journal::Entry& entry);
  void CheckEnd();
  MoveNumber LastAllMove() const;
  bool InJournal(uint64_t transaction) const;

  Random random_;
  const bool tracing_;
  Micros now_ = 0;
  Micros chaos_end_ = 0;
  uint64_t order_ = 0;
  uint64_t steps_ = 0;
  std::priority_queue<Timed, std::vector<Timed>, Later> queue_;
  std::string violation_;
  std::vector<std::string> trace_;
  Counts counts_{};

  CoordinatorConfig config_;
  StoreProcess store_;
  Journal journal_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::vector<Client> clients_;
  uint64_t next_id_ = 0;
  uint64_t next_incarnation_ = 1;
  uint64_t next_write_ = 0;

  // Reference history.
  std::map<Digest, Memory> contents_;         // by chain digest
  std::vector<Journal::Entry> lost_;          // committed "not durable", and lost
  std::map<uint64_t, std::string> given_;     // numbers of transactions: to whom
  std::set<uint64_t> acknowledged_;           // transactions
  std::set<uint64_t> aborted_;                // likewise
  std::map<std::string, uint64_t> answered_;  // by id: the transaction
  Micros calmness_ = 1;                       // how much longer the times between faults are
  int loss_percent_ = 0;
  int late_percent_ = 0;
};

}  // namespace wstore::protocol::testing
