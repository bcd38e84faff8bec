#include "store/service/vote_book.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/strings.h"

namespace wstore::service {
namespace {

constexpr size_t kMaxMaps = 16;
constexpr size_t kMaxListed = 10;
constexpr size_t kMaxRight = 8;

std::vector<Digest> DigestsOf(const std::vector<std::shared_ptr<const Layout>>& layouts) {
  std::vector<Digest> digests;
  for (const auto& layout : layouts) digests.push_back(layout->digest());
  return digests;
}

absl::Status Append(const protocol::RankId& rank, std::vector<CellSums>* to,
                    std::vector<CellSums> more) {
  uint64_t next = to->empty() ? 0 : uint64_t{to->back().cell} + 1;
  for (const CellSums& sums : more) {
    if (sums.cell < next) {
      return absl::InvalidArgumentError(absl::StrCat("the cells of ", protocol::ToString(rank),
                                                     " do not ascend at cell ", sums.cell));
    }
    next = uint64_t{sums.cell} + 1;
  }
  to->insert(to->end(), more.begin(), more.end());
  return absl::OkStatus();
}

// Whether all of `cells` are in `known`, which ascends, with the same sums.
bool HasAll(const std::vector<CellSums>& known, const std::vector<CellSums>& cells) {
  return std::all_of(cells.begin(), cells.end(), [&known](const CellSums& sums) {
    const auto found =
        std::lower_bound(known.begin(), known.end(), sums.cell,
                         [](const CellSums& one, uint32_t cell) { return one.cell < cell; });
    return found != known.end() && found->cell == sums.cell && found->sums == sums.sums;
  });
}

}  // namespace

void VoteBook::Register(const protocol::RankId& rank, uint32_t ranks,
                        const protocol::Incarnation& incarnation,
                        std::shared_ptr<const Layout> layout) {
  std::vector<Rank>& instance = instances_[rank.instance];
  if (instance.size() != ranks) {
    instance.clear();
    instance.resize(ranks);
  }
  Rank& entry = instance[rank.rank];
  const bool same = entry.incarnation == incarnation && entry.layout != nullptr &&
                    layout != nullptr && entry.layout->digest() == layout->digest();
  if (same) return;  // only a new connection
  entry = Rank();
  entry.incarnation = incarnation;
  entry.layout = std::move(layout);
}

void VoteBook::Forget(const std::string& instance) { instances_.erase(instance); }

absl::StatusOr<VoteBook::Rank*> VoteBook::Find(const protocol::RankId& rank,
                                               const protocol::Incarnation& incarnation) {
  const auto instance = instances_.find(rank.instance);
  if (instance == instances_.end() || rank.rank >= instance->second.size() ||
      instance->second[rank.rank].incarnation != incarnation) {
    return absl::FailedPreconditionError(
        absl::StrCat(protocol::ToString(rank), " is not registered, or another process is"));
  }
  Rank* const found = &instance->second[rank.rank];
  if (found->layout == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(protocol::ToString(rank), " has registered no layout, so it has no cells"));
  }
  return found;
}

absl::Status VoteBook::AddVote(const protocol::RankId& rank,
                               const protocol::Incarnation& incarnation,
                               TransactionNumber transaction, std::vector<CellSums> cells) {
  ASSIGN_OR_RETURN(Rank* const found, Find(rank, incarnation));
  // A rank that connects again gives its vote again, and it must not be in pieces meanwhile.
  if (found->voted_for == transaction && HasAll(found->vote, cells)) return absl::OkStatus();
  // Another vote of the same transaction begins at its first cell.
  const bool again =
      !cells.empty() && !found->vote.empty() && cells.front().cell <= found->vote.front().cell;
  if (found->voted_for != transaction || again) found->vote.clear();
  found->voted_for = transaction;
  return Append(rank, &found->vote, std::move(cells));
}

