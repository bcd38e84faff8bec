// What a replica is told about an update, and what it tells.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wstore/digest.h"
#include "wstore/fingerprint.h"
#include "wstore/patch_source.h"
#include "wstore/regions.h"
#include "wstore/types.h"

namespace wstore {

// A version by number, and by content and history. Two stores may both have a v7; they have not
// both the same chain digest.
struct VersionName {
  VersionId version;
  Digest chain_digest;

  friend bool operator==(const VersionName&, const VersionName&) = default;
};

// "v7 (3f2a91c04b7d)": the number and the first digits of the digest.
std::string ToString(const VersionName& version);

enum class ReplicaState : uint8_t {
  kUnproven,   // which version the memory holds is not known, until an audit proves it
  kReady,      // holds its version, nothing is going on
  kStaging,    // as kReady, and collects the chunks of an update
  kStaged,     // as kReady; the update is whole and its sums are computed, but not compared
  kApproved,   // as kReady; the sums are as declared: the update may be applied
  kApplying,   // memory is being written
  kApplied,    // memory holds the new version, whose commit or abort is not decided
  kSuspended,  // there is no memory
  kPoisoned,   // the memory is damaged, or of unknown content; rebuild it
};
std::string_view ReplicaStateName(ReplicaState state);  // "unproven", "ready", ...

enum class ChangeReason : uint8_t {
  kPublish,
  kRollback,
  kCatchUp,
  kRebuilt,  // another version was proved than the last one held: memory was reloaded
};
std::string_view ChangeReasonName(ChangeReason reason);  // "publish", ...

// A consistent picture of a replica.
struct ReplicaStatus {
  ReplicaState state = ReplicaState::kUnproven;
  // What the memory holds and an engine may serve. Nothing while it is unproven, being written, not
  // decided, suspended or poisoned.
  std::optional<VersionName> version;
  MoveNumber move;  // the last decided head move
  uint64_t layout_generation = 0;
};

// The weights changed from one version to another.
struct ChangeEvent {
  VersionName from;
  VersionName to;
  ChangeReason reason = ChangeReason::kPublish;
  MoveNumber move;
  uint64_t elements = 0;  // changed in this replica's memory, copies counted each; 0: nothing local
};

// An update as it is announced, before its content is known.
struct UpdateHeader {
  TransactionNumber transaction;
  MoveNumber parent_move;  // the last decided move, on which the update builds
  MoveNumber move;         // what the update's own move will be
  VersionName from;
  VersionId to;  // the same as from.version: only the move changes
  Digest base_digest;
  uint64_t layout_generation = 0;  // the layout that the update was planned for
  uint16_t contributors = 1;       // chunks name contributors below this number
  ChangeReason reason = ChangeReason::kPublish;

  friend bool operator==(const UpdateHeader&, const UpdateHeader&) = default;
};

// What one contributor sent.
struct ContributorContent {
  uint64_t chunks = 0;
  Digest digest;  // of PatchDigester over its tiles; with one contributor, the patch-set digest
};

// What is known of an update when all of it has been sent.
struct UpdateSummary {
  Digest to_chain_digest;
  // By contributor, UpdateHeader::contributors of them. Empty if nothing changes.
  std::vector<ContributorContent> contents;
  // The declared sums of all tensors with changes, ascending. Without them, or where a rank holds
  // only a part of the model, the caller compares the reported sums, and approves.
  std::optional<std::vector<TensorSums>> declared;
  // The replica subscribes: chunks without a tile of a tensor that it holds were left out. Neither
  // counts nor digests can be compared then; what proves the update are the sums, of all cells.
  bool is_partial = false;
};

// What a staged update would do to this replica, from the bits now in its memory.
struct StagedReport {
  std::vector<CellSums> cells;  // those with changes, ascending
  TouchedSums total;            // over all cells
  uint64_t elements = 0;        // to be changed in this replica's memory, copies counted each
  uint64_t size_bytes = 0;      // of memory that the staged update takes
  bool approved = false;        // the replica compared the sums by itself: it is the whole instance
};

// The sums of all cells of a replica, from its memory.
struct AuditReport {
  std::vector<Fingerprint> cells;  // by cell
  Fingerprint total;
  uint64_t epoch = 0;  // tells whether memory was changed since
};

}  // namespace wstore
