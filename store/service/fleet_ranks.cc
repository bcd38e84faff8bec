// Ranks: their connections, reports, votes and audits.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/service/fleet.h"

namespace wstore::service {

void Fleet::Attach(RankRegistration registration, std::shared_ptr<RankSink> sink) {
  strand_.Post([this, registration = std::move(registration), sink = std::move(sink)] {
    const auto& [rank, incarnation] = registration.process;
    RankConnection& connection = ranks_[registration.process];
    if (connection.sink != nullptr && connection.sink != sink) connection.sink->Superseded();
    connection = {sink, registration.peer, {}};
    // Of two processes that are connected, the greater has the rank's place.
    const auto greater = ranks_.upper_bound(registration.process);
    const bool outranked = greater != ranks_.end() && greater->first.first == rank;
    if (!outranked) {
      votes_.Register(rank, registration.ranks, incarnation, registration.layout);
    }
  });
}

void Fleet::Detach(const RankProcess& process, const RankSink* sink) {
  strand_.Post([this, process, sink] {
    const auto found = ranks_.find(process);
    if (found == ranks_.end() || found->second.sink.get() != sink) return;
    ranks_.erase(found);
    transfers_.Gone(process, now());
    const std::string& instance = process.first.instance;
    const auto mate = ranks_.lower_bound({{instance, 0}, {}});
    if (mate == ranks_.end() || mate->first.first.instance != instance) votes_.Forget(instance);
  });
}

void Fleet::Report(protocol::Report report, const ReceivedBytes& received, const RankSink* sink) {
  // One that is lost is followed by another.
  [[maybe_unused]] const bool taken =
      strand_.TryPost([this, report = std::move(report), received, sink] {
        const auto found = ranks_.find({report.rank, report.incarnation});
        if (found == ranks_.end() || found->second.sink.get() != sink) return;
        found->second.received = received;
        Feed(protocol::ReportReceived{report});
      });
}

void Fleet::Vote(const RankProcess& process, TransactionNumber transaction,
                 std::vector<CellSums> cells) {
  strand_.Post([this, process, transaction, cells = std::move(cells)]() mutable {
    const absl::Status status =
        votes_.AddVote(process.first, process.second, transaction, std::move(cells));
    if (!status.ok()) {
      Log(absl::StrCat("level=warning event=vote rank=\"", protocol::ToString(process.first),
                       "\" error=\"", status.ToString(), "\""));
    }
  });
}

void Fleet::Carry(const protocol::Judge& effect) {
  const auto answer = [this, effect](const Judgement& judged) {
    absl::Status status = judged.status;
    const auto instance = state_.instances.find(effect.instance);
    if (status.ok() && instance != state_.instances.end()) {
      // The totals in the reports are of the same votes.
      for (size_t i = 0; i < instance->second.ranks.size() && i < judged.totals.size(); ++i) {
        if (instance->second.ranks[i].last.sums == judged.totals[i]) continue;
        status = absl::DataLossError(
            absl::StrCat("rank ", i, " reported other sums than the cells of its vote add up to"));
      }
    }
    if (!status.ok()) {
      Log(absl::StrCat("level=alarm event=judged instance=\"", effect.instance, "\" transaction=",
                       effect.transaction.value(), " error=\"", status.ToString(), "\""));
    }
    Feed(protocol::InstanceJudged{effect.transaction, effect.instance, status.ok(),
                                  std::string(status.message())});
  };
  const auto instance = state_.instances.find(effect.instance);
  const bool active = state_.active && state_.active->number == effect.transaction;
  const protocol::Move& move = active ? state_.active->move : state_.head();
  absl::StatusOr<Votes> votes = votes_.Collect(effect.instance, effect.transaction);
  if (votes.ok() &&
      (instance == state_.instances.end() || !instance->second.ranks[0].last.position)) {
    votes = absl::FailedPreconditionError("its ranks hold no proved version");
  }
  if (!votes.ok()) {
    strand_.Post([answer, status = votes.status()] { answer({status, {}}); });
    return;
  }
  const VersionId from = instance->second.ranks[0].last.position->version;
  const VersionId to = protocol::Target(move, effect.instance).version;
  work_.Post([this, answer, number = effect.transaction, from, to, votes = *std::move(votes)] {
    absl::StatusOr<std::shared_ptr<const TouchedByTensor>> declared = nullptr;
    if (const absl::StatusOr<LiveContent> content = OpenContent(number); content.ok()) {
      declared = content->touched;
    } else if (const auto difference = differences_.Get(from, to); difference.ok()) {
      declared = std::shared_ptr<const TouchedByTensor>(*difference, &(*difference)->touched);
    } else {
      declared = difference.status();
    }
    Judgement judged;
    judged.status = declared.status();
    if (declared.ok()) judged = judge_.JudgeUpdate(votes, **declared);
    strand_.Post([answer, judged = std::move(judged)] { answer(judged); });
  });
}

void Fleet::Audit(const RankProcess& process, uint64_t audit, const VersionName& version,
                  std::vector<CellSums> cells, bool last) {
  strand_.Post([this, process, audit, version, cells = std::move(cells), last] {
    const absl::Status status =
        votes_.AddAudit(process.first, process.second, audit, version, cells, last);
    if (!status.ok()) return SendVerdict(process, {audit, status}, version);
    if (!last || JudgeAudits(process.first.instance)) return;
    if (const std::optional<absl::Status> alone = votes_.JudgeAlone(process.first)) {
      SendVerdict(process, {audit, *alone}, version);
    }
  });
}

bool Fleet::JudgeAudits(const std::string& instance) {
  std::optional<VoteBook::Audits> taken = votes_.TakeAudits(instance);
  if (!taken) return false;
  work_.Post([this, instance, audits = *std::move(taken)] {
    const auto declared = [&]() -> absl::StatusOr<std::vector<Fingerprint>> {
      const std::shared_ptr<Store> store = live_.store();
      if (store == nullptr) return absl::UnavailableError("the journal is being reopened");
      ASSIGN_OR_RETURN(const VersionInfo info, store->version(audits.version.version));
      if (info.chain_digest != audits.version.chain_digest) {
        return absl::FailedPreconditionError(
            absl::StrCat(wstore::ToString(audits.version),
                         " is not this store's: its chain digest is ", ToHex(info.chain_digest)));
      }
      return store->TensorFingerprints(audits.version.version);
    };
    const absl::StatusOr<std::vector<Fingerprint>> sums = declared();
    std::vector<absl::Status> statuses(audits.names.size(), sums.status());
    if (sums.ok()) statuses = judge_.JudgeAudit(audits.votes, *sums);
    strand_.Post([this, instance, audits, statuses] {
      const bool is_right = std::all_of(statuses.begin(), statuses.end(),
                                        [](const absl::Status& status) { return status.ok(); });
      if (is_right) votes_.Remember(audits);
      for (uint32_t i = 0; i < audits.names.size(); ++i) {
        SendVerdict({{instance, i}, audits.incarnations[i]}, {audits.names[i], statuses[i]},
                    audits.version);
      }
    });
  });
  return true;
}

void Fleet::SendVerdict(const RankProcess& process, const AuditVerdict& verdict,
                        const VersionName& version) {
  if (const auto found = ranks_.find(process); found != ranks_.end()) {
    found->second.sink->Send(verdict);
  }
  // Whether the memory is right is known; or else the rank will ask again.
  if (!verdict.status.ok() && !absl::IsDataLoss(verdict.status)) return;
  for (auto& [number, verification] : verifications_) {
    const auto row = verification.rows.find(process);
    if (row == verification.rows.end() || row->second.status) continue;
    row->second.version = version.version;
    row->second.status = verdict.status;
    --verification.missing;
  }
  EndVerifications();
}

void Fleet::EndVerifications() {
  for (auto it = verifications_.begin(); it != verifications_.end();) {
    if (it->second.missing > 0) {
      ++it;
      continue;
    }
    std::vector<WorkerAudit> audits;
    for (const auto& [process, row] : it->second.rows) audits.push_back(row);
    it->second.done(std::move(audits));
    it = verifications_.erase(it);
  }
}

uint64_t Fleet::VerifyWorkers(std::function<void(std::vector<WorkerAudit>)> done) {
  const uint64_t number = next_verification_.fetch_add(1);
  const bool taken = strand_.Post([this, number, done] {
    Verification& verification = verifications_[number];
    verification.done = done;
    for (const auto& [process, connection] : ranks_) {
      verification.rows[process].rank = process.first;
      connection.sink->RequestAudit();
    }
    verification.missing = verification.rows.size();
    EndVerifications();
  });
  if (!taken) done({});
  return number;
}

void Fleet::EndVerification(uint64_t number) {
  strand_.Post([this, number] {
    const auto found = verifications_.find(number);
    if (found == verifications_.end()) return;
    found->second.missing = 0;
    EndVerifications();
  });
}

void Fleet::ListWorkers(std::function<void(std::vector<WorkerRow>)> done) {
  const bool taken = strand_.Post([this, done] {
    std::vector<WorkerRow> rows;
    for (const auto& [name, instance] : state_.instances) {
      for (uint32_t i = 0; i < instance.ranks.size(); ++i) {
        const protocol::RankRow& rank = instance.ranks[i];
        if (!rank.heard()) continue;
        WorkerRow row;
        row.rank = {name, i};
        row.ranks = static_cast<uint32_t>(instance.ranks.size());
        row.state = std::string(protocol::RankStateName(state_, row.rank, now()));
        row.position = row.state == "lost" ? protocol::MayServeWhenLost(state_, row.rank, now())
                                           : rank.last.position;
        row.error = rank.last.error;
        row.heard_micros_ago = now() - rank.heard_at;
        row.unfenceable = rank.last.unfenceable;
        const auto connection = ranks_.find({row.rank, rank.incarnation});
        if (connection != ranks_.end()) {
          row.peer = connection->second.peer;
          row.received = connection->second.received;
        }
        rows.push_back(std::move(row));
      }
    }
    done(std::move(rows));
  });
  if (!taken) done({});
}

void Fleet::ListTransactions(std::function<void(std::vector<TransactionRow>)> done) {
  const bool taken = strand_.Post([this, done] {
    std::vector<TransactionRow> rows;
    if (state_.active) {
      const protocol::ActiveTransaction& active = *state_.active;
      TransactionRow row;
      row.id = active.request.id;
      row.kind = active.request.kind;
      row.transaction = active.number;
      row.version = active.to.version;
      row.phase = active.phase;
      row.contributors = active.request.contributors;
      for (uint32_t i = 0; i < active.staged.size() && row.waiting_for.size() < 16; ++i) {
        if (!active.staged[i]) row.waiting_for.push_back(i);
      }
      row.age_micros = now() - active.begun_at;
      rows.push_back(std::move(row));
    }
    if (state_.pending_rollback) {
      TransactionRow row;
      row.id = state_.pending_rollback->id;
      row.kind = state_.pending_rollback->kind;
      row.version = state_.pending_rollback->to.version;
      rows.push_back(std::move(row));
    }
    done(std::move(rows));
  });
  if (!taken) done({});
}

}  // namespace wstore::service
