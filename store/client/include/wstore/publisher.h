// wstore::Publisher: what a trainer publishes its weights with.
//
//   ASSIGN_OR_RETURN(auto publisher, wstore::Publisher::Start(client, {}, deadline));
//   ...                                                      // train
//   auto decision = publisher->Publish(weights, options, deadline);
//   if (wstore::ConflictHead(decision.status())) ...         // an operator has moved head:
//     publisher->Rebase(deadline);                           // the shadow goes there
//
// It keeps a shadow: the bits of one committed version, against which new weights are compared. The
// shadow moves only when a commit is known, and by Rebase. So whatever a call returns, the next one
// publishes the right difference, or is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "wstore/client.h"

namespace wstore {

// Tensors that lie in host memory. Does not own them.
class MemoryTensors final : public TensorSource {
 public:
  // `manifest` must outlive it.
  explicit MemoryTensors(const Manifest& manifest) : manifest_(manifest), data_(manifest.size()) {}

  //   kNotFound: no such tensor; near matches are shown
  //   kInvalidArgument: another number of bytes than the tensor has
  absl::Status Set(std::string_view name, absl::Span<const uint8_t> bytes);
  // kInvalidArgument: lists tensors that were not set.
  absl::Status CheckComplete() const;

  absl::Status Read(TensorIndex tensor, uint64_t offset_bytes,
                    absl::Span<uint8_t> out) const override;

 private:
  const Manifest& manifest_;
  std::vector<absl::Span<const uint8_t>> data_;
};

struct PublisherOptions {
  int threads = 0;  // that compare and encode; 0: one per processor
  // Refuses models that are larger.
  uint64_t max_shadow_bytes = uint64_t{1} << 40;
};

// One thread at a time. Memory: the model once, and during a publish the chunks of its patch set (3
// to 6 bytes for each changed element), also as long as its outcome is unknown.
class Publisher {
 public:
  // Reads head's bits from the server, and checks their fingerprint.
  //   kResourceExhausted: the model is larger than max_shadow_bytes, or memory is lacking
  //   kDataLoss: the bits do not have the recorded fingerprint
  static absl::StatusOr<std::unique_ptr<Publisher>> Start(std::shared_ptr<Client> client,
                                                          const PublisherOptions& options,
                                                          Deadline deadline);
  // Takes the bits of `version` from `bits`, such as a checkpoint on the trainer's own disk, and
  // checks them. Rebase then goes to head.
  static absl::StatusOr<std::unique_ptr<Publisher>> Start(std::shared_ptr<Client> client,
                                                          VersionId version,
                                                          const TensorSource& bits,
                                                          const PublisherOptions& options,
                                                          Deadline deadline);
  virtual ~Publisher() = default;

  virtual const Manifest& manifest() const = 0;
  // The version whose bits the shadow has, and the head move that it was published by.
  virtual const HeadInfo& parent() const = 0;
  // The shadow's bits of a tensor. Valid until the next Publish or Rebase.
  virtual absl::Span<const uint8_t> shadow(TensorIndex tensor) const = 0;
  // The id of a publish whose outcome is unknown. The next call asks for it first.
  virtual std::optional<std::string> in_doubt() const = 0;

  // Publishes these weights on the shadow's version: only if that is still head, by the same head
  // move. Everything that options.begin says of the parent is filled in. A candidate leaves the
  // shadow where it is.
  //   kFailedPrecondition: head has moved or is on hold; ConflictHead. The shadow is as before
  //   kDataLoss: the shadow's sum is not the version's: its memory was changed by somebody. Start
  //     anew
  //   kUnknown: asked for by the next call; until then the shadow stays
  //   others: see Client::Publish
  virtual absl::StatusOr<Decision> Publish(const TensorSource& weights,
                                           const PublishOptions& options, Deadline deadline) = 0;
  // Single elements, of either form.
  virtual absl::StatusOr<Decision> Publish(absl::Span<const TensorPatch> patches,
                                           const PublishOptions& options, Deadline deadline) = 0;

  // Brings the shadow to head, by the difference where the server has one, otherwise by reading all
  // of it. What the trainer's own weights are then is for the trainer to say: shadow() has head's.
  //   kDataLoss: as above; the shadow is as before
  virtual absl::StatusOr<ServedHead> Rebase(Deadline deadline) = 0;
};

}  // namespace wstore
