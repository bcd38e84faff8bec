#include "tests/protocol/world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace wstore::protocol::testing {

Micros LocalClock::Real(Micros local) const {
  if (local >= kNever / 4) return kNever;
  Micros real = (local - offset) / parts_per_thousand * 1000;
  while (At(real) < local) real += 1000;
  return real;
}

World::World(const WorldOptions& options) : random_(options.seed), tracing_(options.trace) {
  Timing& timing = config_.timing;
  timing.stage_deadline = 6 * kSecond;
  timing.vote_deadline = 4 * kSecond;
  timing.apply_deadline = random_.Between(4000, 5000) * kMillisecond;
  timing.hold_deadline = timing.apply_deadline + random_.Between(10, 4000) * kMillisecond;
  config_.laggards = random_.OneIn(3) ? Laggards::kAbort : Laggards::kFence;
  chaos_end_ = random_.Between(15, 50) * kSecond;
  // Many seeds are gentle, so that much commits; some are wild.
  calmness_ = random_.OneIn(2) ? 4 : 1;
  loss_percent_ = random_.OneIn(2) ? 1 : static_cast<int>(random_.Between(0, 20));
  late_percent_ = random_.OneIn(2) ? 1 : static_cast<int>(random_.Between(0, 15));

  Journal::Entry base;
  base.move.head = {MoveNumber(0), VersionId(0), Digest{}};
  base.move.transaction = TransactionNumber(0);
  journal_.moves.push_back(base);
  journal_.next = {TransactionNumber(1), VersionId(1), MoveNumber(1)};
  Memory& content = contents_[Digest{}];
  for (size_t i = 0; i < kVersionWords; ++i) content.push_back(random_.Next());

  const auto set_clock = [this](Process& process) {
    process.clock.offset = random_.Between(1, 1000) * kSecond;
    process.clock.parts_per_thousand = random_.Between(870, 1130);
  };
  set_clock(store_);
  const int64_t instances = random_.Between(1, 4);
  if (instances == 4) Count(Seen::kFourInstances);
  const bool some_unfenceable = random_.OneIn(3);
  const bool some_trusting = random_.OneIn(2);
  for (int64_t i = 0; i < instances; ++i) {
    const auto size = static_cast<uint32_t>(random_.Between(1, 4));
    const bool paired = random_.OneIn(2);
    const bool unfenceable = some_unfenceable && random_.OneIn(2);
    if (size == 4) Count(Seen::kFourRanks);
    if (paired && size % 2 == 0) Count(Seen::kPaired);
    if (unfenceable) Count(Seen::kUnfenceable);
    for (uint32_t r = 0; r < size; ++r) {
      auto rank = std::make_unique<RankProcess>();
      rank->id = {absl::StrCat("i", i), r};
      rank->ranks = size;
      rank->sharding = &Sharding::Of(size, paired);
      rank->unfenceable = unfenceable;
      rank->trusting = some_trusting && random_.OneIn(2);
      set_clock(*rank);
      ranks_.push_back(std::move(rank));
    }
  }
  clients_.resize(2);
}

void World::At(Micros at, std::function<void()> action) {
  if (at >= kNever / 4) return;
  queue_.push({std::max(at, now_), order_++, std::move(action)});
}

void World::Trace(const std::string& text) {
  if (!tracing_) return;
  trace_.push_back(absl::StrCat(now_ / 1000, ".", (now_ / 100) % 10, " ms  ", text));
}

void World::Violation(const std::string& text) {
  if (!violation_.empty()) return;
  violation_ = text;
  Trace("VIOLATION: " + text);
}

void World::InProcess(Process& process, uint64_t run, Micros at, std::function<void()> action) {
  At(at, [this, &process, run, action = std::move(action)]() mutable {
    if (!process.up || process.run != run) return;
    if (process.frozen_until > now_) {
      InProcess(process, run, process.frozen_until, std::move(action));
      return;
    }
    action();
  });
}

