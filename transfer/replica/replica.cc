#include "wstore/replica.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "transfer/replica/host_backend.h"
#include "transfer/replica/replica_impl.h"

namespace wstore {

std::string ToString(const VersionName& version) {
  return absl::StrCat(ToString(version.version), " (", ToHex(version.chain_digest).substr(0, 12),
                      ")");
}

std::string_view ReplicaStateName(ReplicaState state) {
  switch (state) {
    case ReplicaState::kUnproven:
      return "unproven";
    case ReplicaState::kReady:
      return "ready";
    case ReplicaState::kStaging:
      return "staging";
    case ReplicaState::kStaged:
      return "staged";
    case ReplicaState::kApproved:
      return "approved";
    case ReplicaState::kApplying:
      return "applying";
    case ReplicaState::kApplied:
      return "applied";
    case ReplicaState::kSuspended:
      return "suspended";
    case ReplicaState::kPoisoned:
      return "poisoned";
  }
  return "unknown";
}

std::string_view ChangeReasonName(ChangeReason reason) {
  switch (reason) {
    case ChangeReason::kPublish:
      return "publish";
    case ChangeReason::kRollback:
      return "rollback";
    case ChangeReason::kCatchUp:
      return "catch-up";
    case ChangeReason::kRebuilt:
      return "rebuilt";
  }
  return "unknown";
}

absl::Status CheckBuffers(const Layout& layout, absl::Span<const LocalBuffer> buffers) {
  const std::vector<LayoutBuffer>& expected = layout.buffers();
  if (buffers.size() != expected.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the layout has ", expected.size(),
                                                   " buffers, but ", buffers.size(), " are given"));
  }
  std::vector<std::string> faults;
  std::vector<std::pair<uintptr_t, uint32_t>> by_address;
  for (uint32_t i = 0; i < buffers.size(); ++i) {
    const auto address = reinterpret_cast<uintptr_t>(buffers[i].data);
    const uint32_t alignment = StorageElementBytes(expected[i].dtype);
    if (buffers[i].size_bytes != layout.buffer_bytes(i)) {
      faults.push_back(absl::StrCat("'", expected[i].name, "' has ", buffers[i].size_bytes,
                                    " bytes, the layout wants ", layout.buffer_bytes(i)));
    } else if (address == 0 && buffers[i].size_bytes > 0) {
      faults.push_back(absl::StrCat("'", expected[i].name, "' is at no address"));
    } else if (address % alignment != 0) {
      faults.push_back(absl::StrCat("'", expected[i].name, "' is not aligned to its elements of ",
                                    alignment, " bytes"));
    }
    if (buffers[i].size_bytes > 0) by_address.emplace_back(address, i);
  }
  std::sort(by_address.begin(), by_address.end());
  for (size_t i = 1; i < by_address.size(); ++i) {
    const auto& [address, buffer] = by_address[i - 1];
    if (buffers[buffer].size_bytes > by_address[i].first - address) {
      faults.push_back(absl::StrCat("'", expected[buffer].name, "' and '",
                                    expected[by_address[i].second].name,
                                    "' overlap; tied tensors are placed once, as an alias group"));
    }
  }
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the buffers do not fit the layout: ", absl::StrJoin(faults, "; ")));
}

absl::StatusOr<std::unique_ptr<Replica>> Replica::Attach(const Manifest& manifest,
                                                         const FingerprintKey& key,
                                                         ReplicaPlacement placement,
                                                         absl::Span<const LocalBuffer> buffers,
                                                         ReplicaOptions options) {
  try {
    ASSIGN_OR_RETURN(std::shared_ptr<const Plan> plan,
                     Plan::Create(manifest, key, std::move(placement)));
    RETURN_IF_ERROR(CheckBuffers(plan->layout(), buffers));
    if (options.backend == nullptr) options.backend = MakeHostBackend(options.threads);
    auto impl = std::make_unique<Impl>(std::move(plan), std::move(options));
    RETURN_IF_ERROR(impl->Bind(buffers));
    return std::unique_ptr<Replica>(new Replica(std::move(impl)));
  } catch (const std::bad_alloc&) {
    // Without a message it needs no memory.
    return absl::Status(absl::StatusCode::kResourceExhausted, "");
  }
}

