// The content of a publish: from contributors' chunks to a staged payload and a record.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "store/journal_patch.h"
#include "store/live_pending.h"
#include "store/records.h"
#include "store/version/chain.h"
#include "store/version/publish.h"
#include "wstore/patch_digest.h"

namespace wstore {
namespace {

constexpr size_t kMaxListed = 20;
// Of larger sets, listing what they touch is not worth a pass over them.
constexpr uint64_t kMostListedBytes = 4 << 20;

// Tensors by name, not all of very many.
std::string NamesOf(const Manifest& manifest, const std::set<TensorIndex>& tensors) {
  std::vector<std::string> names;
  for (const TensorIndex tensor : tensors) {
    if (names.size() == kMaxListed) {
      names.push_back(absl::StrCat("and ", tensors.size() - kMaxListed, " more"));
      break;
    }
    names.push_back(absl::StrCat("'", manifest.tensor(tensor).spec.name, "'"));
  }
  return absl::StrJoin(names, ", ");
}

// The digest of a patch set, on all cores.
absl::StatusOr<Digest> DigestOf(const Manifest& manifest, const PatchSource& patches, int threads) {
  struct Tile {
    TilePlace place;
    TileForm form;
    uint32_t changed;
    Digest digest;
  };
  const uint64_t window = 2 * static_cast<uint64_t>(threads);
  std::vector<std::vector<Tile>> waiting(window);
  PatchDigester digester(manifest);
  const auto work = [&](uint64_t span) {
    return patches.ReadSpan(static_cast<uint32_t>(span), [&](const ChunkView& chunk) {
      for (const EncodedTile& tile : chunk.tiles()) {
        waiting[span % window].push_back({tile.place, tile.form, tile.changed, TileDigest(tile)});
      }
      return absl::OkStatus();
    });
  };
  const auto deliver = [&](uint64_t span) {
    for (const Tile& tile : std::exchange(waiting[span % window], {})) {
      digester.Add(tile.place, tile.form, tile.changed, tile.digest);
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ParallelOrdered(manifest.spans(), threads, window, work, deliver));
  return digester.Finish();
}

// What contributors sent, as one set. `content` must outlive it.
class JoinedContent {
 public:
  JoinedContent(const Manifest& manifest, const StagedContent& content) {
    for (uint32_t i = 0; i < content.contributors(); ++i) parts_.push_back(content.Patches(i));
    if (parts_.size() == 1) return;
    std::vector<const PatchSource*> parts;
    for (const auto& part : parts_) parts.push_back(part.get());
    composed_ = MakeComposed(manifest, std::move(parts));
  }

  const PatchSource& patches() const { return composed_ != nullptr ? *composed_ : *parts_[0]; }
  const PatchSource& part(size_t contributor) const { return *parts_[contributor]; }

 private:
  std::vector<std::unique_ptr<PatchSource>> parts_;
  std::unique_ptr<PatchSource> composed_;
};

Fingerprint FingerprintAfter(const VersionInfo& parent, const TouchedByTensor& touched) {
  Fingerprint total = parent.fingerprint;
  for (const auto& [tensor, sums] : touched) total += sums.change();
  return total;
}

// What the contributors declare, added up. Of one, which is the rule, it is not copied.
std::shared_ptr<const TouchedByTensor> DeclaredSums(const StagedContent& content) {
  if (const auto only = content.summary(0); content.contributors() == 1 && only->sums) {
    return {only, &*only->sums};
  }
  std::map<TensorIndex, TouchedSums> added;
  for (uint32_t i = 0; i < content.contributors(); ++i) {
    const std::shared_ptr<const ContributorSummary> summary = content.summary(i);
    if (!summary->sums) continue;
    for (const auto& [tensor, sums] : *summary->sums) added[tensor] += sums;
  }
  auto declared = std::make_shared<TouchedByTensor>();
  for (const auto& [tensor, sums] : added) declared->push_back({tensor, sums});
  return declared;
}

Digest ChainDigestOf(const VersionInfo& parent, const LivePublish& publish,
                     const LiveContent& content) {
  return VersionChainDigest(parent.chain_digest, content.patch_digest,
                            FingerprintAfter(parent, *content.touched), publish.message,
                            publish.meta);
}

absl::Status DigestError(const std::string& whose, const Digest& declared, const Digest& found) {
  return absl::InvalidArgumentError(
      absl::StrCat("the digest of ", whose, " is ", ToHex(found), ", but ", ToHex(declared),
                   " was declared; something was lost or changed on the way, so send it again"));
}

}  // namespace

absl::Status LiveStore::BeginContent(TransactionNumber transaction, const LivePublish& publish) {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  RETURN_IF_ERROR(store->version(publish.parent).status());
  auto pending = std::make_shared<Pending>();
  pending->publish = publish;
  pending->content = std::make_shared<StagedContent>(manifest_, directory_, transaction,
                                                     publish.contributors, options_.content);
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.try_emplace(transaction, std::move(pending));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<LiveStore::Pending>> LiveStore::FindPending(
    TransactionNumber transaction) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pending_.find(transaction);
  if (found != pending_.end()) return found->second;
  return absl::NotFoundError(
      absl::StrCat("transaction ", transaction.value(), " is not open, or has ended"));
}

absl::StatusOr<std::shared_ptr<StagedContent>> LiveStore::FindContent(
    TransactionNumber transaction) const {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  ASSIGN_OR_RETURN(const std::shared_ptr<Pending> pending, FindPending(transaction));
  return pending->content;
}

void LiveStore::DiscardContent(TransactionNumber transaction) {
  const absl::StatusOr<std::shared_ptr<StoreImpl>> store = OpenedStore();
  if (!store.ok()) return;  // reopening discards all
  std::shared_ptr<Pending> pending;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = pending_.find(transaction);
    if (found == pending_.end()) return;
    pending = std::move(found->second);
    pending_.erase(found);
  }
  pending->content->Discard();
}

absl::StatusOr<LiveContent> LiveStore::CompleteContent(TransactionNumber transaction) {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  ASSIGN_OR_RETURN(const std::shared_ptr<Pending> pending, FindPending(transaction));
  absl::Status status = Encode(*store, *pending);
  if (status.ok() && pending->content->is_discarded()) {
    status = absl::AbortedError(absl::StrCat("transaction ", transaction.value(), " was aborted"));
  }
  if (!status.ok()) {
    pending->payload = nullptr;
    return status;
  }
  return pending->result;
}

absl::Status LiveStore::Encode(StoreImpl& store, Pending& pending) {
  const StagedContent& content = *pending.content;
  bool sums_declared = true;
  for (uint32_t i = 0; i < content.contributors(); ++i) {
    const std::shared_ptr<const ContributorSummary> summary = content.summary(i);
    if (!summary || !content.is_whole(i)) {
      return absl::FailedPreconditionError(absl::StrCat("contributor ", i, " has not finished"));
    }
    sums_declared = sums_declared && summary->sums.has_value();
  }
  const JoinedContent joined(manifest_, content);
  std::unique_ptr<DenseSource> parent;
  if (content.size_bytes() <= kMostListedBytes) {
    ASSIGN_OR_RETURN(TileList touched, TilesOf(manifest_, joined.patches()));
    pending.touched = std::make_shared<const TileList>(std::move(touched));
  }
  const bool summed = pending.publish.check_sums || !sums_declared;
  if (summed) {
    ASSIGN_OR_RETURN(parent, ParentBits(store, pending));
  }
  ASSIGN_OR_RETURN(pending.payload, store.journal_->Stage(content.transaction()));
  PublishInput input;
  input.manifest = &manifest_;
  input.key = &fingerprint_key_;
  input.parent = parent.get();
  input.patches = &joined.patches();
  input.transaction = content.transaction();
  input.threads = store.threads_;
  const auto write = [&pending](const ChunkKey& key, std::string_view chunk) -> absl::Status {
    if (pending.content->is_discarded()) return absl::AbortedError("the transaction was aborted");
    return pending.payload->Add(key, chunk);
  };
  ASSIGN_OR_RETURN(const PublishOutcome outcome, EncodePublish(input, write));
  RETURN_IF_ERROR(CheckOverlap(pending, outcome.elements));
  RETURN_IF_ERROR(CheckDigests(pending, outcome.patch_digest));
  RETURN_IF_ERROR(CheckElements(content));
  pending.result.elements = outcome.elements;
  pending.result.patch_digest = outcome.patch_digest;
  if (outcome.elements == 0) {
    pending.payload = nullptr;
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(SettleSums(pending, outcome.touched, summed));
  if (!pending.tiles.empty()) {
    ASSIGN_OR_RETURN(pending.tiles, Patched(manifest_, pending.tiles, joined.patches()));
  }
  return BuildRecord(store, pending);
}

// The parent's bits, of tiles that are touched at least.
absl::StatusOr<std::unique_ptr<DenseSource>> LiveStore::ParentBits(StoreImpl& store,
                                                                   Pending& pending) const {
  const VersionId parent = pending.publish.parent;
  if (pending.touched == nullptr) return store.Bits(parent);
  return store.ParentBits(parent, pending.touched, &pending.tiles);
}

// Contributors that both changed an element would have cancelled or mixed each other's bits.
absl::Status LiveStore::CheckOverlap(const Pending& pending, uint64_t joined_elements) const {
  const StagedContent& content = *pending.content;
  uint64_t sent = 0;
  for (uint32_t i = 0; i < content.contributors(); ++i) sent += content.elements(i);
  if (sent == joined_elements) return absl::OkStatus();
  // Now slowly: where, and who.
  const JoinedContent joined(manifest_, content);
  std::set<TensorIndex> tensors;
  std::set<uint32_t> contributors;
  for (uint32_t span = 0; span < manifest_.spans(); ++span) {
    std::map<TilePlace, std::pair<uint64_t, std::vector<uint32_t>>> tiles;
    for (uint32_t i = 0; i < content.contributors(); ++i) {
      RETURN_IF_ERROR(joined.part(i).ReadSpan(span, [&](const ChunkView& chunk) {
        for (const EncodedTile& tile : chunk.tiles()) {
          tiles[tile.place].first += tile.changed;
          tiles[tile.place].second.push_back(i);
        }
        return absl::OkStatus();
      }));
    }
    RETURN_IF_ERROR(joined.patches().ReadSpan(span, [&](const ChunkView& chunk) {
      for (const EncodedTile& tile : chunk.tiles()) tiles[tile.place].first -= tile.changed;
      return absl::OkStatus();
    }));
    for (const auto& [place, counts] : tiles) {
      if (counts.first == 0) continue;
      tensors.insert(place.tensor);
      contributors.insert(counts.second.begin(), counts.second.end());
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      sent - joined_elements, " elements were changed by more than one contributor, in ",
      NamesOf(manifest_, tensors), "; contributors there: ", absl::StrJoin(contributors, ", "),
      "; parts must be disjoint"));
}

absl::Status LiveStore::CheckDigests(const Pending& pending, const Digest& joined_digest) const {
  const StagedContent& content = *pending.content;
  if (content.contributors() == 1) {
    const Digest declared = content.summary(0)->digest;
    if (declared == joined_digest) return absl::OkStatus();
    return DigestError("the patch set", declared, joined_digest);
  }
  const int threads = options_.open.threads > 0 ? options_.open.threads : DefaultParallelism();
  for (uint32_t i = 0; i < content.contributors(); ++i) {
    ASSIGN_OR_RETURN(const Digest found, DigestOf(manifest_, *content.Patches(i), threads));
    const Digest declared = content.summary(i)->digest;
    if (declared != found) return DigestError(absl::StrCat("contributor ", i), declared, found);
  }
  return absl::OkStatus();
}

absl::Status LiveStore::CheckElements(const StagedContent& content) {
  for (uint32_t i = 0; i < content.contributors(); ++i) {
    const uint64_t declared = content.summary(i)->elements.value_or(content.elements(i));
    if (declared == content.elements(i)) continue;
    return absl::InvalidArgumentError(absl::StrCat("contributor ", i, " declared ", declared,
                                                   " changed elements, and sent ",
                                                   content.elements(i)));
  }
  return absl::OkStatus();
}

absl::StatusOr<LiveContent> LiveStore::ForetellContent(TransactionNumber transaction) const {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  ASSIGN_OR_RETURN(const std::shared_ptr<Pending> pending, FindPending(transaction));
  const std::shared_ptr<const ContributorSummary> summary = pending->content->summary(0);
  if (pending->content->contributors() != 1 || !summary || !summary->IsForetelling()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the content of transaction ", transaction.value(), " is not declared with its sums"));
  }
  ASSIGN_OR_RETURN(const VersionInfo parent, store->version(pending->publish.parent));
  LiveContent content;
  content.elements = *summary->elements;
  content.patch_digest = summary->digest;
  content.touched = {summary, &*summary->sums};
  content.chain_digest = ChainDigestOf(parent, pending->publish, content);
  return content;
}

// `found`: the tensors with changes and, if `summed`, their sums from the parent's bits.
absl::Status LiveStore::SettleSums(Pending& pending, const TouchedByTensor& found,
                                   bool summed) const {
  const StagedContent& content = *pending.content;
  bool all_declared = true;
  for (uint32_t i = 0; i < content.contributors(); ++i) {
    all_declared = all_declared && content.summary(i)->sums.has_value();
  }
  const std::shared_ptr<const TouchedByTensor> joined = DeclaredSums(content);
  pending.result.touched = summed ? std::make_shared<const TouchedByTensor>(found) : joined;
  pending.result.verified = summed ? Verified::kMaterialised : Verified::kNone;
  if (!all_declared) return absl::OkStatus();
  std::set<TensorIndex> wrong;
  std::set<TensorIndex> others;
  for (auto a = found.begin(), b = joined->begin(); a != found.end() || b != joined->end();) {
    const TensorIndex tensor = b == joined->end() ? a->tensor
                               : a == found.end() ? b->tensor
                                                  : std::min(a->tensor, b->tensor);
    const bool is_found = a != found.end() && a->tensor == tensor;
    const bool is_declared = b != joined->end() && b->tensor == tensor;
    if (is_found != is_declared) {
      others.insert(tensor);
    } else if (summed && a->sums != b->sums) {
      wrong.insert(tensor);
    }
    a += is_found ? 1 : 0;
    b += is_declared ? 1 : 0;
  }
  if (!others.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sums are declared of other tensors than those with changes: ",
                     NamesOf(manifest_, others)));
  }
  if (wrong.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the declared sums are not those of ", ToString(pending.publish.parent), " in ",
                   NamesOf(manifest_, wrong), "; the publisher's shadow is not that version"));
}

