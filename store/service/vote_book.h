// What the ranks of each instance said about sums: where they hold which elements, and what they
// would make of them.
//
// Threads: one at a time; Judge may run beside all else, in one thread of its own.
// Bounded: per rank a layout, one vote and one audit.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "store/protocol/types.h"
#include "wstore/layout.h"
#include "wstore/regions.h"
#include "wstore/update.h"

namespace wstore::service {

// What the ranks of one instance say, all of it, ready to be judged elsewhere.
struct Votes {
  std::string instance;
  std::vector<std::shared_ptr<const Layout>> layouts;  // by rank
  std::vector<std::vector<CellSums>> cells;            // by rank
};

// What was made of votes.
struct Judgement {
  absl::Status status;
  std::vector<TouchedSums> totals;  // by rank: what each must report after it has applied
};

class VoteBook {
 public:
  // A rank that has started, or has another layout: what it said before is forgotten.
  void Register(const protocol::RankId& rank, uint32_t ranks,
                const protocol::Incarnation& incarnation, std::shared_ptr<const Layout> layout);
  void Forget(const std::string& instance);

  // Adds cells of a vote for `transaction`, which replaces one for another; ascending.
  //   kFailedPrecondition: the rank is not registered under this incarnation, or has no layout
  //   kInvalidArgument: cells that do not ascend
  absl::Status AddVote(const protocol::RankId& rank, const protocol::Incarnation& incarnation,
                       TransactionNumber transaction, std::vector<CellSums> cells);
  // Likewise for an audit, named by the rank; `last`: it is whole.
  absl::Status AddAudit(const protocol::RankId& rank, const protocol::Incarnation& incarnation,
                        uint64_t audit, const VersionName& version, std::vector<CellSums> cells,
                        bool last);

  //   kFailedPrecondition: names the ranks that have no layout or no vote for it
  absl::StatusOr<Votes> Collect(const std::string& instance, TransactionNumber transaction) const;

  // Whole audits of one version by all ranks, and how each named its own.
  struct Audits {
    Votes votes;
    VersionName version;
    std::vector<uint64_t> names;                      // by rank
    std::vector<protocol::Incarnation> incarnations;  // by rank
  };
  // Nothing as long as one is missing. Afterwards they are forgotten.
  std::optional<Audits> TakeAudits(const std::string& instance);

  // Keeps what was found right, so that a rank that is started again need not wait for the others
  // to stand where it does: they serve a later version.
  void Remember(const Audits& audits);
  // Judges the whole audit of one rank by that. Nothing: no sums of this version and of these
  // layouts are kept.
  //   kDataLoss: other sums; says of how many cells
  std::optional<absl::Status> JudgeAlone(const protocol::RankId& rank) const;

 private:
  struct Rank {
    protocol::Incarnation incarnation;
    std::shared_ptr<const Layout> layout;
    TransactionNumber voted_for;
    std::vector<CellSums> vote;
    uint64_t audit = 0;
    bool audit_is_whole = false;
    VersionName audited;
    std::vector<CellSums> audit_cells;
  };

  absl::StatusOr<Rank*> Find(const protocol::RankId& rank,
                             const protocol::Incarnation& incarnation);

  // Sums that whole audits found, and that are right.
  struct Right {
    std::vector<Digest> layouts;  // by rank
    VersionName version;
    std::vector<std::vector<CellSums>> cells;  // by rank
  };

  std::map<std::string, std::vector<Rank>> instances_;
  std::vector<Right> right_;  // the latest last
};

// Compares votes with what is declared. Keeps the region maps it made last.
class Judge {
 public:
  // `manifest` must outlive it.
  explicit Judge(const Manifest& manifest) : manifest_(manifest) {}

  // Sums over the changed elements.
  Judgement JudgeUpdate(const Votes& votes, absl::Span<const TensorSums> declared);
  // Sums over everything; `declared`: of every tensor. By rank: those that no fault names are OK.
  std::vector<absl::Status> JudgeAudit(const Votes& votes,
                                       const std::vector<Fingerprint>& declared);

 private:
  absl::StatusOr<std::shared_ptr<const RegionMap>> MapOf(const Votes& votes);

  struct Made {
    std::vector<Digest> layouts;
    std::shared_ptr<const RegionMap> map;
  };

  const Manifest& manifest_;
  std::vector<Made> made_;  // the latest last
};

}  // namespace wstore::service
