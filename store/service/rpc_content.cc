#include "store/service/rpc_content.h"

#include <algorithm>
#include <future>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/client/transfer_messages.h"
#include "store/service/rpc_messages.h"

namespace wstore::service {
namespace {

constexpr size_t kTensorsPerMessage = 4096;
constexpr size_t kSumsPerMessage = 8192;
constexpr uint64_t kDenseMessageBytes = 4 << 20;
constexpr uint64_t kDenseBatchBytes = 16 << 20;
constexpr size_t kDenseBatchMessages = 65'536;
constexpr uint64_t kMaxRanges = 65'536;

absl::StatusOr<std::shared_ptr<Store>> OpenStore(LiveStore& live) {
  std::shared_ptr<Store> store = live.store();
  if (store != nullptr) return store;
  return absl::UnavailableError("the journal is being reopened; try again");
}

// The version that `name` means; its digest must be right.
absl::StatusOr<VersionInfo> CheckName(const Store& store, const v1::VersionName& name,
                                      bool digest_required) {
  ASSIGN_OR_RETURN(VersionInfo info, store.version(VersionId(name.version())));
  if (name.chain_digest().empty() && !digest_required) return info;
  ASSIGN_OR_RETURN(const VersionName given, FromProto(name, "chain_digest"));
  if (given.chain_digest == info.chain_digest) return info;
  return absl::FailedPreconditionError(absl::StrCat(
      wstore::ToString(info.version), " has the chain digest ", ToHex(info.chain_digest), ", not ",
      ToHex(given.chain_digest), ": it is another store's, or of another history"));
}

class ManifestProducer final : public Producer<v1::ReadManifestResponse> {
 public:
  explicit ManifestProducer(LiveStore& live) : live_(live) {}

  absl::StatusOr<Next> Produce(v1::ReadManifestResponse* response) override {
    const Manifest& manifest = live_.manifest();
    if (next_ > 0 && next_ >= manifest.size()) return Next::kEnd;
    response->Clear();
    if (next_ == 0) response->set_base_digest(ToBytes(live_.fingerprint_key().base_digest()));
    response->set_tensors_in_all(manifest.size());
    const size_t end = std::min(manifest.size(), next_ + kTensorsPerMessage);
    for (; next_ < end; ++next_) {
      const TensorSpec& spec = manifest.tensor(static_cast<TensorIndex>(next_)).spec;
      v1::Tensor* const tensor = response->add_tensors();
      tensor->set_name(spec.name);
      tensor->set_dtype(std::string(DtypeName(spec.dtype)));
      for (const uint64_t dim : spec.shape) tensor->add_shape(dim);
    }
    if (manifest.size() == 0) ++next_;
    return Next::kMessage;
  }

 private:
  LiveStore& live_;
  size_t next_ = 0;
};

// Sums in as many messages as they need: the first with the rest of the summary.
template <typename Response>
class SummarySender {
 public:
  void Set(v1::ContentSummary summary, absl::Span<const TensorSums> touched) {
    messages_.clear();
    do {
      *summary.mutable_sums() = wire::ToProto(touched.subspan(0, kSumsPerMessage));
      touched.remove_prefix(std::min(touched.size(), kSumsPerMessage));
      messages_.push_back(std::exchange(summary, {}));
    } while (!touched.empty());
  }
  bool empty() const { return messages_.empty(); }
  // False: all are sent.
  bool Send(Response* response) {
    if (messages_.empty()) return false;
    v1::ContentSummary* const out =
        first_ ? response->mutable_summary() : response->mutable_more_sums();
    *out = std::move(messages_.front());
    messages_.pop_front();
    first_ = false;
    return true;
  }

 private:
  std::deque<v1::ContentSummary> messages_;
  bool first_ = true;
};

class DifferenceProducer final : public Producer<v1::ReadDifferenceResponse> {
 public:
  DifferenceProducer(LiveStore& live, Fleet& fleet, VersionId from, VersionId to,
                     const v1::ReadDifferenceRequest& request, TensorSet tensors)
      : live_(live),
        fleet_(fleet),
        from_(from),
        to_(to),
        transaction_(request.transaction()),
        skip_(request.skip_chunks()),
        tensors_(std::move(tensors)),
        name_(request.to()) {
    if (request.takes_packed()) step_ = live_.StepBetween(from_, to_);
  }

