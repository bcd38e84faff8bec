#include "store/service/live_events.h"

namespace wstore::service {

using protocol::TransactionKind;

TransactionKind FromLive(LiveKind kind) {
  switch (kind) {
    case LiveKind::kPublish:
      return TransactionKind::kPublish;
    case LiveKind::kCandidate:
      return TransactionKind::kCandidate;
    case LiveKind::kRollout:
      return TransactionKind::kRollout;
    case LiveKind::kPromote:
      return TransactionKind::kPromote;
    case LiveKind::kRevert:
      return TransactionKind::kRevert;
    case LiveKind::kRollback:
      return TransactionKind::kRollback;
  }
  return TransactionKind::kPublish;
}

LiveKind ToLive(TransactionKind kind) {
  switch (kind) {
    case TransactionKind::kPublish:
      return LiveKind::kPublish;
    case TransactionKind::kCandidate:
      return LiveKind::kCandidate;
    case TransactionKind::kRollout:
      return LiveKind::kRollout;
    case TransactionKind::kPromote:
      return LiveKind::kPromote;
    case TransactionKind::kRevert:
      return LiveKind::kRevert;
    case TransactionKind::kRollback:
      return LiveKind::kRollback;
  }
  return LiveKind::kPublish;
}

bool MakesVersion(TransactionKind kind) {
  return kind == TransactionKind::kPublish || kind == TransactionKind::kCandidate;
}

protocol::JournalView ToJournalView(const LiveView& view) {
  protocol::JournalView out;
  out.epoch = protocol::Epoch(view.epoch);
  out.next = {view.next.transaction, view.next.version, view.next.move};
  out.hold = view.hold;
  for (const LiveMove& live : view.moves) {
    protocol::Move move;
    move.head = {live.move, live.head.version, live.head.chain_digest};
    move.transaction = live.transaction;
    move.policy = live.for_all ? protocol::Policy::kAll : protocol::Policy::kEach;
    if (live.trial) {
      move.trial = protocol::Trial{live.trial->candidate.version,
                                   live.trial->candidate.chain_digest, live.trial->instances};
    }
    out.moves.push_back(std::move(move));
  }
  for (const LiveOutcome& live : view.outcomes) {
    protocol::Outcome outcome;
    outcome.id = live.id;
    outcome.kind = FromLive(live.kind);
    outcome.transaction = live.transaction;
    outcome.to = {live.move, live.to.version, live.to.chain_digest};
    outcome.content = live.patch_digest;
    out.outcomes.push_back(std::move(outcome));
  }
  return out;
}

}  // namespace wstore::service
