#include "wstore/cuda_publisher.h"

#include <algorithm>
#include <future>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "store/client/connection.h"
#include "store/client/contributors.h"
#include "store/client/cuda/device_shadow.h"
#include "store/client/difference.h"
#include "store/client/doubt.h"
#include "store/client/sending.h"
#include "store/version/sums.h"
#include "wstore/cuda_transfer.h"

namespace wstore {
namespace {

using client::DeviceShadow;
using client::EncodedSet;
using SetPart = TransferLead::SetPart;

constexpr int64_t kSendMicros = 5'000'000;
constexpr auto kPause = std::chrono::milliseconds(20);
constexpr uint64_t kPatchShare = 16;
constexpr uint64_t kMinPatchBytes = 16 << 20;
// Of the copies for the server. A GPU does its copies to the host one behind the other, and the
// small ones of ranks that stage meanwhile must not wait for all of these.
constexpr uint64_t kCopyBytes = 2 << 20;

// The first part is what ranks have to wait for, so that of much it shall not be too long.
constexpr uint32_t kLeastParts = 4;
constexpr uint64_t kBytesPerPart = 10'000'000'000;

uint32_t PartsFor(uint64_t size_bytes) {
  return static_cast<uint32_t>(
      std::min<uint64_t>(kLeastParts + size_bytes / kBytesPerPart, kMaxDiffParts));
}

int64_t Now() { return SystemClock().NowMonotonicMicros(); }

class CudaPublisherImpl final : public CudaPublisher {
 public:
  CudaPublisherImpl(std::shared_ptr<Client> client, std::shared_ptr<const Manifest> manifest,
                    const Digest& base_digest, const CudaPublisherOptions& options, int device)
      : client_(std::move(client)),
        manifest_(std::move(manifest)),
        key_(base_digest),
        options_(options),
        device_(device) {
    parent_.base_digest = base_digest;
  }
  ~CudaPublisherImpl() override {
    if (put_.valid()) put_.wait();
  }

  absl::Status Prepare(const ConnectOptions& connect) {
    ASSIGN_OR_RETURN(shadow_, DeviceShadow::Make(*manifest_, key_, options_.share, options_.memory,
                                                 options_.stream));
    if (options_.patch_bytes == 0) {
      options_.patch_bytes = std::max(shadow_->size_bytes() / kPatchShare, kMinPatchBytes);
    }
    CudaDifferOptions differ;
    differ.stream = options_.stream;
    differ.memory = options_.memory;
    differ.patch_bytes = options_.patch_bytes;
    differ.contributor = static_cast<uint16_t>(options_.contributor);
    differ.parts = options_.parts > 0 ? options_.parts : PartsFor(shadow_->size_bytes());
    differ.share = options_.share;
    ASSIGN_OR_RETURN(differ_, CudaDiffer::Create(*manifest_, key_, differ));
    ASSIGN_OR_RETURN(copies_, cuda::PinnedBuffer<char>::Create(options_.patch_bytes));
    ASSIGN_OR_RETURN(OwnedCudaStream stream, OwnedCudaStream::Create());
    copying_.emplace(std::move(stream));
    ASSIGN_OR_RETURN(put_connection_, client::Connection::Open(connect));
    if (!options_.leads) return absl::OkStatus();
    ASSIGN_OR_RETURN(std::shared_ptr<TransferPort> port, MakeCudaTransferPort(options_.memory));
    TransferLeadOptions lead = options_.lead;
    lead.contributor = options_.contributor;
    lead.on_thread = [device = device_, also = lead.on_thread] {
      UseCudaDevice(device).IgnoreError();
      if (also) also();
    };
    ASSIGN_OR_RETURN(lead_, TransferLead::Start(connect, std::move(port), lead));
    return absl::OkStatus();
  }