  absl::StatusOr<Next> Produce(v1::ReadDifferenceResponse* response) override {
    response->Clear();
    if (!described_) RETURN_IF_ERROR(Describe());
    if (summary_.Send(response)) return Next::kMessage;
    if (from_ == to_) return Next::kEnd;
    if (step_) return PassOn(response);
    while (skip_ > 0 || chunks_.empty()) {
      if (chunks_.empty()) {
        PassUnwanted();
        if (!ahead_.valid() && next_span_ >= live_.manifest().spans()) return Next::kEnd;
        RETURN_IF_ERROR(TakeSpan());
        continue;
      }
      --skip_;
      chunks_.pop_front();
    }
    response->set_chunk(std::move(chunks_.front()));
    chunks_.pop_front();
    return Next::kMessage;
  }

 private:
  using Chunks = std::deque<std::string>;

  // How many chunks there will be is known once all spans are read, so the reader counts; the
  // summary has the digest.
  absl::Status Describe() {
    ASSIGN_OR_RETURN(const std::shared_ptr<const DifferenceInfo> info, fleet_.Describe(from_, to_));
    v1::ContentSummary summary;
    *summary.mutable_to() = name_;
    summary.set_elements(info->elements);
    if (info->elements > 0) {
      summary.add_parts()->set_digest(ToBytes(info->patch_digest));
    }
    summary_.Set(std::move(summary), info->touched);
    described_ = true;
    return absl::OkStatus();
  }

  // The next stored chunk as it is. Nothing is held between two.
  absl::StatusOr<Next> PassOn(v1::ReadDifferenceResponse* response) {
    bool found = false;
    const auto take = [&](const ChunkKey& key, std::string_view packed) -> absl::StatusOr<bool> {
      next_key_ = key;
      ++next_key_.part;
      if (!IsWanted(key.span)) return true;
      if (skip_ > 0) {
        --skip_;
        return true;
      }
      response->set_packed_chunk(packed.data(), packed.size());
      found = true;
      return false;
    };
    RETURN_IF_ERROR(live_.ReadPacked(*step_, next_key_, take));
    return found ? Next::kMessage : Next::kEnd;
  }

  // Whether a tile of it is of a tensor that is wanted.
  bool IsWanted(uint32_t span) const {
    const Manifest& manifest = live_.manifest();
    if (tensors_.is_all() || span >= manifest.spans()) return true;
    return tensors_.HasAnyOf(TensorsOfSpan(manifest, span));
  }

  void PassUnwanted() {
    while (next_span_ < live_.manifest().spans() && !IsWanted(next_span_)) ++next_span_;
  }

  // While the chunks of one span are sent, those of the next are made.
  absl::Status TakeSpan() {
    if (!ahead_.valid()) ReadAhead();
    ASSIGN_OR_RETURN(chunks_, ahead_.get());
    PassUnwanted();
    if (next_span_ < live_.manifest().spans()) ReadAhead();
    return absl::OkStatus();
  }

  void ReadAhead() {
    const auto read = [this, span = next_span_++] { return ReadSpan(span); };
    try {
      ahead_ = std::async(std::launch::async, read);
    } catch (const std::system_error&) {
      ahead_ = std::async(std::launch::deferred, read);  // no more threads: when it is wanted
    }
  }

  absl::StatusOr<Chunks> ReadSpan(uint32_t span) const {
    ASSIGN_OR_RETURN(const std::shared_ptr<Store> store, OpenStore(live_));
    ASSIGN_OR_RETURN(const std::unique_ptr<PatchSource> difference, store->Difference(from_, to_));
    ChunkBuilder builder(live_.manifest());
    Chunks chunks;
    const auto close = [&] {
      if (builder.empty()) return;
      const ChunkKey key{0, span, static_cast<uint16_t>(chunks.size())};
      chunks.push_back(builder.Finish({transaction_, key}));
    };
    RETURN_IF_ERROR(difference->ReadSpan(span, [&](const ChunkView& chunk) {
      for (const EncodedTile& tile : chunk.tiles()) {
        if (!tensors_.Has(tile.place.tensor)) continue;
        builder.AddTile(tile);
        if (builder.size_bytes() >= kChunkTargetBytes) close();
      }
      return absl::OkStatus();
    }));
    close();
    return chunks;
  }

