// The store's process and its disk.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/protocol/world.h"

namespace wstore::protocol::testing {

const Memory& World::Content(const Digest& chain_digest) const {
  return contents_.at(chain_digest);
}

// What the disk holds now. A record that was not synced is lost, or it is not.
JournalView World::ViewJournal() {
  Journal::Entry& last = journal_.moves.back();
  if (!last.synced) {
    if (random_.OneIn(2)) {
      Trace("the journal lost move " + absl::StrCat(last.move.head.move.value()));
      lost_.push_back(last);
      journal_.moves.pop_back();
    } else {
      last.synced = true;
    }
  }
  JournalView view;
  view.epoch = journal_.epoch;
  view.next = journal_.next;
  view.hold = journal_.hold;
  const auto add = [&view](const Journal::Entry& entry) {
    if (entry.id.empty()) return;
    view.outcomes.push_back({entry.id, entry.kind, entry.move.transaction, entry.outcome, {}});
  };
  for (const Journal::Entry& entry : journal_.moves) {
    view.moves.push_back(entry.move);
    add(entry);
  }
  for (const Journal::Entry& entry : journal_.candidates) add(entry);
  return view;
}

void World::StartStore() {
  store_.up = true;
  ++store_.run;
  store_.state = NewCoordinator(config_);
  Trace("the store starts");
  StepStore(Started{ViewJournal()});
}

void World::CrashStore() {
  store_.up = false;
  ++store_.run;
  store_.frozen_until = 0;
  for (auto& [number, write] : store_.writes) {
    if (random_.OneIn(2)) write();
  }
  store_.writes.clear();
  store_.votes.clear();
}

void World::StepStore(const CoordinatorEvent& event) {
  const CoordinatorEffects effects = Step(store_.state, store_.clock.At(now_), event);
  // At most a few orders per rank, beside answers.
  if (effects.list.size() > 8 * ranks_.size() + 64) Violation("too many effects in one step");
  const uint64_t run = store_.run;
  for (const CoordinatorEffect& effect : effects.list) {
    if (store_.run != run) return;
    std::visit([this](const auto& e) { Do(e); }, effect);
  }
  const uint64_t wake = ++store_.wake;
  InProcess(store_, store_.run, store_.clock.Real(effects.wake_at), [this, wake] {
    if (wake == store_.wake) StepStore(CoordinatorTick{});
  });
}

void World::StoreLater(Micros delay, CoordinatorEvent event) {
  InProcess(store_, store_.run, now_ + delay,
            [this, event = std::move(event)] { StepStore(event); });
}

void World::WriteLater(Micros delay, std::function<void()> write,
                       std::optional<CoordinatorEvent> event) {
  const uint64_t number = next_write_++;
  store_.writes[number] = std::move(write);
  InProcess(store_, store_.run, now_ + delay, [this, number, event = std::move(event)] {
    const auto node = store_.writes.extract(number);
    if (!node.empty()) node.mapped()();
    if (event) StepStore(*event);
  });
}

void World::Do(const SendOrder& effect) {
  const Order& order = effect.order;
  if (store_.state.phase == CoordinatorPhase::kStarting) {
    Violation("a message before the epoch was synced");
  }
  for (auto& rank : ranks_) {
    if (rank->id != order.rank) continue;
    const bool grants = order.kind == OrderKind::kGrant;
    if (grants && order.incarnation == rank->state.config.incarnation) {
      rank->known_to_run = store_.run;
    }
    if (order.kind != OrderKind::kRenew && order.kind != OrderKind::kWait) {
      Trace("store: " + ToString(order));
    }
    RankProcess* const to = rank.get();
    Transmit(store_, *to, [this, to, order] {
      if (order.kind != OrderKind::kRenew && order.kind != OrderKind::kWait) {
        Trace(ToString(to->id) + " gets: " + ToString(order));
        to->received.push_back(order);
      }
      StepRank(*to, OrderReceived{order});
    });
  }
}

void World::Do(const SyncEpoch& effect) {
  const Epoch epoch = effect.epoch;
  WriteLater(
      random_.Between(1, 50) * kMillisecond, [this, epoch] { journal_.epoch = epoch; },
      EpochSynced{});
}

void World::Do(const ReserveNumbers& effect) {
  const Numbers numbers = effect.numbers;
  const TransactionNumber transaction = store_.state.active->number;
  WriteLater(
      random_.Between(1, 50) * kMillisecond,
      [this, numbers] {
        // Writes reach the disk in their order.
        if (numbers.transaction > journal_.next.transaction) journal_.next = numbers;
      },
      NumbersReserved{transaction});
}

void World::Do(const CompleteContent& effect) {
  const ActiveTransaction& active = *store_.state.active;
  const std::string owner = absl::StrCat(store_.run, " ", active.request.id);
  if (const auto [it, is_new] = given_.emplace(effect.transaction.value(), owner);
      !is_new && it->second != owner) {
    Violation(absl::StrCat("transaction number ", it->first, " was given out twice"));
  }
  ContentComplete complete;
  complete.transaction = effect.transaction;
  if (Chaos() && random_.OneIn(30)) {
    Count(Seen::kContentDamaged);
    complete.status = absl::DataLossError("content is damaged");
  }
  if (!active.staged.empty()) {
    // The content of a version that never was: so its digest is new, whatever numbers say.
    for (uint8_t& byte : complete.chain_digest.bytes) byte = static_cast<uint8_t>(random_.Next());
    Memory content = Content(active.from.chain_digest);
    for (uint64_t& word : content) {
      if (random_.OneIn(2)) word = random_.Next();
    }
    contents_[complete.chain_digest] = std::move(content);
  }
  StoreLater(random_.Between(1, 300) * kMillisecond, complete);
}

void World::Do(const WriteRecord& effect) {
  Journal::Entry entry;
  entry.move = effect.move;
  entry.kind = effect.kind;
  entry.id = effect.id;
  entry.parent = effect.parent;
  entry.outcome = effect.move.trial ? Position{effect.move.head.move, effect.move.trial->version,
                                               effect.move.trial->chain_digest}
                                    : effect.move.head;
  entry.synced = effect.durability == Durability::kSync;
  Trace(absl::StrCat("store: write record of ", std::string(TransactionKindName(entry.kind)), " ",
                     entry.id, " tx ", entry.move.transaction.value(), ": ",
                     ToString(entry.outcome), entry.synced ? "" : ", not synced"));
  CheckInstalled(effect);
  const bool hold = effect.hold;
  const auto append = [this, entry, hold] {
    Trace(absl::StrCat("journal: tx ", entry.move.transaction.value(), " is there"));
    if (entry.kind == TransactionKind::kCandidate) {
      journal_.candidates.push_back(entry);
    } else {
      journal_.moves.push_back(entry);
    }
    journal_.hold = journal_.hold || hold;
    CountRecord(entry);
    CheckJournal();
  };
  RecordWritten written;
  written.transaction = entry.move.transaction;
  const Micros delay = random_.OneIn(8) ? random_.Between(100, 6000) * kMillisecond
                                        : random_.Between(1, 100) * kMillisecond;
  const int64_t luck = Chaos() ? random_.Between(0, 60) : 60;
  if (luck == 0) {
    written.outcome = RecordOutcome::kNothing;
    written.status = absl::ResourceExhaustedError("the disk is full");
    Count(Seen::kDiskFull);
    StoreLater(delay, written);
    return;
  }
  const bool unknown = luck <= 2;
  if (unknown) {
    written.outcome = RecordOutcome::kUnknown;
    written.status = absl::UnknownError("I/O error");
    Count(Seen::kUnknownOutcome);
  }
  if (entry.synced) {
    const bool there = !unknown || random_.OneIn(2);
    WriteLater(
        delay,
        [append, there] {
          if (there) append();
        },
        written);
    return;
  }
  RecordWritten appended = written;
  appended.outcome = RecordOutcome::kAppended;
  WriteLater(delay, append, appended);
  const Micros synced_at = delay + random_.Between(1, 3000) * kMillisecond;
  InProcess(store_, store_.run, now_ + synced_at, [this, written, unknown] {
    if (!unknown) journal_.moves.back().synced = true;
    StepStore(written);
  });
}

void World::Do(const ReopenJournal&) {
  Trace("store: reopens the journal");
  const uint64_t run = store_.run;
  InProcess(store_, run, now_ + random_.Between(10, 500) * kMillisecond, [this] {
    for (auto& [number, write] : store_.writes) {
      if (random_.OneIn(2)) write();
    }
    store_.writes.clear();
    ++store_.run;
    StepStore(Started{ViewJournal()});
  });
}

void World::Do(const DiscardContent&) {}

void World::Do(const Answer& effect) {
  Trace(absl::StrCat("store: answers ", effect.waiter, ": ",
                     std::string(AnswerKindName(effect.kind)), " tx ", effect.transaction.value(),
                     " ", effect.status.ToString()));
  // The network between store and callers loses answers, too.
  if (Chaos() && random_.Percent(static_cast<uint64_t>(loss_percent_))) return;
  const Answer answer = effect;
  After(MessageDelay(), [this, answer] {
    TakeAnswer(static_cast<size_t>(answer.waiter % clients_.size()), answer);
  });
}

void World::Do(const Alarm& effect) { Violation("alarm: " + effect.text); }

void World::Do(const CoordinatorLog& effect) { Trace("store: " + effect.text); }

}  // namespace wstore::protocol::testing
