// Trainers and operators.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/protocol/world.h"

namespace wstore::protocol::testing {

void World::Tell(CoordinatorEvent event) {
  if (Chaos() && random_.Percent(static_cast<uint64_t>(loss_percent_))) return;
  const int copies = Chaos() && random_.OneIn(12) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    After(MessageDelay(), [this, event] {
      if (store_.up && store_.cut_off_until <= now_) {
        InProcess(store_, store_.run, now_, [this, event] { StepStore(event); });
      }
    });
  }
}

void World::ChooseRequest(Client& client, bool is_operator) {
  client = Client{};
  StartTransaction& request = client.request;
  request.id = absl::StrCat(is_operator ? "op" : "p", next_id_++);
  const Move& head = journal_.moves.back().move;
  if (!is_operator) {
    request.kind = random_.OneIn(10) ? TransactionKind::kCandidate : TransactionKind::kPublish;
    request.contributors = static_cast<uint32_t>(random_.Between(1, 3));
    if (random_.OneIn(2)) request.parent = head.head;
    if (random_.OneIn(4)) request.policy = Policy::kEach;
    const bool may_async =
        request.kind == TransactionKind::kPublish && request.policy == Policy::kAll;
    if (may_async && random_.OneIn(3)) request.durability = Durability::kAsync;
    if (random_.OneIn(8)) request.laggards = Laggards::kAbort;
    client.active = true;
    return;
  }
  const int64_t choice = random_.Between(0, 9);
  if (head.trial) {
    request.kind = choice < 5 ? TransactionKind::kRevert : TransactionKind::kPromote;
    request.to = {MoveNumber(0), head.trial->version, head.trial->chain_digest};
    if (choice == 9) request.kind = TransactionKind::kRollback;
  } else if (choice < 7 && !journal_.candidates.empty()) {
    const Journal::Entry& candidate = journal_.candidates.back();
    request.kind = choice == 0 ? TransactionKind::kPromote : TransactionKind::kRollout;
    request.to = candidate.move.head;
    if (request.kind == TransactionKind::kRollout) {
      request.instances.push_back(ranks_[random_.Next() % ranks_.size()]->id.instance);
    }
  } else {
    request.kind = TransactionKind::kRollback;
    request.to = journal_.moves[random_.Next() % journal_.moves.size()].move.head;
  }
  if (request.kind == TransactionKind::kRevert) request.to = {};
  if (random_.OneIn(3)) request.policy = Policy::kEach;
  client.active = true;
}

void World::RunClient(size_t index) {
  Client& client = clients_[index];
  const bool is_operator = index == 1;
  After(random_.Between(100, 900) * kMillisecond, [this, index] { RunClient(index); });
  if (!client.active) {
    if (!Chaos() || (is_operator && !random_.OneIn(8)) || random_.OneIn(3)) return;
    ChooseRequest(client, is_operator);
  }
  // Answers to another request, or of long ago, are told apart by the number.
  const uint64_t waiter = next_id_ * clients_.size() + index;
  ++client.attempts;
  if (!client.begun || client.final) {
    StartTransaction start = client.request;
    start.waiter = waiter;
    Tell(start);
    if (client.final && client.extra-- <= 0) client.active = false;
    return;
  }
  for (uint32_t i = 0; i < client.request.contributors; ++i) {
    if (Chaos() && random_.OneIn(60)) continue;
    Tell(ContentStaged{client.transaction, i});
  }
  Tell(AwaitOutcome{waiter, client.request.id});
}

void World::CountAnswer(const Answer& answer) {
  const std::string message(answer.status.message());
  const auto says = [&message](const char* text) {
    return message.find(text) != std::string::npos;
  };
  if (answer.kind == AnswerKind::kRepeated) Count(Seen::kRepeated);
  if (answer.kind == AnswerKind::kRefused && says("on hold")) Count(Seen::kRefusedOnHold);
  if (answer.kind != AnswerKind::kAborted) return;
  Count(Seen::kAborted);
  if (says("cannot be fenced")) {
    Count(Seen::kUnfenceableMissing);
  } else if (says("did not vote within") || says("did not apply within")) {
    Count(Seen::kLaggardAborts);
  }
}

void World::TakeAnswer(size_t index, const Answer& answer) {
  Client& client = clients_[index];
  const uint64_t transaction = answer.transaction.value();
  CountAnswer(answer);
  const bool committed =
      answer.kind == AnswerKind::kCommitted || answer.kind == AnswerKind::kRepeated;
  if (committed) acknowledged_.insert(transaction);
  if (answer.kind == AnswerKind::kAborted && transaction != 0) aborted_.insert(transaction);
  // next_id_ has not changed since: it is about this client's request.
  if (answer.waiter != next_id_ * clients_.size() + index || !client.active) return;
  if (answer.kind == AnswerKind::kBegun) {
    client.begun = true;
    client.transaction = answer.transaction;
    return;
  }
  if (committed) {
    const auto [it, is_new] = answered_.emplace(client.request.id, transaction);
    if (!is_new && it->second != transaction) {
      Violation(absl::StrCat("id ", client.request.id, " was committed as transaction ", it->second,
                             " and again as ", transaction));
    }
    client.final = answer;
    client.extra = static_cast<int>(random_.Between(0, 2));
    return;
  }
  if (answer.kind == AnswerKind::kUnchanged) {
    client.active = false;
    return;
  }
  if (answer.kind == AnswerKind::kUnknown || absl::IsUnavailable(answer.status)) return;
  if (answer.kind == AnswerKind::kServedNotDurable) return;  // ask until it is, or is lost
  // Refused or aborted: once more under the same id, or give up.
  client.begun = false;
  if (client.attempts > 6 || random_.OneIn(2)) client.active = false;
}

// The operator's other tools.
void World::Operate() {
  if (journal_.hold && store_.up && store_.writes.empty() && (!Chaos() || random_.OneIn(3))) {
    WriteLater(
        kMillisecond, [this] { journal_.hold = false; }, HoldChanged{false});
    Count(Seen::kResume);
  }
  if (Chaos() && random_.OneIn(50) && store_.up && store_.writes.empty()) {
    Trace("operator: puts publishing on hold");
    Count(Seen::kHold);
    WriteLater(
        kMillisecond, [this] { journal_.hold = true; }, HoldChanged{true});
  }
  if (Chaos() && random_.OneIn(30) && clients_[0].active) {
    Count(Seen::kOperatorAborts);
    // Of no client: the answer is nobody's.
    Tell(AbortTransaction{UINT64_MAX, clients_[0].request.id, "an operator's wish"});
  }
  if (Chaos() && random_.OneIn(4)) Audit(*ranks_[random_.Next() % ranks_.size()]);
  if (Chaos() && random_.OneIn(12)) {
    const std::string instance = ranks_[random_.Next() % ranks_.size()]->id.instance;
    Trace("operator: evicts " + instance);
    Count(Seen::kEviction);
    if (store_.up) StoreLater(random_.Between(1, 50) * kMillisecond, Evict{instance});
    After(random_.Between(1000, 6000) * kMillisecond, [this, instance] {
      for (auto& rank : ranks_) {
        if (rank->id.instance != instance || !Chaos()) continue;
        if (rank->up) CrashRank(*rank);
        StartRank(*rank);
      }
    });
  }
  After(random_.Between(500, 1500) * kMillisecond, [this] { Operate(); });
}

}  // namespace wstore::protocol::testing