absl::Status VoteBook::AddAudit(const protocol::RankId& rank,
                                const protocol::Incarnation& incarnation, uint64_t audit,
                                const VersionName& version, std::vector<CellSums> cells,
                                bool last) {
  ASSIGN_OR_RETURN(Rank* const found, Find(rank, incarnation));
  if (found->audit != audit || found->audit_is_whole) found->audit_cells.clear();
  found->audit = audit;
  found->audited = version;
  found->audit_is_whole = last;
  return Append(rank, &found->audit_cells, std::move(cells));
}

absl::StatusOr<Votes> VoteBook::Collect(const std::string& instance,
                                        TransactionNumber transaction) const {
  Votes votes;
  votes.instance = instance;
  const auto found = instances_.find(instance);
  if (found == instances_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no rank of instance ", instance, " has registered a layout"));
  }
  std::vector<std::string> missing;
  for (size_t i = 0; i < found->second.size(); ++i) {
    const Rank& rank = found->second[i];
    if (rank.layout == nullptr || rank.voted_for != transaction) {
      missing.push_back(absl::StrCat(i));
      continue;
    }
    votes.layouts.push_back(rank.layout);
    votes.cells.push_back(rank.vote);
  }
  if (missing.empty()) return votes;
  if (missing.size() > kMaxListed) missing.resize(kMaxListed);
  return absl::FailedPreconditionError(
      absl::StrCat("ranks of instance ", instance, " without layout or sums for transaction ",
                   transaction.value(), ": ", absl::StrJoin(missing, ", ")));
}

std::optional<VoteBook::Audits> VoteBook::TakeAudits(const std::string& instance) {
  const auto found = instances_.find(instance);
  if (found == instances_.end()) return std::nullopt;
  std::vector<Rank>& ranks = found->second;
  const bool whole = std::all_of(ranks.begin(), ranks.end(), [&](const Rank& rank) {
    return rank.layout != nullptr && rank.audit_is_whole && rank.audited == ranks[0].audited;
  });
  if (!whole) return std::nullopt;
  Audits audits;
  audits.votes.instance = instance;
  audits.version = ranks[0].audited;
  for (Rank& rank : ranks) {
    audits.votes.layouts.push_back(rank.layout);
    audits.votes.cells.push_back(std::exchange(rank.audit_cells, {}));
    audits.names.push_back(rank.audit);
    audits.incarnations.push_back(rank.incarnation);
    rank.audit_is_whole = false;
  }
  return audits;
}

void VoteBook::Remember(const Audits& audits) {
  Right right{DigestsOf(audits.votes.layouts), audits.version, audits.votes.cells};
  std::erase_if(right_, [&](const Right& other) {
    return other.layouts == right.layouts && other.version == right.version;
  });
  if (right_.size() == kMaxRight) {
    // Ranks start from the base more often than from anywhere else.
    auto victim = std::find_if(right_.begin(), right_.end(), [](const Right& one) {
      return one.version.version != VersionId(0);
    });
    right_.erase(victim != right_.end() ? victim : right_.begin());
  }
  right_.push_back(std::move(right));
}

std::optional<absl::Status> VoteBook::JudgeAlone(const protocol::RankId& rank) const {
  const auto instance = instances_.find(rank.instance);
  if (instance == instances_.end() || rank.rank >= instance->second.size()) return std::nullopt;
  std::vector<std::shared_ptr<const Layout>> layouts;
  for (const Rank& mate : instance->second) {
    if (mate.layout == nullptr) return std::nullopt;
    layouts.push_back(mate.layout);
  }
  const Rank& audited = instance->second[rank.rank];
  const std::vector<Digest> digests = DigestsOf(layouts);
  const auto found = std::find_if(right_.begin(), right_.end(), [&](const Right& one) {
    return one.layouts == digests && one.version == audited.audited;
  });
  if (found == right_.end() || !audited.audit_is_whole) return std::nullopt;
  const std::vector<CellSums>& right = found->cells[rank.rank];
  size_t wrong = right.size() != audited.audit_cells.size() ? right.size() : 0;
  for (size_t i = 0; wrong == 0 && i < right.size(); ++i) {
    const CellSums& cell = audited.audit_cells[i];
    if (cell.cell != right[i].cell || cell.sums.after != right[i].sums.after) ++wrong;
  }
  if (wrong == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(protocol::ToString(rank), ", audit of ",
                                          wstore::ToString(audited.audited), ": other sums than ",
                                          "were found right for this layout before"));
}

