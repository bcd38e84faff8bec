// What ranks and the store say to each other.
//
// A rank says where it stands, all of it, in every report: at least three times per lease and after
// every change. The store's orders follow from what it knows and from the report, so that any
// message may be lost, doubled, late or overtaken: the next report brings the right order again.
#pragma once

#include <optional>
#include <string>

#include "store/protocol/types.h"
#include "wstore/fingerprint.h"

namespace wstore::protocol {

struct Report {
  RankId rank;
  uint32_t ranks = 0;  // of the instance
  Incarnation incarnation;
  uint64_t request = 0;  // grows within the incarnation; a lease counts from when it was sent
  // Grants and renewals that answer an earlier request are void: the rank stands elsewhere since.
  // So one that says it is out, and was granted nothing since this request, has no lease.
  uint64_t valid_from = 0;
  Epoch epoch;  // the latest that the rank has seen

  std::optional<Position> position;  // nothing: not proved (yet), suspended, or poisoned
  bool durable = true;               // false: the position was marked "not durable"
  Standing standing = Standing::kOut;
  Stage stage = Stage::kNone;
  TransactionNumber transaction;  // of the update, unless kNone
  MoveNumber move;                // of the update, unless kNone
  TouchedSums sums;               // kStaged: foretold; kApplied: re-read
  // An update that this rank could not take, or took back by itself, and why.
  std::optional<TransactionNumber> refused;
  std::string error;
  bool poisoned = false;
  uint64_t layout_generation = 0;
  bool unfenceable = false;  // serves on when its lease is lost
};

enum class OrderKind : uint8_t {
  kWait,      // nothing now; why is in `reason`
  kRenew,     // the lease of `request` is good
  kGrant,     // serve plan.to, and the lease of `request`
  kPrepare,   // stage `plan`
  kFinish,    // all content is known: check and vote
  kApply,     // at the next safe point
  kDecide,    // commit or abort
  kTakeBack,  // plan.to, marked "not durable", was lost: go out, and back to where you were
  kLeave,     // go out
};
std::string_view OrderKindName(OrderKind kind);

struct Order {
  RankId rank;
  OrderKind kind = OrderKind::kWait;
  Epoch epoch;
  Incarnation incarnation;  // of the report that is answered
  uint64_t request = 0;     // kRenew, kGrant: likewise
  Micros lease = 0;         // kRenew, kGrant
  Plan plan;                // kPrepare, kFinish, kApply, kDecide; kGrant, kTakeBack: `to` only
  bool commit = false;      // kDecide
  bool durable = true;      // kDecide with commit
  std::string reason;
};

std::string ToString(const Report& report);
std::string ToString(const Order& order);

}  // namespace wstore::protocol