std::optional<TransactionNumber> LiveStore::StepBetween(VersionId from, VersionId to) const {
  const absl::StatusOr<std::shared_ptr<StoreImpl>> store = OpenedStore();
  if (!store.ok()) return std::nullopt;
  const absl::StatusOr<VersionInfo> from_info = (*store)->version(from);
  const absl::StatusOr<VersionInfo> to_info = (*store)->version(to);
  if (!from_info.ok() || !to_info.ok()) return std::nullopt;
  if (to_info->parent == from) return to_info->transaction;
  if (from_info->parent == to) return from_info->transaction;
  return std::nullopt;
}

absl::Status LiveStore::ReadPacked(
    TransactionNumber step, const ChunkKey& first,
    const std::function<absl::StatusOr<bool>(const ChunkKey&, std::string_view)>& visit) const {
  ASSIGN_OR_RETURN(const std::shared_ptr<StoreImpl> store, OpenedStore());
  return store->journal_->ReadPayload(
      step, first, [&](const ChunkKey& key, std::string_view chunk) -> absl::StatusOr<bool> {
        if (key.contributor == kTableContributor) return false;
        return visit(key, chunk);
      });
}

absl::Status LiveStore::BuildRecord(StoreImpl& store, Pending& pending) {
  const LivePublish& publish = pending.publish;
  ASSIGN_OR_RETURN(const VersionInfo parent, store.version(publish.parent));
  ASSIGN_OR_RETURN(pending.table, store.TableOf(publish.parent, *pending.result.touched));
  const std::string table_bytes = SerializeDeterministic(pending.table);
  RETURN_IF_ERROR(pending.payload->Add(kTouchedTableKey, table_bytes));
  pending.result.chain_digest = ChainDigestOf(parent, publish, pending.result);
  v1::VersionRecord& record = pending.record;
  record.set_parent(publish.parent.value());
  record.set_transaction(pending.content->transaction().value());
  record.set_patch_digest(ToBytes(pending.result.patch_digest));
  record.set_chain_digest(ToBytes(pending.result.chain_digest));
  record.set_elements(pending.result.elements);
  record.set_tensors(pending.result.touched->size());
  record.set_payload_bytes(pending.payload->size_bytes());
  *record.mutable_fingerprint() = ToProto(FingerprintAfter(parent, *pending.result.touched));
  record.set_touched_digest(ToBytes(Sha256().Update(table_bytes).Finish()));
  record.set_message(publish.message);
  record.mutable_meta()->insert(publish.meta.begin(), publish.meta.end());
  return pending.payload->Finish();
}

}  // namespace wstore