absl::StatusOr<std::shared_ptr<const RegionMap>> Judge::MapOf(const Votes& votes) {
  std::vector<Digest> digests = DigestsOf(votes.layouts);
  std::vector<const Layout*> layouts;
  for (const auto& layout : votes.layouts) layouts.push_back(layout.get());
  for (const Made& made : made_) {
    if (made.layouts == digests) return made.map;
  }
  ASSIGN_OR_RETURN(RegionMap map, RegionMap::Create(manifest_, layouts));
  if (made_.size() == kMaxMaps) made_.erase(made_.begin());
  made_.push_back({std::move(digests), std::make_shared<const RegionMap>(std::move(map))});
  return made_.back().map;
}

Judgement Judge::JudgeUpdate(const Votes& votes, absl::Span<const TensorSums> declared) {
  Judgement judgement;
  const absl::StatusOr<std::shared_ptr<const RegionMap>> map = MapOf(votes);
  if (!map.ok()) {
    judgement.status = map.status();
    return judgement;
  }
  std::vector<absl::Span<const CellSums>> cells;
  for (const std::vector<CellSums>& rank : votes.cells) {
    cells.push_back(rank);
    TouchedSums total;
    for (const CellSums& cell : rank) total += cell.sums;
    judgement.totals.push_back(total);
  }
  judgement.status = Prefixed(JudgeTouched(**map, manifest_, cells, declared),
                              absl::StrCat("instance ", votes.instance));
  return judgement;
}

std::vector<absl::Status> Judge::JudgeAudit(const Votes& votes,
                                            const std::vector<Fingerprint>& declared) {
  std::vector<absl::Status> by_rank(votes.cells.size());
  const absl::StatusOr<std::shared_ptr<const RegionMap>> map = MapOf(votes);
  if (!map.ok()) {
    std::fill(by_rank.begin(), by_rank.end(), map.status());
    return by_rank;
  }
  bool is_whole = true;
  std::vector<std::vector<Fingerprint>> cells(votes.cells.size());
  for (uint32_t rank = 0; rank < votes.cells.size(); ++rank) {
    const size_t expected = (*map)->cells(rank).size();
    for (const CellSums& cell : votes.cells[rank]) cells[rank].push_back(cell.sums.after);
    // They ascend, so that the last tells whether one was left out.
    const bool is_gapless =
        votes.cells[rank].empty() || votes.cells[rank].back().cell + 1 == cells[rank].size();
    if (cells[rank].size() == expected && is_gapless) continue;
    is_whole = false;
    by_rank[rank] = absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " of instance ", votes.instance, " audited ",
                     cells[rank].size(), " cells; its layout has ", expected));
  }
  if (!is_whole) {
    for (absl::Status& status : by_rank) {
      if (status.ok()) status = absl::UnavailableError("the audit of another rank is malformed");
    }
    return by_rank;
  }
  const std::vector<SumFault> faults = JudgeSums(**map, cells, declared);
  for (uint32_t rank = 0; rank < by_rank.size(); ++rank) {
    std::vector<SumFault> mine;
    for (const SumFault& fault : faults) {
      if (std::count(fault.ranks.begin(), fault.ranks.end(), rank) > 0) mine.push_back(fault);
    }
    if (mine.empty()) continue;
    by_rank[rank] = absl::DataLossError(
        absl::StrCat("instance ", votes.instance, ", audit: ", ToString(mine, manifest_)));
  }
  return by_rank;
}

}  // namespace wstore::service
