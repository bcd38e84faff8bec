#include "store/protocol/types.h"

#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "store/protocol/messages.h"

namespace wstore::protocol {
namespace {

template <size_t n>
std::string_view NameIn(const std::array<std::string_view, n>& names, size_t index) {
  return index < n ? names[index] : "?";
}

absl::string_view Abbreviated(const std::string& hex) {
  return absl::string_view(hex).substr(0, 12);
}

}  // namespace

std::string ToString(const RankId& rank) { return absl::StrCat(rank.instance, "/", rank.rank); }

std::string ToString(const Position& position) {
  return absl::StrCat(wstore::ToString(position.version), " (",
                      Abbreviated(ToHex(position.chain_digest)), ") of move ",
                      position.move.value());
}

std::string_view StandingName(Standing standing) {
  static constexpr std::array<std::string_view, 4> kNames = {"out", "resuming", "serving",
                                                             "paused"};
  return NameIn(kNames, static_cast<size_t>(standing));
}

std::string_view StageName(Stage stage) {
  static constexpr std::array<std::string_view, 8> kNames = {
      "none", "staging", "checking", "staged", "pausing", "applying", "applied", "undoing"};
  return NameIn(kNames, static_cast<size_t>(stage));
}

std::string_view OrderKindName(OrderKind kind) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "wait", "renew", "grant", "prepare", "finish", "apply", "decide", "take back", "leave"};
  return NameIn(kNames, static_cast<size_t>(kind));
}

absl::Status CheckTiming(const Timing& timing) {
  std::vector<std::string> faults;
  if (timing.lease <= 0) faults.push_back(absl::StrCat("lease of ", timing.lease, " us"));
  if (timing.skew < 0) faults.push_back(absl::StrCat("skew of ", timing.skew, " us"));
  if (timing.apply_deadline < timing.lease + timing.skew) {
    faults.push_back(absl::StrCat("apply deadline of ", timing.apply_deadline,
                                  " us is below lease + skew, ", timing.lease + timing.skew,
                                  " us: no laggard could be fenced by then"));
  }
  if (timing.hold_deadline <= timing.apply_deadline) {
    faults.push_back(absl::StrCat("hold deadline of ", timing.hold_deadline,
                                  " us is not above the apply deadline, ", timing.apply_deadline,
                                  " us"));
  }
  if (timing.stage_deadline <= 0 || timing.vote_deadline <= 0) {
    faults.push_back("stage and vote deadline must be above 0");
  }
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(faults, "; "));
}

absl::Status CheckRank(const RankId& rank, uint32_t ranks) {
  if (rank.instance.empty() || rank.instance.size() > 128) {
    return absl::InvalidArgumentError(
        absl::StrCat("instance name of ", rank.instance.size(), " bytes; 1 to 128 are allowed"));
  }
  if (ranks == 0 || ranks > kMaxRanksPerInstance || rank.rank >= ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank.rank, " of ", ranks, " in instance ", rank.instance,
                     "; ranks count from 0, and an instance has at most ", kMaxRanksPerInstance));
  }
  return absl::OkStatus();
}

std::string ToString(const Report& report) {
  std::string text = absl::StrCat(
      ToString(report.rank), " #", report.request, " epoch ", report.epoch.value(), " ",
      report.position ? ToString(*report.position) : "nowhere",
      report.durable ? "" : " not durable", " ", std::string(StandingName(report.standing)));
  if (report.stage != Stage::kNone) {
    absl::StrAppend(&text, ", tx ", report.transaction.value(), " (move ", report.move.value(),
                    ") ", std::string(StageName(report.stage)));
  }
  if (report.refused) {
    absl::StrAppend(&text, ", refused tx ", report.refused->value(), ": ", report.error);
  }
  return text;
}

std::string ToString(const Order& order) {
  std::string text = absl::StrCat(std::string(OrderKindName(order.kind)), " to ",
                                  ToString(order.rank), ", epoch ", order.epoch.value());
  switch (order.kind) {
    case OrderKind::kWait:
    case OrderKind::kLeave:
      break;
    case OrderKind::kRenew:
      absl::StrAppend(&text, " #", order.request);
      break;
    case OrderKind::kGrant:
    case OrderKind::kTakeBack:
      absl::StrAppend(&text, " #", order.request, " ", ToString(order.plan.to));
      break;
    default:
      absl::StrAppend(&text, " tx ", order.plan.transaction.value(), " move ",
                      order.plan.from.move.value(), " -> ", order.plan.to.move.value(), " ",
                      wstore::ToString(order.plan.to.version),
                      order.plan.decided ? " decided" : "");
      if (order.kind == OrderKind::kDecide) {
        absl::StrAppend(&text, order.commit ? " COMMIT" : " ABORT",
                        order.durable ? "" : " not durable");
      }
  }
  if (!order.reason.empty()) absl::StrAppend(&text, ": ", order.reason);
  return text;
}

}  // namespace wstore::protocol
