// Between the store's words and the protocol's.
#pragma once

#include "store/live.h"
#include "store/protocol/coordinator_events.h"

namespace wstore::service {

protocol::JournalView ToJournalView(const LiveView& view);
protocol::TransactionKind FromLive(LiveKind kind);
LiveKind ToLive(protocol::TransactionKind kind);

// Whether it has content of its own.
bool MakesVersion(protocol::TransactionKind kind);

}  // namespace wstore::service