  // Takes bits that must be those of `version`; the move is known by head alone. local: null: from
  // the server.
  absl::Status Load(const TensorSource* local, const VersionInfo& version, MoveNumber move,
                    Deadline deadline) {
    is_whole_ = false;
    const std::unique_ptr<DenseSource> bits =
        local != nullptr ? MakeDense(*manifest_, *local)
                         : client::MakeServedDense(*client_->connection(), manifest_, version,
                                                   deadline, shadow_->held());
    RETURN_IF_ERROR(
        shadow_->Fill(*bits, local != nullptr ? DefaultParallelism() : Client::kDenseStreams));
    return Proved(version, move, std::nullopt);
  }

  const Manifest& manifest() const override { return *manifest_; }
  const HeadInfo& parent() const override { return parent_; }
  absl::Span<const void* const> shadow() const override { return shadow_->tensors(); }
  Fingerprint fingerprint() const override { return fingerprint_; }
  const TransferLead* lead() const override { return lead_.get(); }
  const CudaPublishTimes& times() const override { return times_; }
  std::optional<std::string> in_doubt() const override { return doubt_.id(); }

  absl::StatusOr<Decision> Publish(absl::Span<const void* const> weights,
                                   const PublishOptions& given, Deadline deadline) override {
    RETURN_IF_ERROR(doubt_.Settle(*client_->connection(), deadline));
    if (!is_whole_) {
      return absl::FailedPreconditionError(
          "the shadow has no version's bits, since reading them failed; rebase");
    }
    PublishOptions options = given;
    client::BuildOn(parent_, &options);
    RETURN_IF_ERROR(client::Contribute({options_.contributor, options_.contributors}, &options));
    options.begin.transaction_id = client::IdOrRandom(options.begin.transaction_id);
    options.carried = lead_ != nullptr && lead_->status().epoch != 0;
    for (;;) {
      absl::StatusOr<Decision> decision = PublishOnce(weights, options, deadline);
      // Not found: the server was started again before it had all.
      if (!absl::IsNotFound(decision.status())) return decision;
      if (deadline.has_passed()) return absl::DeadlineExceededError(decision.status().message());
      std::this_thread::sleep_for(kPause);
    }
  }

  absl::Status AwaitDurable(Deadline deadline) override {
    const VersionId version = parent_.version;
    std::optional<VersionId> lost_to;
    RETURN_IF_ERROR(client_->Follow(
        [&](const ServedHead& head) {
          if (head.durable == head.head.version && head.head.chain_digest != parent_.chain_digest) {
            lost_to = head.head.version;
          }
          return head.durable != version && !lost_to;
        },
        deadline));
    const absl::Status put = put_.valid() ? put_.get() : absl::OkStatus();
    if (!lost_to) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(ToString(version), " is not head, but ", ToString(*lost_to),
                     "; its content: ", put.ok() ? "is in the store" : put.ToString()));
  }

  absl::StatusOr<ServedHead> Rebase(Deadline deadline) override {
    RETURN_IF_ERROR(doubt_.Settle(*client_->connection(), deadline));
    ASSIGN_OR_RETURN(const ServedHead head, client_->Head(deadline));
    ASSIGN_OR_RETURN(const VersionInfo to, client_->Version(ToString(head.head.version), deadline));
    const absl::Status gone =
        is_whole_ ? GoBy(to, head.head.move, deadline) : absl::NotFoundError("no shadow");
    if (gone.ok()) return head;
    // The server does not know the shadow's version; or the shadow is no version's any more.
    RETURN_IF_ERROR(Load(nullptr, to, head.head.move, deadline));
    return head;
  }

 private:
  absl::StatusOr<Decision> PublishOnce(absl::Span<const void* const> weights,
                                       const PublishOptions& options, Deadline deadline) {
    const int64_t start = Now();
    times_ = {};
    if (put_.valid()) put_.get().IgnoreError();  // what it came to, the server knows
    absl::StatusOr<Decision> decision = PublishParts(weights, options, start, deadline);
    // The weights are the caller's again.
    if (!decision.ok()) cuda::Synchronize(options_.stream).IgnoreError();
    return decision;
  }