  LiveStore& live_;
  Fleet& fleet_;
  const VersionId from_;
  const VersionId to_;
  const TransactionNumber transaction_;
  uint64_t skip_;
  const TensorSet tensors_;
  const v1::VersionName name_;
  bool described_ = false;
  SummarySender<v1::ReadDifferenceResponse> summary_;
  std::optional<TransactionNumber> step_;  // whose stored chunks are passed on
  ChunkKey next_key_{0, 0, 0};
  uint32_t next_span_ = 0;
  Chunks chunks_;
  std::future<absl::StatusOr<Chunks>> ahead_;  // last: it uses the others, and is waited for
};

class ContentProducer final : public Producer<v1::ReadContentResponse> {
 public:
  ContentProducer(LiveStore& live, Fleet& fleet, std::shared_ptr<StagedContent> content,
                  const v1::ReadContentRequest& request, TensorSet tensors)
      : live_(live),
        fleet_(fleet),
        content_(std::move(content)),
        without_sums_(request.without_sums()),
        tensors_(std::move(tensors)),
        next_(request.skip_chunks().begin(), request.skip_chunks().end()) {
    next_.resize(content_->contributors());
    skip_.resize(next_.size());
    if (tensors_.is_all()) return;
    // Which chunks these were is seen when they are passed.
    for (size_t i = 0; i < next_.size(); ++i) {
      if (next_[i] != kSkipAll) std::swap(next_[i], skip_[i]);
    }
  }
  ~ContentProducer() override {
    if (watch_) content_->Unwatch(*watch_);
  }

  void CallWhenReady(std::function<void()> wake) override {
    watch_ = content_->Watch(std::move(wake));
  }

  absl::StatusOr<Next> Produce(v1::ReadContentResponse* response) override {
    response->Clear();
    for (uint32_t i = 0; i < next_.size(); ++i) {
      if (!tensors_.is_all()) PassUnwanted(i);
      ASSIGN_OR_RETURN(const bool read, content_->Read(i, next_[i], [&](std::string_view chunk) {
        response->set_chunk(chunk.data(), chunk.size());
        return absl::OkStatus();
      }));
      if (!read) continue;
      ++next_[i];
      return Next::kMessage;
    }
    if (!summarised_) {
      if (content_->is_discarded()) {
        return absl::NotFoundError(
            absl::StrCat("transaction ", content_->transaction().value(), " has ended"));
      }
      if (!complete_) {
        absl::StatusOr<LiveContent> complete = fleet_.OpenContent(content_->transaction());
        if (absl::IsUnavailable(complete.status())) return Next::kWait;
        RETURN_IF_ERROR(complete.status());
        complete_ = *std::move(complete);
        return Produce(response);  // the last chunks may have come since they were looked for
      }
      if (!HasSentAll()) return Next::kWait;
      Summarise(*std::exchange(complete_, std::nullopt));
    }
    if (!summary_.Send(response)) return Next::kEnd;
    return summary_.empty() ? Next::kLast : Next::kMessage;
  }

 private:
  static constexpr uint64_t kSkipAll = UINT64_MAX;

  void PassUnwanted(uint32_t contributor) {
    uint64_t& next = next_[contributor];
    uint64_t& skip = skip_[contributor];
    while (next != kSkipAll) {
      const std::optional<bool> is_wanted = content_->HasAny(contributor, next, tensors_);
      if (!is_wanted || (*is_wanted && skip == 0)) return;
      if (*is_wanted) --skip;
      ++next;
    }
  }

  // A publish may be decided while its chunks are still coming.
  bool HasSentAll() const {
    for (uint32_t i = 0; i < content_->contributors(); ++i) {
      if (next_[i] < content_->summary(i)->chunks) return false;
    }
    return true;
  }

