// A rank's process: engine, replica and memory. The replica is naive: it exchanges whatever it is
// told to, as often as it is told.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/protocol/world.h"

namespace wstore::protocol::testing {

// What a sound memory holds.
Memory World::Expected(const RankProcess& rank, const Digest& chain_digest) const {
  return rank.sharding->Held(rank.id.rank, Content(chain_digest));
}

// As a replica does: new bits are the old ones, whatever they are, XOR the difference. So damage
// stays as it is.
void World::Write(RankProcess& rank, const Plan& plan, size_t unit) {
  const Memory& from = Content(plan.from.chain_digest);
  const Memory& to = Content(plan.to.chain_digest);
  const size_t words = rank.memory.size();
  for (size_t word = words * unit / kUnits; word < words * (unit + 1) / kUnits; ++word) {
    rank.found += rank.sharding->Sum(rank.id.rank, rank.memory, from, to, word, word + 1);
    const size_t place = rank.sharding->Place(rank.id.rank, word);
    rank.memory[word] ^= from[place] ^ to[place];
  }
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
  config.serve_on_lost_lease = rank.unfenceable;
  rank.state = StartWorker(config);
  rank.plan.reset();
  rank.undo.reset();
  rank.key.reset();
  rank.changing = false;
  Trace(absl::StrCat(ToString(rank.id), " starts"));
  const Position base = {MoveNumber(0), VersionId(0), Digest{}};
  rank.memory = Expected(rank, base.chain_digest);
  rank.damage.assign(rank.memory.size(), 0);
  rank.known_to_run = 0;
  rank.left_behind_by = MoveNumber();
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
  Write(rank, plan, unit);
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
    for (size_t done = 0; done < unit; ++done) Write(rank, plan, done);
    rank.changing = false;
    result.error = "a write was refused";
    return StepRank(rank, result);
  }
  if (unit == kUnits) return ReadAgain(rank, plan);
  Write(rank, plan, unit);
  const bool slow = Chaos() && random_.OneIn(40);
  const Micros delay =
      slow ? random_.Between(1, 6) * kSecond : random_.Between(1, 60) * kMillisecond;
  InProcess(rank, rank.run, now_ + delay,
            [this, &rank, plan, unit, fail_at] { ApplySlowly(rank, plan, unit + 1, fail_at); });
}

// All is written: what was found and what is there now are compared with what was foretold.
void World::ReadAgain(RankProcess& rank, const Plan& plan) {
  ApplyDone result;
  result.transaction = plan.transaction;
  result.ok = true;
  result.sums.before = rank.found;
  result.sums.after = rank.sharding->Sum(rank.id.rank, rank.memory, Content(plan.from.chain_digest),
                                         Content(plan.to.chain_digest), 0, rank.memory.size());
  rank.changing = false;
  rank.reread = plan.transaction;
  rank.reread_damaged = IsDamaged(rank, plan);
  const bool differs = result.sums != rank.state.update->sums;
  // What is decided nobody compares after this rank.
  if (differs && rank.trusting && !rank.state.update->plan.decided) {
    Count(Seen::kDamageAtStore);
  } else if (differs) {
    Count(Seen::kDamageAtRank);
    for (size_t unit = 0; unit < kUnits; ++unit) Write(rank, plan, unit);
    result.ok = false;
    result.error = "other bits than foretold were found or re-read";
  }
  StepRank(rank, result);
}

void World::Poison(RankProcess& rank, const std::string& why) {
  Count(Seen::kMemoryPoisoned);
  Trace("FAULT: " + ToString(rank.id) + " is poisoned: " + why);
  // Whatever was going on in this process is over; it loads the base again.
  const WorkerState state = rank.state;
  ++rank.job;
  ++rank.run;
  rank.changing = false;
  rank.plan.reset();
  rank.undo.reset();
  const Position base = {MoveNumber(0), VersionId(0), Digest{}};
  rank.memory.assign(rank.memory.size(), 0xDEAD);
  rank.damage.assign(rank.memory.size(), 0);
  StepRank(rank, Unproven{true, why});
  InProcess(rank, rank.run, now_ + random_.Between(10, 2000) * kMillisecond, [this, &rank, base] {
    rank.memory = Expected(rank, base.chain_digest);
    rank.damage.assign(rank.memory.size(), 0);
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
  Count(Seen::kRelayout);
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
  Vote vote = rank.vote;
  vote.request = report.request;
  RankProcess* const from = &rank;
  Transmit(rank, store_, [this, from, report, vote = std::move(vote)] {
    // The cells of a vote come before the report that says that it is given.
    if (report.stage == Stage::kStaged && vote.transaction == report.transaction) {
      Vote& last = store_.votes[{report.rank, report.incarnation}];
      if (last.request < vote.request) last = vote;
    }
    // A store that is starting does not listen yet.
    const bool is_heard = store_.state.phase != CoordinatorPhase::kStarting;
    const bool serves = report.standing != Standing::kOut;
    if (is_heard && serves && report.incarnation == from->state.config.incarnation) {
      from->known_to_run = store_.run;
    }
    StepStore(ReportReceived{report});
  });
}

void World::Do(RankProcess& rank, const Begin& effect) { rank.plan = effect.plan; }

void World::Do(RankProcess& rank, const Finish& effect) {
  rank.plan = effect.plan;
  ++rank.job;
  rank.vote = Foretell(rank, effect.plan);
  StagingDone done;
  done.transaction = effect.plan.transaction;
  done.ok = !(Chaos() && random_.OneIn(40));
  done.error = "no memory to stage in";
  done.sums = rank.vote.total;
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
  rank.found = Fingerprint();
  if (Chaos() && random_.OneIn(40)) Damage(rank);  // after the vote
  rank.changing = true;
  // Not at once: the effects that follow this one are carried out before anything comes of it.
  InProcess(rank, rank.run, now_,
            [this, &rank, plan = *rank.plan, fail_at] { ApplySlowly(rank, plan, 0, fail_at); });
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
  Count(Seen::kAsyncTakenBack);
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
