// What the memory holds: proved by an audit that the server judges; written anew where it is not
// what it should be.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/client/worker/worker_impl.h"
#include "store/client/worker/worker_messages.h"

namespace wstore {
namespace {

using protocol::Micros;

constexpr Micros kSendAgain = 2'000'000;
constexpr Micros kTryAgain = 1'000'000;
constexpr Micros kRebuildAgain = 5'000'000;
constexpr int64_t kCallMicros = 10'000'000;
// So long a rank that was started alone waits for its base to be judged, before it loads what the
// others hold.
constexpr Micros kVerdictPatience = 3'000'000;

}  // namespace

void Worker::Impl::StartProof(Source source, Micros after) {
  EndProof();
  proof_ = std::make_shared<Proof>();
  proof_->source = source;
  proof_->audit = next_audit_++;
  proof_->begin_at = now() + after;
  side_audit_.reset();
}

void Worker::Impl::EndProof() {
  if (proof_ == nullptr) return;
  proof_->cancellation.Cancel();
  if (!is_writing_) memory_job_ = nullptr;
  proof_.reset();
}

void Worker::Impl::DriveProof() {
  if (proof_ == nullptr || proof_->is_running) return;
  if (!proof_->claim) {
    // A write that was begun before comes to its end first.
    if (now() >= proof_->begin_at && !is_writing_) RunProof(proof_);
    return;
  }
  if (now() < proof_->send_at || !link_->is_open()) return;
  const protocol::Position& position = proof_->claim->position;
  if (ranks_ > 1 && proof_->source == Source::kBase &&
      now() >= proof_->summed_at + kVerdictPatience) {
    const auto mates = LookAtMates();
    const bool others_hold = std::any_of(mates.begin(), mates.end(),
                                         [](const auto& mate) { return mate && mate->holds; });
    if (others_hold) return StartProof(Source::kServer);
  }
  proof_->send_at = now() + kSendAgain;
  for (v1::FromRank& message : client::AuditMessages(
           proof_->audit, {position.version, position.chain_digest}, proof_->claim->report.cells)) {
    link_->Send(std::move(message));
  }
}

void Worker::Impl::RunProof(const std::shared_ptr<Proof>& proof) {
  proof->is_running = true;
  auto claim = std::make_shared<absl::StatusOr<Claim>>(absl::CancelledError(""));
  WriteMemory(
      [this, proof, claim, last = last_proved_] {
        *claim = MakeClaim(*proof, last);
        return claim->status();
      },
      [this, proof, claim](const absl::Status& status) {
        if (proof_ != proof) return;
        proof->is_running = false;
        if (status.ok()) {
          proof->claim = **claim;
          proof->summed_at = now();
          return;
        }
        Log(absl::StrCat("level=warning event=load error=\"", status.ToString(), "\""));
        const bool is_lost = absl::IsDataLoss(status) || absl::IsNotFound(status);
        const bool from_files = proof->source == Source::kBase;
        StartProof(from_files && is_lost ? Source::kServer : proof->source, kTryAgain);
      });
}

// In the memory thread; the engine stands still.
absl::StatusOr<Worker::Impl::Claim> Worker::Impl::MakeClaim(
    Proof& proof, const std::optional<protocol::Position>& last) {
  Claim claim;
  switch (proof.source) {
    case Source::kAudit: {
      if (last) {
        claim.position = *last;
        break;
      }
      ASSIGN_OR_RETURN(claim.position, BasePosition(proof.cancellation));
      break;
    }
    case Source::kBase: {
      ASSIGN_OR_RETURN(claim.position, BasePosition(proof.cancellation));
      RETURN_IF_ERROR(Prefixed(replica_->Load(*options_.base), "loading the base"));
      break;
    }
    case Source::kServer: {
      ASSIGN_OR_RETURN(claim.position, HeadPosition(proof.cancellation));
      const auto dense = client::MakeServedDense(
          *connection_, base_->manifest, {claim.position.version, claim.position.chain_digest},
          proof.cancellation);
      RETURN_IF_ERROR(Prefixed(replica_->Load(*dense), "loading from the server"));
      break;
    }
  }
  ASSIGN_OR_RETURN(claim.report, replica_->Audit());
  return claim;
}

absl::StatusOr<protocol::Position> Worker::Impl::BasePosition(
    client::Cancellation& cancellation) const {
  v1::Version version;
  v1::GetVersionRequest request;
  request.set_version(ToString(VersionId(0)));
  const absl::Status found = client::RepeatUntilSettled(cancellation, [&](bool*) {
    return connection_->Call(&v1::Store::Stub::GetVersion, request, &version,
                             Deadline::After(kCallMicros));
  });
  RETURN_IF_ERROR(found);
  ASSIGN_OR_RETURN(const VersionName name, client::FromProto(version.name()));
  return protocol::Position{MoveNumber(0), name.version, name.chain_digest};
}

absl::StatusOr<protocol::Position> Worker::Impl::HeadPosition(
    client::Cancellation& cancellation) const {
  v1::Status status;
  const absl::Status found = client::RepeatUntilSettled(cancellation, [&](bool*) {
    const absl::Status asked =
        connection_->Call(&v1::Store::Stub::GetStatus, {}, &status, Deadline::After(kCallMicros));
    const bool is_durable = status.head().durable_version() == status.head().version().version();
    if (!asked.ok() || is_durable) return asked;
    return absl::UnavailableError("head is not durable yet");
  });
  RETURN_IF_ERROR(found);
  ASSIGN_OR_RETURN(const VersionName name, client::FromProto(status.head().version()));
  return protocol::Position{MoveNumber(status.head().move()), name.version, name.chain_digest};
}

void Worker::Impl::Judged(const v1::Verdict& verdict) {
  absl::Status status;
  if (!verdict.ok()) {
    status = absl::Status(static_cast<absl::StatusCode>(verdict.code()), verdict.error());
    if (status.ok()) status = absl::UnknownError(verdict.error());
  }
  if (proof_ != nullptr && proof_->claim && proof_->audit == verdict.audit()) {
    return JudgedClaim(status);
  }
  if (!side_audit_ || side_audit_->audit != verdict.audit()) return;
  const VersionName version = side_audit_->version;
  side_audit_.reset();
  if (status.ok()) {
    Log(absl::StrCat("level=info event=audit version=", wstore::ToString(version.version),
                     " ok=true"));
    return;
  }
  const bool in_doubt = is_writing_ || memory_job_ != nullptr ||
                        (state_.update && state_.update->stage >= protocol::Stage::kPausing);
  if (!absl::IsDataLoss(status) || in_doubt || !state_.position) return AuditSoon(kTryAgain);
  replica_->Poison(std::string(status.message())).IgnoreError();
  Damaged(std::string(status.message()));
}

void Worker::Impl::JudgedClaim(const absl::Status& verdict) {
  const Claim claim = *proof_->claim;
  const Source source = proof_->source;
  absl::Status status = verdict;
  if (status.ok()) {
    status = replica_->Adopt(claim.report, {claim.position.version, claim.position.chain_digest},
                             claim.position.move);
  }
  if (status.ok()) {
    EndProof();
    last_proved_ = claim.position;
    Log(absl::StrCat("level=info event=proved position=\"", protocol::ToString(claim.position),
                     "\""));
    Feed(protocol::Proved{claim.position, replica_->status().layout_generation});
    return;
  }
  Log(absl::StrCat("level=warning event=proof error=\"", status.ToString(), "\""));
  if (!absl::IsDataLoss(status)) {
    // Not judged: the server was not ready, or memory was changed meanwhile.
    if (absl::IsAborted(status)) return StartProof(source, kTryAgain);
    proof_->send_at = now() + kTryAgain;
    return;
  }
  state_.error = std::string(status.message());
  if (source == Source::kAudit) {
    if (options_.rebuilds) return StartProof(Rebuilding());
    return EndProof();
  }
  StartProof(Source::kServer, source == Source::kServer ? kRebuildAgain : 0);
}

void Worker::Impl::AuditSoon(Micros after) { audit_at_ = std::min(audit_at_, now() + after); }

// Of a whole memory that is proved, while the engine serves.
void Worker::Impl::AuditBeside() {
  audit_at_ = options_.audit_interval_micros > 0 ? now() + options_.audit_interval_micros
                                                 : protocol::kNever;
  if (!state_.position || proof_ != nullptr || is_auditing_) return;
  if (update_ != nullptr) return AuditSoon(kTryAgain);  // it comes first
  is_auditing_ = true;
  const VersionName version{state_.position->version, state_.position->chain_digest};
  stage_->Post([this, version] {
    const absl::StatusOr<AuditReport> report = replica_->Audit();
    const bool is_same = replica_->status().version == version;
    Post([this, version, report, is_same] {
      is_auditing_ = false;
      if (!report.ok() || !is_same) return AuditSoon(kTryAgain);
      side_audit_ = SideAudit{next_audit_++, version};
      for (v1::FromRank& message :
           client::AuditMessages(side_audit_->audit, version, report->cells)) {
        link_->Send(std::move(message));
      }
    });
  });
}

}  // namespace wstore
