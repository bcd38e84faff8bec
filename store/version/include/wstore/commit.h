// What a publish asks for, and what comes of it: of an embedded store and of one that is served.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "wstore/version.h"

namespace wstore {

// What a publish is made against. Whatever is given must be so at begin and at commit; otherwise
// the publish is refused with both sides' values.
struct BeginOptions {
  std::optional<VersionId> parent;  // default: head; another version than head is refused
  std::optional<Digest> parent_chain_digest;
  std::optional<Digest> base_digest;
  std::optional<MoveNumber> move;  // the head-move number that the caller saw

  // Chosen by the caller, to make retries safe: publishing the same content again under an id that
  // was committed returns the first outcome even if head has moved; other content is refused. An id
  // whose transaction was not committed may be used again. At most 256 bytes.
  std::string transaction_id;

  // The version is committed but head stays: to be tried out, then promoted. It may stay for ever.
  bool candidate = false;
  // Accepts a parent that is marked bad.
  bool force = false;

  std::string message;  // at most 64 KiB
  Metadata meta;        // at most 64 KiB in all
};

struct CommitResult {
  enum class Outcome {
    kCommitted,  // a new version, or a head move
    kRepeated,   // the id had been committed before; this is the first outcome
    kUnchanged,  // nothing differs: no version was made and head did not move
    // The fleet serves it, and it is durable a moment later: asked for with Durability::kAsync. An
    // embedded store never says this.
    kServedNotDurable,
  };
  Outcome outcome = Outcome::kCommitted;
  VersionId version;  // the version committed or moved to; unchanged: the parent
  VersionId head;     // head after it
  TransactionNumber transaction;
  int64_t duration_micros = 0;  // from begin
};
// "committed", "repeated", "unchanged", "served-not-durable".
std::string_view OutcomeName(CommitResult::Outcome outcome);

}  // namespace wstore
