// Bits that flip in a rank's memory, the votes that show it, and the audits that find the rest.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/protocol/world.h"

namespace wstore::protocol::testing {

// Whether bits that the update changes are wrong in this memory.
bool World::IsDamaged(const RankProcess& rank, const Plan& plan) const {
  const Memory& from = Content(plan.from.chain_digest);
  const Memory& to = Content(plan.to.chain_digest);
  for (size_t word = 0; word < rank.damage.size(); ++word) {
    const size_t place = rank.sharding->Place(rank.id.rank, word);
    if (rank.damage[word] != 0 && from[place] != to[place]) return true;
  }
  return false;
}

Vote World::Foretell(const RankProcess& rank, const Plan& plan) {
  Vote vote;
  vote.transaction = plan.transaction;
  vote.from = plan.from;
  vote.to = plan.to;
  vote.cells = rank.sharding->Foretell(rank.id.rank, rank.memory, Content(plan.from.chain_digest),
                                       Content(plan.to.chain_digest));
  for (const CellSums& cell : vote.cells) vote.total += cell.sums;
  vote.damaged = IsDamaged(rank, plan);
  for (size_t word = 0; vote.damaged && rank.ranks > 1 && word < rank.damage.size(); ++word) {
    if (rank.damage[word] != 0) vote.copy_damaged = rank.sharding->HasCopies(word);
  }
  return vote;
}

absl::Status World::JudgeVotes(const std::string& instance, const std::vector<Vote>& votes) {
  std::vector<std::vector<CellSums>> cells;
  for (uint32_t rank = 0; rank < votes.size(); ++rank) {
    const Vote& vote = votes[rank];
    if (vote.from != votes[0].from || vote.to != votes[0].to) {
      Violation(absl::StrCat("votes of ", instance, " from ", ToString(votes[0].from), " and from ",
                             ToString(vote.from), " are to be judged together"));
    }
    cells.push_back(vote.cells);
    const RankRow& row = store_.state.instances.at(instance).ranks[rank];
    if (row.last.sums != vote.total) {
      return absl::DataLossError(absl::StrCat("rank ", rank, " reported other sums than its vote"));
    }
  }
  for (const auto& rank : ranks_) {
    if (rank->id.instance != instance) continue;
    return rank->sharding->Judge(cells, Content(votes[0].from.chain_digest),
                                 Content(votes[0].to.chain_digest));
  }
  return absl::OkStatus();
}

// The verdict must be what the simulator knows, and name whoever is damaged.
void World::CheckVerdict(const std::string& instance, const std::vector<Vote>& votes,
                         const absl::Status& verdict) {
  std::vector<uint32_t> damaged;
  for (uint32_t rank = 0; rank < votes.size(); ++rank) {
    if (votes[rank].damaged) damaged.push_back(rank);
  }
  if (verdict.ok() != damaged.empty()) {
    return Violation(absl::StrCat("ranks ", absl::StrJoin(damaged, ", "), " of ", instance,
                                  " are damaged, but the verdict is: ", verdict.ToString()));
  }
  if (damaged.empty()) return;
  Count(Seen::kDamageInVote);
  const std::string message(verdict.message());
  Trace(absl::StrCat("the votes of ", instance, " are refused: ", message));
  for (const uint32_t rank : damaged) {
    if (!Names(message, rank)) {
      Violation(absl::StrCat("rank ", rank, " is damaged, and is not named: ", message));
    }
  }
  // One copy of several is wrong: then nobody else is named.
  if (damaged.size() != 1 || !votes[damaged[0]].copy_damaged) return;
  Count(Seen::kDamagedCopyNamed);
  for (uint32_t other = 0; other < votes.size(); ++other) {
    if (other == damaged[0] || !Names(message, other)) continue;
    Violation(absl::StrCat("rank ", other, " is sound, but is named: ", message));
  }
}

void World::Do(const Judge& effect) {
  InstanceJudged judged;
  judged.transaction = effect.transaction;
  judged.instance = effect.instance;
  if (!store_.state.active || store_.state.active->number != effect.transaction) {
    Count(Seen::kFollowerJudged);
  }
  std::vector<Vote> votes;
  std::string missing;
  for (const RankRow& row : store_.state.instances.at(effect.instance).ranks) {
    votes.push_back(store_.votes[{row.last.rank, row.incarnation}]);
    if (votes.back().transaction == effect.transaction) continue;
    missing = absl::StrCat(ToString(row.last.rank), " has not voted");
    // A late report may say what later votes of the process have replaced: a store that was started
    // again has seen those, but not yet the reports that came with them.
    const bool late = votes.back().request > row.last.request;
    for (const auto& rank : ranks_) {
      const bool lives = !late && rank->up && row.incarnation == rank->state.config.incarnation;
      if (lives && rank->id == row.last.rank) Violation(missing + ", and is to be judged");
    }
  }
  absl::Status verdict = absl::FailedPreconditionError(missing);
  if (missing.empty()) {
    verdict = JudgeVotes(effect.instance, votes);
    CheckVerdict(effect.instance, votes, verdict);
  }
  judged.ok = verdict.ok();
  judged.error = std::string(verdict.message());
  if (Chaos() && random_.OneIn(150)) {
    judged.ok = false;
    judged.error = "the declared sums cannot be read";
  }
  StoreLater(random_.Between(1, 50) * kMillisecond, judged);
  if (verdict.ok()) return;
  // Whoever hears that it is refused audits itself.
  for (const auto& rank : ranks_) {
    if (rank->id.instance != effect.instance) continue;
    After(random_.Between(100, 3000) * kMillisecond, [this, &rank = *rank] { Audit(rank); });
  }
}

// One bit flips.
void World::Damage(RankProcess& rank) {
  const auto is_damaged = [](uint64_t word) { return word != 0; };
  if (!rank.up || std::any_of(rank.damage.begin(), rank.damage.end(), is_damaged)) return;
  const size_t word = random_.Next() % rank.memory.size();
  rank.damage[word] = uint64_t{1} << random_.Between(0, 63);
  rank.memory[word] ^= rank.damage[word];
  Count(Seen::kDamageDone);
  Trace(absl::StrCat("FAULT: a bit flips in word ", word, " of ", ToString(rank.id)));
}

// Reads everything; between updates only.
void World::Audit(RankProcess& rank) {
  const bool idle = rank.up && rank.frozen_until <= now_ && !rank.changing && rank.state.position &&
                    !rank.state.update && !rank.state.taking_back;
  if (!idle || rank.memory == Expected(rank, rank.state.position->chain_digest)) return;
  Count(Seen::kDamageAudited);
  Poison(rank, "an audit found other bits than those of its version");
}

// A record under policy all is about to be written.
void World::CheckInstalled(const WriteRecord& effect) {
  if (effect.kind == TransactionKind::kCandidate || effect.move.policy != Policy::kAll) return;
  for (const auto& rank : ranks_) {
    const auto found = store_.state.instances.find(rank->id.instance);
    const bool is_known =
        found != store_.state.instances.end() && found->second.ranks.size() == rank->ranks &&
        found->second.ranks[rank->id.rank].incarnation == rank->state.config.incarnation;
    const bool reported = found != store_.state.instances.end() && found->second.reported;
    if (!reported && found != store_.state.instances.end() && found->second.participant) {
      Count(Seen::kLaggardLeftBehind);
    }
    const bool installed = is_known && reported && rank->reread == effect.move.transaction;
    if (installed && rank->reread_damaged) {
      Violation(absl::StrCat(ToString(rank->id), " is damaged, and its update is committed"));
    }
    if (!rank->up || !rank->unfenceable || reported || rank->state.standing == Standing::kOut) {
      continue;
    }
    // It may serve the old version from now on: only if the store cannot know.
    const bool evicted = is_known && found->second.ranks[rank->id.rank].evicted;
    if (rank->known_to_run == store_.run && !evicted) {
      Violation(absl::StrCat(ToString(rank->id), " cannot be fenced, and is left behind"));
    }
    if (!evicted) Count(Seen::kUnfenceableUnknown);
    rank->left_behind_by = effect.move.head.move;
  }
}

}  // namespace wstore::protocol::testing