Micros World::MessageDelay() {
  if (Chaos() && random_.Percent(static_cast<uint64_t>(late_percent_))) {
    Count(Seen::kMessageVeryLate);
    return random_.OneIn(3) ? random_.Between(1, 20) * kSecond
                            : random_.Between(30, 3000) * kMillisecond;
  }
  return random_.Between(1, 20) * kMillisecond;
}

void World::Transmit(Process& from, Process& to, std::function<void()> deliver) {
  if (from.cut_off_until > now_) return;
  if (Chaos() && random_.Percent(static_cast<uint64_t>(loss_percent_))) {
    return Count(Seen::kMessageLost);
  }
  const int copies = Chaos() && random_.OneIn(12) ? 2 : 1;
  if (copies == 2) Count(Seen::kMessageDoubled);
  for (int copy = 0; copy < copies; ++copy) {
    After(MessageDelay(), [this, &to, deliver] {
      if (!to.up || to.cut_off_until > now_) return;
      InProcess(to, to.run, now_, deliver);
    });
  }
}

void World::CutOffInstance(const std::string& instance, Micros until) {
  Count(Seen::kInstanceCutOff);
  for (auto& rank : ranks_) {
    if (rank->id.instance == instance) rank->cut_off_until = until;
  }
}

void World::InjectFaults() {
  if (!Chaos()) return;
  RankProcess& rank = *ranks_[static_cast<size_t>(random_.Next()) % ranks_.size()];
  const Micros until = now_ + random_.Between(50, 7000) * kMillisecond;
  switch (random_.Between(0, 18)) {
    case 0:
    case 1:
      if (store_.up) {
        Trace("FAULT: the store dies");
        Count(Seen::kStoreDies);
        CrashStore();
        After(random_.Between(10, 4000) * kMillisecond, [this] {
          if (!store_.up) StartStore();
        });
      }
      break;
    case 2:
    case 3:
      if (rank.up) {
        Trace("FAULT: rank " + ToString(rank.id) + " dies");
        Count(Seen::kRankDies);
        CrashRank(rank);
        After(random_.Between(10, 3000) * kMillisecond, [this, &rank] {
          if (!rank.up) StartRank(rank);
        });
      }
      break;
    case 4:
    case 5:
      Trace("FAULT: rank " + ToString(rank.id) + " freezes");
      rank.frozen_until = until;
      Count(Seen::kProcessFreezes);
      break;
    case 6:
      Trace("FAULT: the store freezes");
      store_.frozen_until = until;
      break;
    case 7:
    case 8:
      Trace("FAULT: rank " + ToString(rank.id) + " is cut off");
      rank.cut_off_until = until;
      Count(Seen::kRankCutOff);
      break;
    case 9:
      Trace("FAULT: instance " + rank.id.instance + " is cut off");
      CutOffInstance(rank.id.instance, until);
      break;
    case 10:
      Trace("FAULT: the store is cut off");
      store_.cut_off_until = until;
      Count(Seen::kStoreCutOff);
      break;
    case 11:
      Relayout(rank);
      break;
    case 12:
      if (rank.up && rank.frozen_until <= now_ && random_.OneIn(3))
        Poison(rank, "a fault of the memory");
      break;
    case 13:
    case 14:
      Damage(rank);
      break;
    case 15:
      // A store that knows nothing of this instance may commit without it.
      Trace("FAULT: the store dies, and instance " + rank.id.instance + " is cut off");
      CutOffInstance(rank.id.instance, now_ + random_.Between(6, 14) * kSecond);
      if (store_.up) CrashStore();
      After(random_.Between(10, 500) * kMillisecond, [this] {
        if (!store_.up) StartStore();
      });
      break;
    default:
      break;  // a quiet time
  }
  After(random_.Between(100, 2500) * kMillisecond * calmness_, [this] { InjectFaults(); });
}

void World::Heal() {
  Trace("faults stop");
  // Who is frozen thaws by itself: earlier, events would overtake those that wait for it.
  store_.cut_off_until = 0;
  if (!store_.up) StartStore();
  for (auto& rank : ranks_) rank->cut_off_until = 0;
  StartAgain();
}

