// What must hold after every step, and at the end.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/protocol/world.h"

namespace wstore::protocol::testing {

MoveNumber World::LastAllMove() const {
  for (auto it = journal_.moves.rbegin(); it != journal_.moves.rend(); ++it) {
    if (it->move.policy == Policy::kAll) return it->move.head.move;
  }
  return MoveNumber(0);
}

// An instance that cannot be fenced, and has lost its lease: the named exception.
bool World::ServesWithoutLease(const RankProcess& rank) const {
  return rank.unfenceable && rank.clock.At(now_) >= rank.state.lease_until;
}

// It may serve what others do not any more: a version that was replaced by a store which did not
// know of it, or after an operator had evicted it; or one that was never durable, and is lost.
bool World::IsExcused(const RankProcess& rank) const {
  if (!ServesWithoutLease(rank)) return false;
  const auto is_lost = [&](const Journal::Entry& entry) {
    return entry.move.head.move == rank.state.position->move;
  };
  const bool left_behind = rank.state.position->move < rank.left_behind_by;
  return left_behind || std::any_of(lost_.begin(), lost_.end(), is_lost);
}

// Status must say so.
void World::CheckStatus(const RankProcess& rank) {
  const auto found = store_.state.instances.find(rank.id.instance);
  if (!store_.up || rank.known_to_run != store_.run || found == store_.state.instances.end())
    return;
  const RankRow& row = found->second.ranks[rank.id.rank];
  const Micros store_now = store_.clock.At(now_);
  const bool is_it = row.incarnation == rank.state.config.incarnation && !row.evicted;
  if (!is_it || RankStateName(store_.state, rank.id, store_now) != "lost") return;
  Count(Seen::kUnfenceableLost);
  if (!MayServeWhenLost(store_.state, rank.id, store_now)) {
    Violation(
        absl::StrCat(ToString(rank.id), " is lost and may serve, but status does not say so"));
  }
}

void World::CheckServing(const RankProcess& rank) {
  const Position& position = *rank.state.position;
  const auto is_it = [&](const Journal::Entry& entry) {
    return entry.move.head.move == position.move &&
           Target(entry.move, rank.id.instance) == position;
  };
  const bool logged = std::any_of(journal_.moves.rbegin(), journal_.moves.rend(), is_it);
  const bool lost = std::any_of(lost_.begin(), lost_.end(), is_it);
  const std::string who = absl::StrCat(ToString(rank.id), " serves ", ToString(position));
  if (!logged && !(lost && rank.state.before)) {
    return Violation(who + ", which is not committed");
  }
  if (position.move < LastAllMove() && !IsExcused(rank)) {
    return Violation(absl::StrCat(who, ", but the fleet is at move ", LastAllMove().value()));
  }
  Memory held = rank.memory;
  for (size_t word = 0; word < held.size(); ++word) held[word] ^= rank.damage[word];
  if (rank.changing || held != Expected(rank, position.chain_digest)) {
    return Violation(who + ", but its memory holds something else");
  }
}

// Called after every step.
void World::Check() {
  if (!violation_.empty()) return;
  const RankProcess* first = nullptr;
  const RankProcess* last = nullptr;
  const RankProcess* mate = nullptr;
  for (const auto& rank : ranks_) {
    const bool serves =
        rank->up && rank->frozen_until <= now_ && MayServe(rank->state, rank->clock.At(now_));
    if (!serves) continue;
    CheckServing(*rank);
    if (ServesWithoutLease(*rank)) {
      Count(Seen::kUnfenceableWithoutLease);
      CheckStatus(*rank);
    }
    // Ranks of one instance stand next to each other.
    if (mate != nullptr && mate->id.instance == rank->id.instance &&
        mate->state.position != rank->state.position) {
      Violation(absl::StrCat("a mixed instance: ", ToString(mate->id), " serves ",
                             ToString(*mate->state.position), ", ", ToString(rank->id), " ",
                             ToString(*rank->state.position)));
    }
    mate = rank.get();
    if (IsExcused(*rank)) continue;
    const MoveNumber move = rank->state.position->move;
    if (first == nullptr || move < first->state.position->move) first = rank.get();
    if (last == nullptr || move > last->state.position->move) last = rank.get();
  }
  if (first == nullptr || first->state.position->move == last->state.position->move) return;
  // Two moves are served: allowed only if the way from one to the other is under policy each.
  const MoveNumber from = first->state.position->move;
  const MoveNumber to = last->state.position->move;
  const auto between = [&](const Journal::Entry& entry) {
    return entry.move.policy == Policy::kAll && entry.move.head.move > from &&
           entry.move.head.move <= to;
  };
  const auto is_last = [&](const Journal::Entry& entry) {
    return entry.move.policy == Policy::kAll && entry.move.head.move == to;
  };
  if (std::any_of(journal_.moves.begin(), journal_.moves.end(), between) ||
      std::any_of(lost_.begin(), lost_.end(), is_last)) {
    Violation(absl::StrCat("two versions: ", ToString(first->id), " serves ",
                           ToString(*first->state.position), ", ", ToString(last->id), " ",
                           ToString(*last->state.position)));
  }
}

// Called after every record.
void World::CheckJournal() {
  std::set<std::string> ids;
  std::set<uint64_t> transactions;
  std::set<uint64_t> versions = {0};
  const Journal::Entry* before = nullptr;
  for (const Journal::Entry& entry : journal_.moves) {
    if (before != nullptr) {
      if (entry.parent != before->move.head) Violation("a move was not made from the one before");
      if (entry.move.head.move <= before->move.head.move) Violation("a move number was reused");
    }
    before = &entry;
  }
  for (const auto* entries : {&journal_.moves, &journal_.candidates, &lost_}) {
    for (const Journal::Entry& entry : *entries) {
      if (!transactions.insert(entry.move.transaction.value()).second) {
        Violation(absl::StrCat("transaction ", entry.move.transaction.value(), " was reused"));
      }
      const bool made = entry.kind == TransactionKind::kCandidate ||
                        (entry.kind == TransactionKind::kPublish && !entry.id.empty());
      if (made && !versions.insert(entry.outcome.version.value()).second) {
        Violation(absl::StrCat(ToString(entry.outcome), " reuses a number"));
      }
      // The same id may be tried again after its record was lost.
      if (entries != &lost_ && !entry.id.empty() && !ids.insert(entry.id).second) {
        Violation(absl::StrCat("id ", entry.id, " was committed twice"));
      }
    }
  }
}

void World::CountRecord(const Journal::Entry& entry) {
  switch (entry.kind) {
    case TransactionKind::kPublish:
      Count(entry.move.policy == Policy::kAll ? Seen::kCommitUnderAll : Seen::kCommitUnderEach);
      if (!entry.synced) Count(Seen::kAsyncCommit);
      return;
    case TransactionKind::kCandidate:
      return Count(Seen::kCandidate);
    case TransactionKind::kRollout:
      return Count(Seen::kRollout);
    case TransactionKind::kPromote:
      return Count(Seen::kPromotion);
    case TransactionKind::kRevert:
      return Count(Seen::kRevert);
    case TransactionKind::kRollback:
      return Count(Seen::kRollback);
  }
}

bool World::InJournal(uint64_t transaction) const {
  const auto is_it = [transaction](const Journal::Entry& entry) {
    return entry.move.transaction.value() == transaction;
  };
  return std::any_of(journal_.moves.begin(), journal_.moves.end(), is_it) ||
         std::any_of(journal_.candidates.begin(), journal_.candidates.end(), is_it);
}

void World::CheckEnd() {
  const Move& head = journal_.moves.back().move;
  for (const uint64_t transaction : acknowledged_) {
    if (!InJournal(transaction)) {
      Violation(absl::StrCat("acknowledged transaction ", transaction, " is lost"));
    }
  }
  for (const uint64_t transaction : aborted_) {
    if (InJournal(transaction)) {
      Violation(absl::StrCat("transaction ", transaction, " was called aborted, but is there"));
    }
  }
  for (const auto& rank : ranks_) {
    const Position target = Target(head, rank->id.instance);
    if (!rank->up || !MayServe(rank->state, rank->clock.At(now_)) ||
        rank->state.position != target) {
      Violation(absl::StrCat("faults have stopped, but ", ToString(rank->id),
                             " does not serve head, ", ToString(target)));
    }
  }
  for (const auto& rank : ranks_) {
    if (rank->state.position &&
        rank->memory != Expected(*rank, rank->state.position->chain_digest)) {
      Violation(absl::StrCat("faults have stopped, but ", ToString(rank->id), " is damaged"));
    }
  }
  if (store_.state.active) Violation("faults have stopped, but a transaction does not end");
  for (const Client& client : clients_) {
    if (client.active) Violation("faults have stopped, but " + client.request.id + " waits");
  }
}

}  // namespace wstore::protocol::testing