  absl::StatusOr<Decision> PublishParts(absl::Span<const void* const> weights,
                                        const PublishOptions& options, int64_t start,
                                        Deadline deadline) {
    const client::Connection& connection = *client_->connection();
    const std::string& id = options.begin.transaction_id;
    // The number is needed where chunks are sealed, not where weights are compared.
    std::future<absl::StatusOr<client::Begun>> beginning = std::async(std::launch::async, [&] {
      return client::Begin(connection, options, client_->actor(), std::nullopt, deadline);
    });
    absl::Status ready = differ_->Start(shadow_->tensors(), weights);
    const absl::StatusOr<client::Begun> begun = beginning.get();
    times_.begin = Now() - start;
    const bool is_repeated =
        absl::IsAlreadyExists(begun.status()) || (begun.ok() && begun->repeated);
    if (!begun.ok() && !is_repeated) return begun.status();
    const TransactionNumber transaction = is_repeated ? TransactionNumber() : begun->transaction;
    if (ready.ok()) ready = differ_->Seal(transaction);
    if (is_repeated) {
      RETURN_IF_ERROR(ready);
      ASSIGN_OR_RETURN(const CudaDiff diff, Proven(differ_->Finish()));
      if (options.contributors > 1) {
        RETURN_IF_ERROR(begun.status());
        return client::RepeatedPart(*begun, id, parent_, diff.changed);
      }
      return client::RepeatedDecision(connection, id, parent_.version, *diff.digest, deadline);
    }
    if (ready.ok()) ready = client::CheckSameParent(*begun, parent_);
    absl::StatusOr<CudaDiff> diff =
        ready.ok() ? SendParts(options, transaction, start, deadline) : ready;
    if (!diff.ok()) {
      client::TakeBack(connection, id, diff.status(), deadline);
      return diff.status();
    }
    StartPut(*diff, id, transaction, deadline);
    const int64_t sent = Now();
    absl::StatusOr<Decision> decision = Commit(*std::move(diff), options, transaction, deadline);
    times_.commit = Now() - sent;
    times_.all = Now() - start;
    return decision;
  }

  // Takes the parts of a sealed pass as they are finished, and sends them to the ranks.
  absl::StatusOr<CudaDiff> SendParts(const PublishOptions& options, TransactionNumber transaction,
                                     int64_t start, Deadline deadline) {
    std::vector<CudaChunk> held;  // until all have been found
    for (bool is_last = false; !is_last;) {
      absl::StatusOr<CudaDiffPart> part = differ_->NextPart();
      if (times_.first == 0) times_.first = Now() - start;
      absl::Status ready = part.status();
      if (ready.ok()) {
        is_last = part->is_last;
        held.insert(held.end(), part->chunks.begin(), part->chunks.end());
        if (options.before_sending && !is_last) continue;
        if (options.before_sending) ready = options.before_sending();
      }
      if (!ready.ok()) {
        // Until then the group may read the chunks.
        if (options.carried) Send({}, transaction, SetPart::kLast, deadline);
        return ready;
      }
      if (is_last) times_.diff = Now() - start;
      if (options.carried) {
        Send(held, transaction, is_last ? SetPart::kLast : SetPart::kMore, deadline);
      }
      held.clear();
    }
    const int64_t sent = Now();
    times_.send = sent - start - times_.diff;
    absl::StatusOr<CudaDiff> diff = Proven(differ_->Finish());
    times_.digest = Now() - sent;
    return diff;
  }

  // The differ's sums show a shadow that is not the parent's.
  absl::StatusOr<CudaDiff> Proven(absl::StatusOr<CudaDiff> diff) const {
    RETURN_IF_ERROR(diff.status());
    Fingerprint before;
    for (const TouchedSums& sums : diff->sums) before += sums.before;
    if (before == fingerprint_) return diff;
    return absl::DataLossError(absl::StrCat(
        "the shadow of ", ToString(parent_.version),
        " does not have that version's fingerprint: its memory was changed, or the weights "
        "changed while they were compared; start a new publisher"));
  }