  void Summarise(const LiveContent& complete) {
    v1::ContentSummary summary;
    summary.mutable_to()->set_chain_digest(ToBytes(complete.chain_digest));
    summary.set_elements(complete.elements);
    for (uint32_t i = 0; i < content_->contributors(); ++i) {
      v1::ContentSummary::Part* const part = summary.add_parts();
      const std::shared_ptr<const ContributorSummary> sent = content_->summary(i);
      part->set_chunks(sent->chunks);
      part->set_digest(ToBytes(sent->digest));
    }
    absl::Span<const TensorSums> touched = *complete.touched;
    if (without_sums_) touched = {};
    summary_.Set(std::move(summary), touched);
    summarised_ = true;
  }

  LiveStore& live_;
  Fleet& fleet_;
  const std::shared_ptr<StagedContent> content_;
  const bool without_sums_;
  std::optional<uint64_t> watch_;
  const TensorSet tensors_;
  std::vector<uint64_t> next_;
  std::vector<uint64_t> skip_;           // of the wanted ones that follow
  std::optional<LiveContent> complete_;  // all chunks are there
  bool summarised_ = false;
  SummarySender<v1::ReadContentResponse> summary_;
};

// Opening a version takes time, and a reader who waits shall hold nothing: so several messages are
// made from one opening, and sent one by one.
class DenseProducer final : public Producer<v1::ReadDenseResponse> {
 public:
  DenseProducer(LiveStore& live, VersionId version, std::vector<v1::DenseRange> ranges)
      : live_(live), version_(version), ranges_(std::move(ranges)) {}

  absl::StatusOr<Next> Produce(v1::ReadDenseResponse* response) override {
    if (batch_.empty()) RETURN_IF_ERROR(FillBatch());
    if (batch_.empty()) return Next::kEnd;
    *response = std::move(batch_.front());
    batch_.pop_front();
    return Next::kMessage;
  }

 private:
  // A version for the time of one batch. Goes in reverse order.
  struct Opened {
    std::shared_ptr<Store> store;
    std::unique_ptr<DenseSource> dense;
    std::unique_ptr<SpanTiles> tiles;
    std::optional<uint32_t> span;
    std::vector<uint8_t> tile;
  };

  absl::Status FillBatch() {
    Opened opened;
    uint64_t bytes = 0;
    while (range_ < ranges_.size() && bytes < kDenseBatchBytes &&
           batch_.size() < kDenseBatchMessages) {
      const v1::DenseRange& range = ranges_[range_];
      const uint64_t left = range.size_bytes() - done_bytes_;
      if (left == 0) {
        ++range_;
        done_bytes_ = 0;
        continue;
      }
      if (opened.store == nullptr) {
        ASSIGN_OR_RETURN(opened.store, OpenStore(live_));
        ASSIGN_OR_RETURN(opened.dense, opened.store->Materialise(version_));
      }
      v1::ReadDenseResponse& message = batch_.emplace_back();
      message.set_tensor(range.tensor());
      message.set_offset_bytes(range.offset_bytes() + done_bytes_);
      message.mutable_data()->resize(std::min(kDenseMessageBytes, left));
      RETURN_IF_ERROR(Read(&message, &opened));
      done_bytes_ += message.data().size();
      bytes += message.data().size();
    }
    return absl::OkStatus();
  }

  absl::Status Read(v1::ReadDenseResponse* message, Opened* opened) const {
    const Manifest& manifest = live_.manifest();
    const TensorIndex tensor = message->tensor();
    const uint64_t tile_bytes = kTileElements * manifest.tensor(tensor).element_bytes;
    opened->tile.resize(tile_bytes);
    const uint64_t begin = message->offset_bytes();
    const uint64_t end = begin + message->data().size();
    for (uint64_t at = begin; at < end;) {
      const TilePlace place{tensor, static_cast<uint32_t>(at / tile_bytes)};
      const auto span = static_cast<uint32_t>(manifest.GlobalTile(place) / kSpanTiles);
      if (opened->span != span) {
        ASSIGN_OR_RETURN(opened->tiles, opened->dense->OpenSpan(span));
        opened->span = span;
      }
      RETURN_IF_ERROR(opened->tiles->ReadTile(place, opened->tile.data()));
      const uint64_t in_tile = at % tile_bytes;
      const uint64_t take = std::min(manifest.TileBytes(place) - in_tile, end - at);
      std::copy_n(opened->tile.data() + in_tile, take,
                  message->mutable_data()->data() + (at - begin));
      at += take;
    }
    return absl::OkStatus();
  }

