// Deliberate faults, to prove that the simulator finds them. In a production build Mutated() is
// the constant false and leaves no trace; tests/protocol compiles the sources a second time with
// WSTORE_PROTOCOL_MUTATIONS.
#pragma once

#include <cstdint>

namespace wstore::protocol {

// Each leaves out one of the rules of docs/protocol.md.
enum class Mutation : uint8_t {
  kNone,
  kRecordWithoutFence,     // rule 1
  kGrantInWindow,          // rule 2
  kMatchOnVersion,         // rule 3
  kDecisionStartsAnyRank,  // rule 4
  kOutRanksApply,          // rule 5
  kGrantWithoutNonce,      // rule 6
  kEpochNotSynced,         // rule 7
  kNoRecovery,             // rule 8
  kAbortWhileRecording,    // rule 9
  kResumeAlone,            // rule 10
  kLeaseWithoutSkew,       // rule 1, its arithmetic
  kLeaseFromReceipt,       // rule 1, its arithmetic at the ranks
  kRepeatCommitsAgain,     // promise 6
  kFenceUnfenceable,       // an instance that serves without a lease counts as fenced
  kSumsNotCompared,        // whatever the votes' sums are, the instance takes part
  kRereadNotCompared,      // likewise for the sums that were re-read
  kCount,
};

#ifdef WSTORE_PROTOCOL_MUTATIONS
inline thread_local Mutation active_mutation = Mutation::kNone;
inline bool Mutated(Mutation mutation) { return active_mutation == mutation; }
#else
constexpr bool Mutated(Mutation) { return false; }
#endif

}  // namespace wstore::protocol