// Whoever was evicted, and whoever is down.
void World::StartAgain() {
  for (auto& rank : ranks_) {
    const auto found = store_.state.instances.find(rank->id.instance);
    const bool evicted = found != store_.state.instances.end() &&
                         rank->id.rank < found->second.ranks.size() &&
                         found->second.ranks[rank->id.rank].evicted;
    // Its clock went back, and the one before it cannot be fenced.
    const bool locked_out =
        found != store_.state.instances.end() && rank->unfenceable && rank->up &&
        rank->state.config.incarnation < found->second.ranks[rank->id.rank].incarnation;
    if (locked_out && !evicted) StoreLater(kMillisecond, Evict{rank->id.instance});
    if (evicted && rank->up) CrashRank(*rank);
    if (!rank->up) StartRank(*rank);
  }
}

// Orders of long ago come again, in their order. Best those that look right: whose update starts
// from the version that the rank is at, after another move.
void World::ReplayOrders() {
  if (!Chaos()) return;
  After(random_.Between(500, 3000) * kMillisecond, [this] { ReplayOrders(); });
  RankProcess& rank = *ranks_[random_.Next() % ranks_.size()];
  if (!rank.state.position || rank.received.empty()) return;
  const auto fits = [&rank](const Order& order) {
    return order.kind == OrderKind::kPrepare && !order.plan.decided &&
           order.plan.from.version == rank.state.position->version &&
           order.plan.from.move != rank.state.position->move;
  };
  auto first = std::find_if(rank.received.begin(), rank.received.end(), fits);
  if (first == rank.received.end()) {
    first = rank.received.begin() + static_cast<ptrdiff_t>(random_.Next() % rank.received.size());
  }
  Count(Seen::kOldOrdersReplayed);
  // All that was said about that update, close together, each twice.
  const TransactionNumber transaction = first->plan.transaction;
  Micros delay = 0;
  for (auto it = first; it != rank.received.end() && delay < kSecond; ++it) {
    if (it->plan.transaction != transaction) continue;
    for (int copy = 0; copy < 2; ++copy) {
      const Order order = *it;
      After(delay, [this, &rank, order] {
        if (!rank.up || rank.cut_off_until > now_) return;
        InProcess(rank, rank.run, now_,
                  [this, &rank, order] { StepRank(rank, OrderReceived{order}); });
      });
      delay += random_.Between(5, 60) * kMillisecond;
    }
  }
}

std::string World::Run() {
  StartStore();
  for (auto& rank : ranks_) StartRank(*rank);
  for (size_t i = 0; i < clients_.size(); ++i) {
    After(random_.Between(100, 2000) * kMillisecond, [this, i] { RunClient(i); });
  }
  After(random_.Between(1, 5) * kSecond, [this] { InjectFaults(); });
  After(kSecond, [this] { Operate(); });
  After(4 * kSecond, [this] { ReplayOrders(); });
  At(chaos_end_, [this] { Heal(); });
  // Late messages of the time of faults still come for a while; then all must settle.
  const Micros end = chaos_end_ + 90 * kSecond;
  bool converged = false;
  std::function<void()> look = [&] {
    StartAgain();  // an eviction can come late
    for (auto& rank : ranks_) Audit(*rank);
    converged = true;
    for (const auto& rank : ranks_) {
      converged = converged && rank->up && MayServe(rank->state, rank->clock.At(now_)) &&
                  rank->state.position == Target(journal_.moves.back().move, rank->id.instance);
    }
    converged = converged && !store_.state.active && !store_.state.pending_rollback;
    for (const Client& client : clients_) converged = converged && !client.active;
    if (!converged) After(500 * kMillisecond, look);
  };
  At(chaos_end_ + 22 * kSecond, look);
  while (!queue_.empty() && violation_.empty() && !converged && now_ < end) {
    Timed next = std::move(const_cast<Timed&>(queue_.top()));
    queue_.pop();
    now_ = next.at;
    ++steps_;
    next.action();
    Check();
  }
  if (violation_.empty()) CheckEnd();
  return violation_;
}

}  // namespace wstore::protocol::testing
