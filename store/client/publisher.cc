#include "wstore/publisher.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "store/client/connection.h"
#include "store/client/difference.h"
#include "store/client/doubt.h"
#include "store/client/sending.h"
#include "store/version/same_tensors.h"
#include "store/version/sums.h"

namespace wstore {
namespace {

using client::EncodedSet;

// The bits of all tensors in one piece of memory.
class Shadow final : public TensorSource {
 public:
  static absl::StatusOr<std::unique_ptr<Shadow>> Allocate(const Manifest& manifest,
                                                          uint64_t max_bytes) {
    auto shadow = std::unique_ptr<Shadow>(new Shadow(manifest));
    const uint64_t size_bytes = manifest.size_bytes();
    if (size_bytes <= max_bytes) {
      shadow->bytes_.reset(new (std::nothrow) uint8_t[std::max<uint64_t>(size_bytes, 1)]);
    }
    if (shadow->bytes_ != nullptr) return shadow;
    return absl::ResourceExhaustedError(
        absl::StrCat("the model has ", size_bytes, " bytes, of which a publisher keeps a copy; ",
                     size_bytes <= max_bytes ? "there is not so much memory"
                                             : absl::StrCat("the limit is ", max_bytes)));
  }

  uint8_t* At(TilePlace place) const {
    const uint64_t width = manifest_.tensor(place.tensor).element_bytes;
    return bytes_.get() + starts_[place.tensor] + uint64_t{place.tile} * kTileElements * width;
  }
  absl::Span<const uint8_t> Tensor(TensorIndex tensor) const {
    return {bytes_.get() + starts_[tensor], manifest_.tensor(tensor).size_bytes()};
  }
  absl::Status Read(TensorIndex tensor, uint64_t offset_bytes,
                    absl::Span<uint8_t> out) const override {
    if (!out.empty()) std::memcpy(out.data(), Tensor(tensor).data() + offset_bytes, out.size());
    return absl::OkStatus();
  }

  // Overwritten in part if it fails.
  absl::Status Fill(const DenseSource& dense, int threads) {
    return ParallelFor(manifest_.spans(), threads, [&](uint64_t span) -> absl::Status {
      ASSIGN_OR_RETURN(const std::unique_ptr<SpanTiles> tiles,
                       dense.OpenSpan(static_cast<uint32_t>(span)));
      for (const TilePlace place : manifest_.SpanPlaces(static_cast<uint32_t>(span))) {
        RETURN_IF_ERROR(tiles->ReadTile(place, At(place)));
      }
      return absl::OkStatus();
    });
  }

  // Goes over `set`, whose chunks were made or checked here.
  absl::Status Apply(const EncodedSet& set, int threads) {
    return ParallelFor(set.chunks.size(), threads, [&](uint64_t i) -> absl::Status {
      ASSIGN_OR_RETURN(const ChunkView chunk, ChunkView::Parse(set.chunks[i], manifest_));
      for (const EncodedTile& tile : chunk.tiles()) XorTile(tile, At(tile.place));
      return absl::OkStatus();
    });
  }

 private:
  explicit Shadow(const Manifest& manifest) : manifest_(manifest) {
    uint64_t start = 0;
    for (const Manifest::Tensor& tensor : manifest.tensors()) {
      starts_.push_back(start);
      start += tensor.size_bytes();
    }
  }

  const Manifest& manifest_;
  std::vector<uint64_t> starts_;
  std::unique_ptr<uint8_t[]> bytes_;
};

class PublisherImpl final : public Publisher {
 public:
  PublisherImpl(std::shared_ptr<Client> client, std::shared_ptr<const Manifest> manifest,
                const Digest& base_digest, std::unique_ptr<Shadow> shadow, int threads)
      : client_(std::move(client)),
        manifest_(std::move(manifest)),
        key_(base_digest),
        threads_(threads > 0 ? threads : DefaultParallelism()),
        shadow_(std::move(shadow)),
        dense_(MakeDense(*manifest_, *shadow_)) {
    parent_.base_digest = base_digest;
  }

  const Manifest& manifest() const override { return *manifest_; }
  const HeadInfo& parent() const override { return parent_; }
  absl::Span<const uint8_t> shadow(TensorIndex tensor) const override {
    return shadow_->Tensor(tensor);
  }
  std::optional<std::string> in_doubt() const override { return doubt_.id(); }

