// A rank's process: engine, replica and memory. The replica is naive: it exchanges whatever it is
// told to, as often as it is told.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/protocol/world.h"

namespace wstore::protocol::testing {

uint64_t World::Unit(const RankProcess& rank, const Digest& chain_digest, size_t unit) {
  return Content(chain_digest)[rank.id.rank * kUnits + unit];
}

Memory World::Expected(const RankProcess& rank, const Digest& chain_digest) {
  Memory memory;
  for (size_t unit = 0; unit < kUnits; ++unit) {
    memory.push_back(Unit(rank, chain_digest, unit));
  }
  return memory;
}

void World::StartRank(RankProcess& rank) {
  rank.up = true;
  ++rank.run;
  WorkerConfig config;
  config.rank = rank.id;
  config.ranks = rank.ranks;
  // The wall clock may have gone back.
  config.incarnation = {static_cast<uint64_t>(random_.Between(1, 20)), next_incarnation_++};
  config.report_interval = config_.timing.lease / 4;
  rank.state = StartWorker(config);
  rank.plan.reset();
  rank.undo.reset();
  rank.key.reset();
  rank.changing = false;
  Trace(absl::StrCat(ToString(rank.id), " starts"));
  const Position base = {MoveNumber(0), VersionId(0), Digest{}};
  rank.memory = Expected(rank, base.chain_digest);
  RankLater(rank, random_.Between(10, 1000) * kMillisecond, Proved{base, rank.layout_generation});
  StepRank(rank, WorkerTick{});
}

void World::CrashRank(RankProcess& rank) {
  rank.up = false;
  ++rank.run;
  ++rank.job;
  rank.frozen_until = 0;
  rank.key.reset();
}

void World::StepRank(RankProcess& rank, const WorkerEvent& event) {
  const WorkerEffects effects = Step(rank.state, rank.clock.At(now_), event);
  if (effects.list.size() > 16) Violation("too many effects in one step");
  for (const WorkerEffect& effect : effects.list) {
    std::visit([this, &rank](const auto& e) { Do(rank, e); }, effect);
  }
  const uint64_t wake = ++rank.wake;
  InProcess(rank, rank.run, rank.clock.Real(effects.wake_at), [this, &rank, wake] {
    if (wake == rank.wake) StepRank(rank, WorkerTick{});
  });
}

void World::RankLater(RankProcess& rank, Micros delay, WorkerEvent event, bool is_job) {
  const uint64_t job = rank.job;
  InProcess(rank, rank.run, now_ + delay, [this, &rank, job, is_job, event = std::move(event)] {
    if (!is_job || job == rank.job) StepRank(rank, event);
  });
}

// Exchanges one unit after another, each taking its time.
void World::Exchange(RankProcess& rank, Plan plan, size_t unit, std::function<void()> done) {
  rank.changing = true;
  if (unit == kUnits) {
    rank.changing = false;
    done();
    return;
  }
  rank.memory[unit] ^=
      Unit(rank, plan.from.chain_digest, unit) ^ Unit(rank, plan.to.chain_digest, unit);
  InProcess(
      rank, rank.run, now_ + random_.Between(1, 40) * kMillisecond,
      [this, &rank, plan, unit, done = std::move(done)] { Exchange(rank, plan, unit + 1, done); });
}

void World::ApplySlowly(RankProcess& rank, Plan plan, size_t unit, size_t fail_at) {
  rank.changing = true;
  ApplyDone result;
  result.transaction = plan.transaction;
  if (unit == fail_at) {
    // What was written is taken back; or even that fails.
    if (random_.OneIn(4)) return Poison(rank, "an undo failed");
    for (size_t done = 0; done < unit; ++done) {
      rank.memory[done] ^=
          Unit(rank, plan.from.chain_digest, done) ^ Unit(rank, plan.to.chain_digest, done);
    }
    rank.changing = false;
    result.error = "a write was refused";
    return StepRank(rank, result);
  }
  if (unit == kUnits) {
    rank.changing = false;
    result.ok = true;
    result.sums.before.lanes[0] = plan.from.version.value();
    for (size_t i = 0; i < kUnits; ++i) result.sums.after.lanes[0] += rank.memory[i];
    return StepRank(rank, result);
  }
  rank.memory[unit] ^=
      Unit(rank, plan.from.chain_digest, unit) ^ Unit(rank, plan.to.chain_digest, unit);
  const bool slow = Chaos() && random_.OneIn(40);
  const Micros delay =
      slow ? random_.Between(1, 6) * kSecond : random_.Between(1, 60) * kMillisecond;
  InProcess(rank, rank.run, now_ + delay,
            [this, &rank, plan, unit, fail_at] { ApplySlowly(rank, plan, unit + 1, fail_at); });
}

void World::Poison(RankProcess& rank, const std::string& why) {
  Trace("FAULT: " + ToString(rank.id) + " is poisoned: " + why);
  // Whatever was going on in this process is over; it loads the base again.
  const WorkerState state = rank.state;
  ++rank.job;
  ++rank.run;
  rank.changing = false;
  rank.plan.reset();
  rank.undo.reset();
  const Position base = {MoveNumber(0), VersionId(0), Digest{}};
  rank.memory.assign(kUnits, 0xDEAD);
  StepRank(rank, Unproven{true, why});
  InProcess(rank, rank.run, now_ + random_.Between(10, 2000) * kMillisecond, [this, &rank, base] {
    rank.memory = Expected(rank, base.chain_digest);
    StepRank(rank, Proved{base, rank.layout_generation});
  });
}

void World::Relayout(RankProcess& rank) {
  if (!rank.up || rank.frozen_until > now_ || !rank.state.position) return;
  const Position position = *rank.state.position;
  StepRank(rank, Unproven{false, "relayout"});
  if (rank.state.position) return;  // not now
  Trace(ToString(rank.id) + " changes its layout");
  ++rank.layout_generation;
  RankLater(rank, random_.Between(10, 1000) * kMillisecond,
            Proved{position, rank.layout_generation});
}

// The all-gather of an instance: if all ranks are ready with one key, each is told.
void World::CompareKeys(const std::string& instance) {
  std::vector<RankProcess*> mates;
  for (auto& rank : ranks_) {
    if (rank->id.instance == instance) mates.push_back(rank.get());
  }
  for (const RankProcess* mate : mates) {
    if (!mate->up || !mate->key || mate->key != mates[0]->key) return;
  }
  const ReadyKey key = *mates[0]->key;
  for (RankProcess* mate : mates) {
    if (mate->state.standing == Standing::kResuming) {
      RankLater(*mate, random_.Between(0, 10) * kMillisecond, AllReady{key});
    }
  }
}

void World::Do(RankProcess& rank, const SendReport& effect) {
  const Report report = effect.report;
  // Shown where it says something new.
  Report news = report;
  news.request = 0;
  if (std::string text = ToString(news); text != rank.said) {
    Trace("report of " + ToString(report));
    rank.said = std::move(text);
  }
  Transmit(rank, store_, [this, report] { StepStore(ReportReceived{report}); });
}

void World::Do(RankProcess& rank, const Begin& effect) { rank.plan = effect.plan; }

void World::Do(RankProcess& rank, const Finish& effect) {
  rank.plan = effect.plan;
  ++rank.job;
  StagingDone done;
  done.transaction = effect.plan.transaction;
  const Memory from = Expected(rank, effect.plan.from.chain_digest);
  done.ok = rank.memory == from && !(Chaos() && random_.OneIn(40));
  done.error = "old bits are not those declared";
  done.sums.before.lanes[0] = effect.plan.from.version.value();
  for (const uint64_t word : Expected(rank, effect.plan.to.chain_digest)) {
    done.sums.after.lanes[0] += word;
  }
  const bool slow = Chaos() && random_.OneIn(20);
  RankLater(rank, random_.Between(1, slow ? 6000 : 100) * kMillisecond, done, true);
}

void World::Do(RankProcess& rank, const Drop&) {
  ++rank.job;
  rank.plan.reset();
}

void World::Do(RankProcess& rank, const Pause&) {
  ++rank.job;
  const bool slow = Chaos() && random_.OneIn(15);
  RankLater(rank, random_.Between(1, slow ? 7000 : 50) * kMillisecond, Paused{}, true);
}

void World::Do(RankProcess& rank, const Apply&) {
  if (!rank.plan || rank.changing) return Violation("apply of nothing at " + ToString(rank.id));
  if (MayServe(rank.state, rank.clock.At(now_))) Violation("apply under a running engine");
  const size_t fail_at = Chaos() && random_.OneIn(25) ? random_.Next() % kUnits : kUnits + 1;
  ApplySlowly(rank, *rank.plan, 0, fail_at);
}

void World::Do(RankProcess& rank, const Commit& effect) {
  if (!rank.plan) return Violation("commit of nothing at " + ToString(rank.id));
  rank.undo.reset();
  if (effect.keep_undo) rank.undo = rank.plan;
  rank.plan.reset();
}

void World::Do(RankProcess& rank, const Undo&) {
  if (!rank.plan) return Violation("undo of nothing at " + ToString(rank.id));
  const Plan plan = *rank.plan;
  Exchange(rank, plan, 0, [this, &rank] {
    rank.plan.reset();
    StepRank(rank, UndoDone{});
  });
}

void World::Do(RankProcess& rank, const TakeBack&) {
  if (!rank.undo) return Violation("no undo was kept at " + ToString(rank.id));
  const Plan plan = *rank.undo;
  Exchange(rank, plan, 0, [this, &rank] {
    rank.undo.reset();
    StepRank(rank, UndoDone{});
  });
}

void World::Do(RankProcess& rank, const ForgetUndo&) { rank.undo.reset(); }

void World::Do(RankProcess& rank, const Ready& effect) {
  rank.key = effect.key;
  CompareKeys(rank.id.instance);
}

void World::Do(RankProcess& rank, const NotReady&) { rank.key.reset(); }

void World::Do(RankProcess& rank, const Start& effect) {
  Trace(ToString(rank.id) + " serves " + ToString(effect.position));
}

void World::Do(RankProcess& rank, const Stop& effect) {
  // A pause that was asked for is forgotten; staging goes on.
  if (rank.state.update && rank.state.update->stage == Stage::kStaged) ++rank.job;
  Trace(ToString(rank.id) + " goes out: " + effect.reason);
}

void World::Do(RankProcess& rank, const WorkerLog& effect) {
  Trace(ToString(rank.id) + ": " + effect.text);
}

}  // namespace wstore::protocol::testing