  LiveStore& live_;
  const VersionId version_;
  const std::vector<v1::DenseRange> ranges_;
  size_t range_ = 0;
  uint64_t done_bytes_ = 0;
  std::deque<v1::ReadDenseResponse> batch_;
};

// Unset: all.
absl::StatusOr<TensorSet> WantedTensors(bool is_set, const v1::TensorRanges& ranges,
                                        const LiveStore& live) {
  if (!is_set) return TensorSet();
  return wire::FromProto(ranges, live.manifest().size());
}

absl::StatusOr<std::vector<v1::DenseRange>> CheckRanges(const Manifest& manifest,
                                                        const v1::ReadDenseRequest& request) {
  std::vector<v1::DenseRange> ranges(request.ranges().begin(), request.ranges().end());
  if (ranges.size() > kMaxRanges) {
    return absl::InvalidArgumentError(
        absl::StrCat(ranges.size(), " ranges; at most ", kMaxRanges, " are allowed"));
  }
  if (ranges.empty()) {
    for (TensorIndex i = 0; i < manifest.size(); ++i) {
      v1::DenseRange& range = ranges.emplace_back();
      range.set_tensor(i);
      range.set_size_bytes(manifest.tensor(i).size_bytes());
    }
  }
  for (const v1::DenseRange& range : ranges) {
    const uint64_t size =
        range.tensor() < manifest.size() ? manifest.tensor(range.tensor()).size_bytes() : 0;
    if (range.tensor() < manifest.size() && range.offset_bytes() <= size &&
        range.size_bytes() <= size - range.offset_bytes()) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "bytes ", range.offset_bytes(), " + ", range.size_bytes(), " of tensor ", range.tensor(),
        " are asked for; it has ", size, ", and the base has ", manifest.size(), " tensors"));
  }
  return ranges;
}

}  // namespace

std::unique_ptr<Producer<v1::ReadManifestResponse>> MakeManifestProducer(LiveStore& live) {
  return std::make_unique<ManifestProducer>(live);
}

absl::StatusOr<std::unique_ptr<Producer<v1::ReadDenseResponse>>> MakeDenseProducer(
    LiveStore& live, const v1::ReadDenseRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Store> store, OpenStore(live));
  ASSIGN_OR_RETURN(const VersionInfo info, CheckName(*store, request.version(), false));
  ASSIGN_OR_RETURN(std::vector<v1::DenseRange> ranges, CheckRanges(live.manifest(), request));
  return std::make_unique<DenseProducer>(live, info.version, std::move(ranges));
}

absl::StatusOr<std::unique_ptr<Producer<v1::ReadDifferenceResponse>>> MakeDifferenceProducer(
    LiveStore& live, Fleet& fleet, const v1::ReadDifferenceRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Store> store, OpenStore(live));
  ASSIGN_OR_RETURN(const VersionInfo from, CheckName(*store, request.from(), true));
  ASSIGN_OR_RETURN(const VersionInfo to, CheckName(*store, request.to(), true));
  ASSIGN_OR_RETURN(TensorSet tensors,
                   WantedTensors(request.has_tensors(), request.tensors(), live));
  return std::make_unique<DifferenceProducer>(live, fleet, from.version, to.version, request,
                                              std::move(tensors));
}

absl::StatusOr<std::unique_ptr<Producer<v1::ReadContentResponse>>> MakeContentProducer(
    LiveStore& live, Fleet& fleet, const v1::ReadContentRequest& request) {
  ASSIGN_OR_RETURN(std::shared_ptr<StagedContent> content,
                   live.FindContent(TransactionNumber(request.transaction())));
  if (static_cast<uint32_t>(request.skip_chunks_size()) > content->contributors()) {
    return absl::InvalidArgumentError(absl::StrCat(request.skip_chunks_size(),
                                                   " entries in skip_chunks; there are ",
                                                   content->contributors(), " contributors"));
  }
  ASSIGN_OR_RETURN(TensorSet tensors,
                   WantedTensors(request.has_tensors(), request.tensors(), live));
  return std::make_unique<ContentProducer>(live, fleet, std::move(content), request,
                                           std::move(tensors));
}

}  // namespace wstore::service