  // Takes bits that must be those of `version`; the move is known by head alone.
  absl::Status Load(const DenseSource& bits, const VersionInfo& version, MoveNumber move,
                    int threads) {
    is_whole_ = false;
    RETURN_IF_ERROR(shadow_->Fill(bits, threads));
    ASSIGN_OR_RETURN(const std::vector<Fingerprint> sums,
                     SumVersion(*manifest_, key_, *dense_, threads_, {}));
    if (Total(sums) != version.fingerprint) {
      return absl::DataLossError(absl::StrCat("the bits do not have the recorded fingerprint of ",
                                              ToString(version.version), ", ",
                                              ToHex(version.fingerprint)));
    }
    MoveTo(version, move);
    is_whole_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<Decision> Publish(const TensorSource& weights, const PublishOptions& options,
                                   Deadline deadline) override {
    RETURN_IF_ERROR(Prepare(deadline));
    const std::unique_ptr<DenseSource> target = MakeDense(*manifest_, weights);
    PublishInput input = Input();
    input.target = target.get();
    ASSIGN_OR_RETURN(EncodedSet set, client::EncodeSet(input));
    if (options.before_sending) RETURN_IF_ERROR(options.before_sending());
    if (Total(set.target_sums) != fingerprint_ + client::ChangeOf(set)) {
      return absl::DataLossError(absl::StrCat(
          "the shadow of ", ToString(parent_.version),
          " does not have that version's fingerprint: its memory was changed, or the weights "
          "changed while they were compared; start a new publisher"));
    }
    return Send(std::move(set), options, deadline);
  }

  absl::StatusOr<Decision> Publish(absl::Span<const TensorPatch> patches,
                                   const PublishOptions& options, Deadline deadline) override {
    RETURN_IF_ERROR(Prepare(deadline));
    PatchSetBuilder builder(*manifest_);
    RETURN_IF_ERROR(builder.Add(patches));
    if (builder.needs_resolve()) RETURN_IF_ERROR(builder.Resolve(*dense_));
    PublishInput input = Input();
    input.patches = &builder;
    ASSIGN_OR_RETURN(EncodedSet set, client::EncodeSet(input));
    return Send(std::move(set), options, deadline);
  }

  absl::StatusOr<ServedHead> Rebase(Deadline deadline) override {
    RETURN_IF_ERROR(doubt_.Settle(*client_->connection(), deadline));
    ASSIGN_OR_RETURN(const ServedHead head, client_->Head(deadline));
    ASSIGN_OR_RETURN(const VersionInfo to, client_->Version(ToString(head.head.version), deadline));
    const absl::Status gone =
        is_whole_ ? GoBy(to, head.head.move, deadline) : absl::NotFoundError("no shadow");
    // The server does not know the shadow's version: a publish that it lost, or another history.
    if (absl::IsNotFound(gone) || absl::IsFailedPrecondition(gone)) {
      ASSIGN_OR_RETURN(const std::unique_ptr<DenseSource> bits,
                       client_->ReadDense(to.version, deadline));
      RETURN_IF_ERROR(Load(*bits, to, head.head.move, Client::kDenseStreams));
      return head;
    }
    RETURN_IF_ERROR(gone);
    return head;
  }

 private:
  PublishInput Input() const {
    PublishInput input;
    input.manifest = manifest_.get();
    input.key = &key_;
    input.parent = dense_.get();
    input.threads = threads_;
    return input;
  }

  void MoveTo(const VersionInfo& version, MoveNumber move) {
    parent_.version = version.version;
    parent_.chain_digest = version.chain_digest;
    parent_.move = move;
    fingerprint_ = version.fingerprint;
  }

  absl::Status Prepare(Deadline deadline) {
    RETURN_IF_ERROR(doubt_.Settle(*client_->connection(), deadline));
    if (is_whole_) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "the shadow has no version's bits, since reading them failed; rebase");
  }

  absl::StatusOr<Decision> Send(EncodedSet set, PublishOptions options, Deadline deadline) {
    BeginOptions& begin = options.begin;
    begin.transaction_id = client::IdOrRandom(begin.transaction_id);
    client::BuildOn(parent_, &options);
    options.contributor = 0;
    options.contributors = 1;
    absl::StatusOr<Decision> decision = client::PublishSet(
        *client_->connection(), options, client_->actor(), parent_.version, &set, deadline);
    if (absl::IsUnknown(decision.status())) {
      // Moved once, and copied with the function.
      auto kept = std::make_shared<const EncodedSet>(std::move(set));
      doubt_.Raise(begin.transaction_id,
                   [this, kept, candidate = begin.candidate](const Decision& settled) {
                     return Follow(settled, *kept, candidate);
                   });
      return decision;
    }
    RETURN_IF_ERROR(decision.status());
    RETURN_IF_ERROR(Follow(*decision, set, begin.candidate));
    return decision;
  }

  // The shadow goes where a commit went. It cannot fail but for a broken invariant.
  absl::Status Follow(const Decision& decision, const EncodedSet& set, bool candidate) {
    if (candidate || set.elements == 0) return absl::OkStatus();
    is_whole_ = false;
    RETURN_IF_ERROR(shadow_->Apply(set, threads_));
    is_whole_ = true;
    parent_.version = decision.version;
    parent_.chain_digest = decision.chain_digest;
    parent_.move = decision.move;
    fingerprint_ += client::ChangeOf(set);
    return absl::OkStatus();
  }

