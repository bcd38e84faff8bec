// Publishing through a client: at once, and in steps.
#include "wstore/upload.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/client/connection.h"
#include "store/client/contributors.h"
#include "store/client/difference.h"
#include "store/client/sending.h"
#include "store/version/sums.h"
#include "wstore/chunk.h"
#include "wstore/client.h"

namespace wstore {
namespace {

using client::CheckContributors;
using client::EncodedSet;

class UploadImpl final : public Upload {
 public:
  UploadImpl(std::shared_ptr<client::Connection> connection,
             std::shared_ptr<const Manifest> manifest, const Digest& base_digest,
             PublishOptions options, client::Begun begun)
      : connection_(std::move(connection)),
        manifest_(std::move(manifest)),
        key_(base_digest),
        options_(std::move(options)),
        begun_(std::move(begun)),
        builder_(std::make_unique<PatchSetBuilder>(*manifest_)) {}

  TransactionNumber transaction() const override { return begun_.transaction; }
  VersionId version() const override { return begun_.version; }
  const HeadInfo& parent() const override { return begun_.parent; }
  const std::optional<Decision>& repeated() const override { return begun_.repeated; }

  absl::Status Add(absl::Span<const TensorPatch> patches) override {
    if (builder_ != nullptr) {
      has_patches_ = has_patches_ || !patches.empty();
      return builder_->Add(patches);
    }
    return absl::FailedPreconditionError("the content was sent; nothing can be added");
  }

  absl::Status SetChunks(std::vector<std::string> chunks, const Digest& digest) override {
    if (builder_ == nullptr || has_patches_) {
      return absl::FailedPreconditionError("there is content already; chunks are all of it");
    }
    EncodedSet set;
    for (const std::string& chunk : chunks) {
      ASSIGN_OR_RETURN(const ChunkView view, ChunkView::Parse(chunk, *manifest_));
      const ChunkHeader& header = view.header();
      if (header.transaction != begun_.transaction ||
          header.key.contributor != options_.contributor) {
        return absl::InvalidArgumentError(
            absl::StrCat("a chunk of transaction ", header.transaction.value(), ", contributor ",
                         header.key.contributor, "; this is transaction ",
                         begun_.transaction.value(), ", contributor ", options_.contributor));
      }
      set.elements += view.changed();
    }
    set.chunks = std::move(chunks);
    set.digest = digest;
    set_ = std::move(set);
    builder_.reset();
    return absl::OkStatus();
  }

