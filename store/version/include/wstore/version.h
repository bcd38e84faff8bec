// What a store tells about its versions and head moves.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wstore/digest.h"
#include "wstore/fingerprint.h"
#include "wstore/patch_source.h"
#include "wstore/types.h"

namespace wstore {

// Free-form facts about a version, such as {"step", "1200"} or {"run", "rl-7"}.
using Metadata = std::map<std::string, std::string>;

// How far a version's bits were checked before it was committed.
enum class Verified {
  kNone,
  kMaterialised,  // the store computed its sums from the parent's actual bits
  kInstalled,     // every rank re-read its memory and the sums added up
};
std::string_view VerifiedName(Verified verified);  // "none", "materialised", "installed"
std::optional<Verified> ParseVerified(std::string_view name);

// A committed version. v0, the base, has no parent, patch or transaction.
struct VersionInfo {
  VersionId version;
  std::optional<VersionId> parent;
  TransactionNumber transaction;
  std::string transaction_id;  // the caller's; may be empty
  Digest chain_digest;         // names the version by content and history
  Digest patch_digest;         // zero for v0
  Fingerprint fingerprint;     // of the whole model
  uint64_t tensors = 0;        // with at least one changed element; v0: of the base
  uint64_t elements = 0;       // changed storage elements; v0: of the base
  uint64_t payload_bytes = 0;  // at rest in the journal; v0: of the base's tensors
  Verified verified = Verified::kNone;
  int64_t created_unix_micros = 0;
  std::string actor;
  std::string message;
  Metadata meta;
  bool candidate = false;          // committed without becoming head; cleared by a promotion
  std::optional<std::string> bad;  // marked bad, and why: refused as a parent or rollback target
};

// A change of head, or a refused attempt at one.
struct MoveInfo {
  MoveNumber move;  // 0 where it was refused
  VersionId from;
  VersionId to;  // a refused publish has no version: the same as from
  // "publish", "rollback" or "promote"; "rollout" and "revert" leave head where it is.
  std::string why;
  TransactionNumber transaction;
  std::string transaction_id;
  std::string policy;   // "all" or "each"
  std::string outcome;  // "committed", "refused" or "aborted"
  std::string actor;
  std::string peer;     // credentials of the connection; empty for an embedded store
  std::string message;  // the caller's; where it was refused, why
  int64_t created_unix_micros = 0;
  int64_t duration_micros = 0;
  // From a rollout on: the candidate that some instances serve in place of head, and their names.
  std::optional<VersionId> trial;
  std::vector<std::string> trial_instances;
};

// Publishing is stopped until it is resumed.
struct HoldInfo {
  std::string reason;
  std::string actor;
  int64_t created_unix_micros = 0;
};

// A name for a version.
struct TagInfo {
  std::string name;
  VersionId version;
  std::string actor;
  int64_t created_unix_micros = 0;
};

// The state that a publish is made against and that commit compares with: if any of it has changed,
// the publish is refused.
struct HeadInfo {
  VersionId version;
  Digest chain_digest;
  Digest base_digest;
  MoveNumber move;  // number of the last head move; 0 before the first
};

// What a difference between two versions changes, with sums taken from actual bits: what a replica
// must find before it applies the difference, and must have afterwards.
struct DifferenceInfo {
  Digest patch_digest;
  uint64_t elements = 0;
  std::vector<TensorSums> touched;  // every tensor with changes, ascending
};

}  // namespace wstore