  // By the difference. The shadow is as before if it fails.
  absl::Status GoBy(const VersionInfo& to, MoveNumber move, Deadline deadline) {
    if (to.version == parent_.version && to.chain_digest == parent_.chain_digest) {
      parent_.move = move;
      return absl::OkStatus();
    }
    VersionInfo from;
    from.version = parent_.version;
    from.chain_digest = parent_.chain_digest;
    ASSIGN_OR_RETURN(EncodedSet set, client::ReadDifference(*client_->connection(), *manifest_,
                                                            from, to, deadline));
    // What the shadow makes of it must be what the server says.
    const auto declared = *set.touched;
    const client::EncodedSource source(*manifest_, std::move(set));
    PublishInput input = Input();
    input.patches = &source;
    ASSIGN_OR_RETURN(const EncodedSet found, client::EncodeSet(input));
    if (*found.touched != declared || fingerprint_ + client::ChangeOf(found) != to.fingerprint) {
      return absl::DataLossError(absl::StrCat("the shadow of ", ToString(parent_.version),
                                              " does not lead to ", ToString(to.version),
                                              ": its memory was changed; start a new publisher"));
    }
    RETURN_IF_ERROR(shadow_->Apply(found, threads_));
    MoveTo(to, move);
    return absl::OkStatus();
  }

  const std::shared_ptr<Client> client_;
  const std::shared_ptr<const Manifest> manifest_;
  const FingerprintKey key_;
  const int threads_;
  const std::unique_ptr<Shadow> shadow_;
  const std::unique_ptr<DenseSource> dense_;  // the shadow
  bool is_whole_ = false;                     // the shadow has the bits of parent_
  HeadInfo parent_;
  Fingerprint fingerprint_;  // of parent_
  client::Doubt doubt_;
};

absl::StatusOr<std::unique_ptr<PublisherImpl>> MakePublisher(std::shared_ptr<Client> client,
                                                             const PublisherOptions& options,
                                                             Deadline deadline) {
  ASSIGN_OR_RETURN(std::shared_ptr<const Manifest> manifest, client->ReadManifest(deadline));
  ASSIGN_OR_RETURN(const Digest base_digest, client->BaseDigest(deadline));
  ASSIGN_OR_RETURN(std::unique_ptr<Shadow> shadow,
                   Shadow::Allocate(*manifest, options.max_shadow_bytes));
  return std::make_unique<PublisherImpl>(std::move(client), std::move(manifest), base_digest,
                                         std::move(shadow), options.threads);
}

}  // namespace

absl::Status MemoryTensors::Set(std::string_view name, absl::Span<const uint8_t> bytes) {
  const std::optional<TensorIndex> tensor = manifest_.Find(name);
  if (!tensor) {
    return absl::NotFoundError(absl::StrCat("no tensor '", ToAbsl(name), "'; the base has ",
                                            absl::StrJoin(manifest_.NearMatches(name, 3), ", ")));
  }
  const uint64_t size_bytes = manifest_.tensor(*tensor).size_bytes();
  if (bytes.size() != size_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("'", ToAbsl(name), "' has ", bytes.size(),
                                                   " bytes; the base has ", size_bytes));
  }
  data_[*tensor] = bytes;
  return absl::OkStatus();
}

absl::Status MemoryTensors::CheckComplete() const {
  std::vector<std::string> missing;
  for (TensorIndex i = 0; i < manifest_.size(); ++i) {
    const Manifest::Tensor& tensor = manifest_.tensor(i);
    if (data_[i].size() != tensor.size_bytes()) {
      missing.push_back(absl::StrCat("'", tensor.spec.name, "'"));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensors missing: ", Listed(missing)));
}

absl::Status MemoryTensors::Read(TensorIndex tensor, uint64_t offset_bytes,
                                 absl::Span<uint8_t> out) const {
  if (offset_bytes + out.size() > data_[tensor].size()) return CheckComplete();
  if (!out.empty()) std::memcpy(out.data(), data_[tensor].data() + offset_bytes, out.size());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Start(std::shared_ptr<Client> client,
                                                            const PublisherOptions& options,
                                                            Deadline deadline) {
  ASSIGN_OR_RETURN(std::unique_ptr<PublisherImpl> publisher,
                   MakePublisher(std::move(client), options, deadline));
  RETURN_IF_ERROR(publisher->Rebase(deadline).status());
  return publisher;
}

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Start(std::shared_ptr<Client> client,
                                                            VersionId version,
                                                            const TensorSource& bits,
                                                            const PublisherOptions& options,
                                                            Deadline deadline) {
  ASSIGN_OR_RETURN(const VersionInfo info, client->Version(ToString(version), deadline));
  ASSIGN_OR_RETURN(const ServedHead head, client->Head(deadline));
  ASSIGN_OR_RETURN(std::unique_ptr<PublisherImpl> publisher,
                   MakePublisher(std::move(client), options, deadline));
  // If it is not head, the move is of no use: a publish is refused until Rebase.
  const MoveNumber move = version == head.head.version ? head.head.move : MoveNumber();
  const std::unique_ptr<DenseSource> dense = MakeDense(publisher->manifest(), bits);
  RETURN_IF_ERROR(publisher->Load(*dense, info, move, DefaultParallelism()));
  return publisher;
}

}  // namespace wstore