  absl::Status Send(Deadline deadline, const DenseSource* old) override {
    if (builder_ != nullptr) RETURN_IF_ERROR(Encode(old));
    if (sent_ || begun_.repeated) return absl::OkStatus();
    RETURN_IF_ERROR(
        client::PutSet(*connection_, begun_.transaction, options_.contributor, &set_, deadline));
    sent_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<Decision> Commit(Deadline deadline) override {
    const std::string& id = options_.begin.transaction_id;
    const absl::Status sent = Send(deadline, nullptr);
    if (absl::IsNotFound(sent)) return Ended(client::Settle(*connection_, id, sent, deadline));
    RETURN_IF_ERROR(sent);
    if (begun_.repeated) return Repeated(deadline);
    return Ended(client::Commit(*connection_, id, begun_.transaction, options_.contributor,
                                client::DeclarationOf(set_), client::Content::kSent, {}, deadline));
  }

  absl::Status Abort(const std::string& reason, Deadline deadline) override {
    v1::AbortRequest request;
    request.set_id(options_.begin.transaction_id);
    request.set_reason(reason);
    v1::AbortResponse response;
    return client::Retry(*connection_, deadline, [&] {
      return client::Repeatable(
          connection_->Call(&v1::Store::Stub::Abort, request, &response, deadline));
    });
  }

 private:
  absl::Status Encode(const DenseSource* old) {
    if (builder_->needs_resolve()) {
      if (old == nullptr) {
        return absl::InvalidArgumentError(
            "patches of new values need the parent's bits; give them to Send, or give XOR values");
      }
      RETURN_IF_ERROR(builder_->Resolve(*old));
    }
    PublishInput input;
    input.manifest = manifest_.get();
    input.key = &key_;
    input.parent = old;
    input.patches = builder_.get();
    input.threads = 0;
    ASSIGN_OR_RETURN(set_, client::EncodeSet(input));
    builder_.reset();
    return absl::OkStatus();
  }

  // Of several contributors none has the whole content.
  absl::StatusOr<Decision> Repeated(Deadline deadline) const {
    if (options_.contributors > 1) return *begun_.repeated;
    ASSIGN_OR_RETURN(
        const VersionInfo version,
        client::GetVersion(*connection_, ToString(begun_.repeated->version), deadline));
    if (version.patch_digest == set_.digest) return *begun_.repeated;
    return absl::AlreadyExistsError(absl::StrCat(
        "the id '", options_.begin.transaction_id, "' was committed as ", ToString(version.version),
        " with other content (patch ", ToHex(version.patch_digest), ", this one is ",
        ToHex(set_.digest), "); use another id"));
  }

  static absl::StatusOr<Decision> Ended(absl::StatusOr<Decision> decision) {
    if (!absl::IsNotFound(decision.status())) return decision;
    return absl::UnavailableError(
        absl::StrCat("the publish has ended without a version, since the server was started again; "
                     "begin again under the same id: ",
                     decision.status().message()));
  }

  const std::shared_ptr<client::Connection> connection_;
  const std::shared_ptr<const Manifest> manifest_;
  const FingerprintKey key_;
  const PublishOptions options_;
  const client::Begun begun_;
  std::unique_ptr<PatchSetBuilder> builder_;  // until it is encoded
  bool has_patches_ = false;
  EncodedSet set_;
  bool sent_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Upload>> Client::Begin(const PublishOptions& options,
                                                      Deadline deadline) {
  RETURN_IF_ERROR(CheckContributors(options));
  PublishOptions filled = options;
  filled.begin.transaction_id = client::IdOrRandom(options.begin.transaction_id);
  ASSIGN_OR_RETURN(std::shared_ptr<const Manifest> manifest, ReadManifest(deadline));
  ASSIGN_OR_RETURN(const Digest base_digest, BaseDigest(deadline));
  ASSIGN_OR_RETURN(client::Begun begun,
                   client::Begin(*connection_, filled, actor_, std::nullopt, deadline));
  begun.parent.base_digest = base_digest;
  return std::make_unique<UploadImpl>(connection_, std::move(manifest), base_digest,
                                      std::move(filled), std::move(begun));
}

absl::StatusOr<Decision> Client::Publish(const DenseSource& old, const DenseSource& now,
                                         const PublishOptions& options, Deadline deadline,
                                         const ProgressFn& progress) {
  RETURN_IF_ERROR(CheckContributors(options));
  ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> manifest, ReadManifest(deadline));
  ASSIGN_OR_RETURN(const Digest base_digest, BaseDigest(deadline));
  ASSIGN_OR_RETURN(
      const VersionInfo parent,
      Version(options.begin.parent ? ToString(*options.begin.parent) : "head", deadline));
  const FingerprintKey key(base_digest);
  PublishInput input;
  input.manifest = manifest.get();
  input.key = &key;
  input.parent = &old;
  input.target = &now;
  input.threads = 0;
  input.progress = progress;
  ASSIGN_OR_RETURN(EncodedSet set, client::EncodeSet(input));
  if (options.before_sending) RETURN_IF_ERROR(options.before_sending());
  if (Total(set.target_sums) != parent.fingerprint + client::ChangeOf(set)) {
    return absl::DataLossError(absl::StrCat("the old bits do not have the recorded fingerprint of ",
                                            ToString(parent.version),
                                            ", or the new ones changed while they were compared"));
  }
  PublishOptions filled = options;
  filled.begin.transaction_id = client::IdOrRandom(options.begin.transaction_id);
  filled.begin.parent = parent.version;
  filled.begin.parent_chain_digest = parent.chain_digest;
  return client::PublishSet(*connection_, filled, actor_, parent.version, &set, deadline);
}

absl::StatusOr<Decision> Client::Publish(absl::Span<const TensorPatch> patches,
                                         const DenseSource* old, const PublishOptions& options,
                                         Deadline deadline) {
  RETURN_IF_ERROR(CheckContributors(options));
  ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> manifest, ReadManifest(deadline));
  ASSIGN_OR_RETURN(const Digest base_digest, BaseDigest(deadline));
  ASSIGN_OR_RETURN(
      const VersionInfo parent,
      Version(options.begin.parent ? ToString(*options.begin.parent) : "head", deadline));
  PatchSetBuilder builder(*manifest);
  RETURN_IF_ERROR(builder.Add(patches));
  if (builder.needs_resolve()) {
    if (old == nullptr) {
      return absl::InvalidArgumentError("patches of new values need the parent's bits");
    }
    RETURN_IF_ERROR(builder.Resolve(*old));
  }
  const FingerprintKey key(base_digest);
  PublishInput input;
  input.manifest = manifest.get();
  input.key = &key;
  input.parent = old;
  input.patches = &builder;
  input.threads = 0;
  ASSIGN_OR_RETURN(EncodedSet set, client::EncodeSet(input));
  PublishOptions filled = options;
  filled.begin.transaction_id = client::IdOrRandom(options.begin.transaction_id);
  filled.begin.parent = parent.version;
  return client::PublishSet(*connection_, filled, actor_, parent.version, &set, deadline);
}

}  // namespace wstore