  // Ranks that share this memory read it until the transaction has ended. Once a part has failed,
  // the lead sends nothing more of the set.
  void Send(const std::vector<CudaChunk>& part, TransactionNumber transaction, SetPart which,
            Deadline deadline) {
    std::vector<DeviceChunk> chunks;
    chunks.reserve(part.size());
    for (const CudaChunk& chunk : part) {
      chunks.push_back({chunk.data, chunk.size_bytes, TensorsOfSpan(*manifest_, chunk.key.span)});
    }
    times_.sent = lead_->SendPart(transaction, chunks, which,
                                  Deadline::After(std::min(kSendMicros, deadline.left_micros())));
  }

  // Copies the chunks to the host and from there to the server, beside all that follows.
  void StartPut(const CudaDiff& diff, const std::string& id, TransactionNumber transaction,
                Deadline deadline) {
    put_ = std::async(std::launch::async, [this, chunks = diff.chunks, id, transaction, deadline] {
      const absl::Status status = Put(chunks, transaction, deadline);
      // It cannot be decided without its content. What is not found has ended: another contributor
      // may have begun anew under the same id.
      if (!status.ok() && !absl::IsNotFound(status))
        client::TakeBack(*client_->connection(), id, status, deadline);
      return status;
    });
  }

  absl::Status Put(const std::vector<CudaChunk>& chunks, TransactionNumber transaction,
                   Deadline deadline) {
    RETURN_IF_ERROR(UseCudaDevice(device_));
    std::vector<std::string_view> views;
    uint64_t used = 0;
    uint64_t under_way = 0;
    for (const CudaChunk& chunk : chunks) {
      if (under_way >= kCopyBytes) {
        RETURN_IF_ERROR(copying_->Synchronize());
        under_way = 0;
      }
      char* const to = copies_.get() + used;
      RETURN_IF_ERROR(cuda::CopyAsync(reinterpret_cast<const char*>(chunk.data), to,
                                      chunk.size_bytes, copying_->get()));
      views.emplace_back(to, chunk.size_bytes);
      used += chunk.size_bytes;
      under_way += chunk.size_bytes;
    }
    RETURN_IF_ERROR(copying_->Synchronize());
    return client::PutChunks(*put_connection_, transaction, options_.contributor, views, deadline);
  }

  absl::StatusOr<Decision> Commit(CudaDiff diff, const PublishOptions& options,
                                  TransactionNumber transaction, Deadline deadline) {
    const std::string& id = options.begin.transaction_id;
    const client::Declaration declared{diff.chunks.size(), diff.changed, *diff.digest,
                                       std::move(diff.touched)};
    Fingerprint change;
    for (const TensorSums& touched : *declared.touched) change += touched.sums.change();
    const auto content = diff.chunks.empty() ? client::Content::kSent : client::Content::kFollows;
    absl::StatusOr<Decision> decision =
        client::Commit(*client_->connection(), id, transaction, options_.contributor, declared,
                       content, {}, deadline);
    if (absl::IsUnknown(decision.status())) {
      // The differ keeps the changes.
      doubt_.Raise(id,
                   [this, change, candidate = options.begin.candidate](const Decision& settled) {
                     return FollowDecision(settled, change, candidate);
                   });
      return decision;
    }
    RETURN_IF_ERROR(decision.status());
    RETURN_IF_ERROR(FollowDecision(*decision, change, options.begin.candidate));
    return decision;
  }

  // The shadow goes where a commit went.
  absl::Status FollowDecision(const Decision& decision, const Fingerprint& change, bool candidate) {
    if (candidate || decision.outcome == CommitResult::Outcome::kUnchanged) {
      return absl::OkStatus();
    }
    is_whole_ = false;
    RETURN_IF_ERROR(differ_->MoveShadow());
    is_whole_ = true;
    parent_.version = decision.version;
    parent_.chain_digest = decision.chain_digest;
    parent_.move = decision.move;
    fingerprint_ += change;
    return absl::OkStatus();
  }