Replica::Replica(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Replica::~Replica() = default;

ReplicaStatus Replica::status() const { return impl_->status(); }
std::string Replica::detail() const { return impl_->detail(); }
std::optional<UpdateHeader> Replica::pending() const { return impl_->pending(); }
std::vector<VersionName> Replica::history() const { return impl_->history(); }
std::shared_ptr<const RegionMap> Replica::regions() const { return impl_->regions(); }

absl::StatusOr<AuditReport> Replica::Audit() {
  return impl_->Guard([&] { return impl_->Audit(); });
}
absl::Status Replica::Adopt(const AuditReport& proof, const VersionName& version, MoveNumber move) {
  return impl_->Guard([&] { return impl_->Adopt(proof, version, move); });
}
absl::Status Replica::ProveAlone(const VersionName& version, MoveNumber move,
                                 absl::Span<const Fingerprint> tensor_sums) {
  return impl_->Guard([&] { return impl_->ProveAlone(version, move, tensor_sums); });
}
absl::StatusOr<bool> Replica::BeginUpdate(const UpdateHeader& header) {
  return impl_->Guard([&] { return impl_->BeginUpdate(header); });
}
absl::Status Replica::StageChunk(std::string_view bytes) {
  return impl_->Guard([&] { return impl_->StageChunk(bytes); });
}
absl::Status Replica::StageDeviceChunks(absl::Span<const DeviceChunk> chunks) {
  return impl_->Guard([&] { return impl_->StageDeviceChunks(chunks); });
}
absl::StatusOr<ContributorContent> Replica::StageAll(const PatchSource& patches) {
  return impl_->Guard([&] { return impl_->StageAll(patches); });
}
absl::Status Replica::StageFromHistory(TransactionNumber transaction) {
  return impl_->Guard([&] { return impl_->StageFromHistory(transaction); });
}
absl::StatusOr<StagedReport> Replica::FinishStaging(const UpdateSummary& summary) {
  return impl_->Guard([&] { return impl_->FinishStaging(summary); });
}
absl::Status Replica::Approve(TransactionNumber transaction) {
  return impl_->Guard([&] { return impl_->Approve(transaction); });
}
absl::Status Replica::Apply(TransactionNumber transaction) {
  return impl_->Guard([&] { return impl_->Apply(transaction); });
}
absl::Status Replica::Commit(TransactionNumber transaction) {
  return impl_->Guard([&] { return impl_->Commit(transaction); });
}
absl::Status Replica::Abort(TransactionNumber transaction) {
  return impl_->Guard([&] { return impl_->Abort(transaction); });
}
absl::Status Replica::Invalidate(std::string reason) {
  return impl_->Guard([&] { return impl_->Invalidate(std::move(reason)); });
}
absl::Status Replica::Poison(std::string reason) {
  return impl_->Guard([&] { return impl_->Poison(std::move(reason)); });
}
absl::Status Replica::Suspend() {
  return impl_->Guard([&] { return impl_->Suspend(); });
}
absl::Status Replica::Resume(absl::Span<const LocalBuffer> buffers) {
  return impl_->Guard([&] { return impl_->Resume(buffers); });
}
absl::Status Replica::Relayout(ReplicaPlacement placement, absl::Span<const LocalBuffer> buffers) {
  return impl_->Guard([&] { return impl_->Relayout(std::move(placement), buffers); });
}
absl::Status Replica::Load(const DenseSource& source) {
  return impl_->Guard([&] { return impl_->Load(source); });
}

}  // namespace wstore