  // expected: of a share, which has no recorded fingerprint; nothing: not known.
  absl::Status Proved(const VersionInfo& version, MoveNumber move,
                      std::optional<Fingerprint> expected) {
    ASSIGN_OR_RETURN(const Fingerprint sum, shadow_->Sum());
    if (shadow_->size_bytes() == manifest_->size_bytes()) expected = version.fingerprint;
    if (sum != expected.value_or(sum)) {
      return absl::DataLossError(absl::StrCat("the bits do not have the fingerprint of ",
                                              ToString(version.version), ", ", ToHex(*expected)));
    }
    parent_.version = version.version;
    parent_.chain_digest = version.chain_digest;
    parent_.move = move;
    fingerprint_ = sum;
    is_whole_ = true;
    return absl::OkStatus();
  }

  absl::Status GoBy(const VersionInfo& to, MoveNumber move, Deadline deadline) {
    if (to.version == parent_.version && to.chain_digest == parent_.chain_digest) {
      parent_.move = move;
      return absl::OkStatus();
    }
    VersionInfo from;
    from.version = parent_.version;
    from.chain_digest = parent_.chain_digest;
    ASSIGN_OR_RETURN(const EncodedSet set, client::ReadDifference(*client_->connection(),
                                                                  *manifest_, from, to, deadline));
    is_whole_ = false;
    ASSIGN_OR_RETURN(const Fingerprint change, shadow_->Apply(set));
    return Proved(to, move, fingerprint_ + change);
  }

  const std::shared_ptr<Client> client_;
  const std::shared_ptr<const Manifest> manifest_;
  const FingerprintKey key_;
  CudaPublisherOptions options_;
  const int device_;
  std::unique_ptr<DeviceShadow> shadow_;
  std::unique_ptr<CudaDiffer> differ_;
  std::unique_ptr<TransferLead> lead_;
  bool is_whole_ = false;  // the shadow has the bits of parent_
  HeadInfo parent_;
  Fingerprint fingerprint_;  // of parent_
  CudaPublishTimes times_;
  client::Doubt doubt_;

  // The chunks of the latest publish on their way to the server. By a connection of their own: the
  // declaration, for which ranks wait, shall not share one with them.
  std::shared_ptr<client::Connection> put_connection_;
  std::optional<OwnedCudaStream> copying_;
  cuda::PinnedBuffer<char> copies_;
  std::future<absl::Status> put_;
};

absl::Status CheckContributor(const CudaPublisherOptions& options) {
  if (options.lead.contributor != 0 && options.lead.contributor != options.contributor) {
    return absl::InvalidArgumentError(
        absl::StrCat("contributor ", options.contributor, " leads as ", options.lead.contributor));
  }
  PublishOptions publish;
  publish.begin.transaction_id = "any";
  return client::Contribute({options.contributor, options.contributors}, &publish);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaPublisher>> CudaPublisher::Start(
    std::shared_ptr<Client> client, const ConnectOptions& connect,
    const CudaPublisherOptions& options, Deadline deadline, const TensorSource* local) {
  if (options.memory == nullptr) return absl::InvalidArgumentError("no memory resource was given");
  RETURN_IF_ERROR(CheckContributor(options));
  int device = 0;
  RETURN_IF_ERROR(WSTORE_CUDA(cudaGetDevice(&device)));
  ASSIGN_OR_RETURN(std::shared_ptr<const Manifest> manifest, client->ReadManifest(deadline));
  ASSIGN_OR_RETURN(const Digest base_digest, client->BaseDigest(deadline));
  ASSIGN_OR_RETURN(const ServedHead head, client->Head(deadline));
  ASSIGN_OR_RETURN(const VersionInfo version,
                   client->Version(ToString(head.head.version), deadline));
  auto publisher =
      std::make_unique<CudaPublisherImpl>(client, manifest, base_digest, options, device);
  RETURN_IF_ERROR(publisher->Prepare(connect));
  RETURN_IF_ERROR(publisher->Load(local, version, head.head.move, deadline));
  return publisher;
}

}  // namespace wstore
