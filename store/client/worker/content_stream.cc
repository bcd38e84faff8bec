#include "store/client/worker/content_stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/status_macros.h"
#include "store/client/transfer_messages.h"
#include "store/client/worker/delivery.h"
#include "store/client/worker/packed_stager.h"
#include "store/client/worker/worker_messages.h"
#include "transfer/codec/chunk_layout.h"

namespace wstore::client {
namespace {

constexpr int64_t kCallMicros = 600'000'000;
constexpr int64_t kFirstPauseMicros = 20'000;
constexpr int64_t kLongestPauseMicros = 1'000'000;
constexpr uint64_t kTilesPerRead = 32;
constexpr size_t kReadsAtOnce = 2;

bool MayPass(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return true;
    default:
      return false;
  }
}

absl::Status AddSummary(const v1::ContentSummary& from, bool is_first, UpdateSummary* to) {
  if (is_first) {
    to->contents.clear();
    to->declared.emplace();
    for (const v1::ContentSummary::Part& part : from.parts()) {
      const std::optional<Digest> digest = DigestFromBytes(part.digest());
      if (!digest) {
        return absl::InternalError(
            absl::StrCat("the server sent a digest of ", part.digest().size(), " bytes"));
      }
      to->contents.push_back({part.chunks(), *digest});
    }
  }
  if (!to->declared) return absl::InternalError("the server sent sums before the summary");
  return wire::AppendTensors(from.sums(), &*to->declared);
}

}  // namespace

void Cancellation::Cancel() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_cancelled_ = true;
  for (grpc::ClientContext* const call : calls_) call->TryCancel();
  cancelled_.notify_all();
}

bool Cancellation::is_cancelled() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_cancelled_;
}

void Cancellation::Sleep(int64_t micros) {
  std::unique_lock<std::mutex> lock(mutex_);
  cancelled_.wait_for(lock, std::chrono::microseconds(micros), [this] { return is_cancelled_; });
}

Cancellation::Call::Call(Cancellation& cancellation) : cancellation_(cancellation) {
  Connection::SetDeadline(&context_, Deadline::After(kCallMicros));
  const std::lock_guard<std::mutex> lock(cancellation_.mutex_);
  cancellation_.calls_.push_back(&context_);
  if (cancellation_.is_cancelled_) context_.TryCancel();
}

Cancellation::Call::~Call() {
  const std::lock_guard<std::mutex> lock(cancellation_.mutex_);
  std::erase(cancellation_.calls_, &context_);
}

absl::Status RepeatUntilSettled(Cancellation& cancellation,
                                const std::function<absl::Status(bool* progress)>& attempt) {
  int64_t pause_micros = kFirstPauseMicros;
  for (;;) {
    if (cancellation.is_cancelled()) return absl::CancelledError("cancelled");
    bool progress = false;
    const absl::Status status = attempt(&progress);
    if (cancellation.is_cancelled()) return absl::CancelledError("cancelled");
    if (status.ok() || !MayPass(status)) return status;
    if (progress) pause_micros = kFirstPauseMicros;
    cancellation.Sleep(pause_micros);
    pause_micros = std::min(2 * pause_micros, kLongestPauseMicros);
  }
}

namespace {

// Chunks that are not wanted from the server.
constexpr uint64_t kSkipAll = UINT64_MAX;

// Fetches what is not skipped, and the summary. `skip`: by contributor; counts what was staged.
absl::StatusOr<UpdateSummary> FetchOpenPublish(const Connection& connection,
                                               const StageTarget& target,
                                               std::vector<uint64_t>* skip) {
  Cancellation& cancellation = target.cancellation;
  UpdateSummary summary;
  // A fault of the replica's own is no reason to fetch again, whatever its code.
  absl::Status refused;
  const absl::Status fetched = RepeatUntilSettled(cancellation, [&](bool* progress) {
    v1::ReadContentRequest request;
    request.set_transaction(target.transaction.value());
    for (const uint64_t chunks : *skip) request.add_skip_chunks(chunks);
    request.set_without_sums(true);
    if (!target.tensors.is_all()) *request.mutable_tensors() = wire::ToProto(target.tensors);
    bool is_first = true;
    Cancellation::Call call(cancellation);
    const auto reader = connection.stub().ReadContent(call.context(), request);
    v1::ReadContentResponse response;
    while (refused.ok() && reader->Read(&response)) {
      if (response.kind_case() == v1::ReadContentResponse::kChunk) {
        target.received += response.chunk().size();
        refused = target.replica.StageChunk(response.chunk());
        // What was staged is well formed, and of a contributor that was announced.
        if (refused.ok()) ++(*skip)[LoadLe<uint16_t>(response.chunk().data() + kContributorAt)];
        *progress = true;
      } else {
        const bool more = response.kind_case() == v1::ReadContentResponse::kMoreSums;
        refused = AddSummary(more ? response.more_sums() : response.summary(), is_first, &summary);
        is_first = false;
      }
    }
    if (!refused.ok()) call.context()->TryCancel();
    const grpc::Status ended = reader->Finish();
    if (!refused.ok()) return absl::OkStatus();
    return connection.FromGrpc(ended);
  });
  RETURN_IF_ERROR(fetched);
  RETURN_IF_ERROR(refused);
  summary.declared.reset();
  summary.is_partial = !target.tensors.is_all();
  return summary;
}

}  // namespace

absl::StatusOr<UpdateSummary> StageOpenPublish(const Connection& connection,
                                               const StageTarget& target, uint32_t contributors,
                                               Delivery* delivery) {
  std::vector<uint64_t> skip(contributors, 0);
  for (uint32_t i = 0; delivery != nullptr && i < contributors; ++i) {
    if (delivery->carries(i)) skip[i] = kSkipAll;
  }
  absl::StatusOr<UpdateSummary> summary = FetchOpenPublish(connection, target, &skip);
  if (delivery == nullptr || !summary.ok()) return summary;
  bool is_lacking = false;
  for (uint32_t i = 0; i < contributors; ++i) {
    if (!delivery->carries(i)) continue;
    const absl::StatusOr<uint64_t> chunks = delivery->Await(i, target.cancellation);
    if (absl::IsCancelled(chunks.status())) return chunks.status();
    const bool is_whole =
        i < summary->contents.size() && chunks.ok() && *chunks == summary->contents[i].chunks;
    if (is_whole) continue;
    skip[i] = 0;  // what was staged already changes nothing
    is_lacking = true;
  }
  if (!is_lacking) return summary;
  return FetchOpenPublish(connection, target, &skip);
}

absl::StatusOr<UpdateSummary> StageDifference(const Connection& connection,
                                              const StageTarget& target, const Manifest& manifest,
                                              const VersionName& from, const VersionName& to) {
  Cancellation& cancellation = target.cancellation;
  uint64_t staged = 0;
  UpdateSummary summary;
  absl::Status refused;
  PackedStager packed(target.replica, manifest, target.transaction);
  const absl::Status fetched = RepeatUntilSettled(cancellation, [&](bool* progress) {
    v1::ReadDifferenceRequest request;
    *request.mutable_from() = ToProto(from);
    *request.mutable_to() = ToProto(to);
    request.set_transaction(target.transaction.value());
    request.set_skip_chunks(staged);
    request.set_takes_packed(true);
    if (!target.tensors.is_all()) *request.mutable_tensors() = wire::ToProto(target.tensors);
    Cancellation::Call call(cancellation);
    const auto reader = connection.stub().ReadDifference(call.context(), request);
    v1::ReadDifferenceResponse response;
    while (refused.ok() && reader->Read(&response)) {
      if (response.kind_case() == v1::ReadDifferenceResponse::kPackedChunk) {
        target.received += response.packed_chunk().size();
        if (!packed.Add(std::move(*response.mutable_packed_chunk()))) refused = packed.Finish();
        if (refused.ok()) ++staged;
        *progress = true;
      } else if (response.kind_case() == v1::ReadDifferenceResponse::kChunk) {
        target.received += response.chunk().size();
        refused = target.replica.StageChunk(response.chunk());
        if (refused.ok()) ++staged;
        *progress = true;
      } else if (response.kind_case() == v1::ReadDifferenceResponse::kSummary) {
        refused = AddSummary(response.summary(), true, &summary);
      } else {
        refused = AddSummary(response.more_sums(), false, &summary);
      }
    }
    if (!refused.ok()) call.context()->TryCancel();
    const grpc::Status ended = reader->Finish();
    if (!refused.ok()) return absl::OkStatus();
    return connection.FromGrpc(ended);
  });
  RETURN_IF_ERROR(fetched);
  RETURN_IF_ERROR(refused);
  RETURN_IF_ERROR(packed.Finish());
  // The server does not know the number in advance.
  if (!summary.contents.empty()) summary.contents[0].chunks = staged;
  summary.is_partial = !target.tensors.is_all();
  return summary;
}

namespace {

class ServedDense final : public DenseSource {
 public:
  ServedDense(const Connection& connection, const Manifest& manifest, const VersionName& version,
              Cancellation& cancellation)
      : connection_(connection),
        manifest_(manifest),
        version_(version),
        cancellation_(cancellation) {}

  absl::StatusOr<std::unique_ptr<SpanTiles>> OpenSpan(uint32_t span) const override {
    return std::make_unique<Tiles>(*this, span);
  }

 private:
  // Reads ahead, within the span.
  class Tiles final : public SpanTiles {
   public:
    Tiles(const ServedDense& source, uint32_t span)
        : source_(source), places_(source.manifest_.SpanPlaces(span)) {}

    absl::Status ReadTile(TilePlace place, uint8_t* out) override {
      const auto at = static_cast<size_t>(std::lower_bound(places_.begin(), places_.end(), place) -
                                          places_.begin());
      if (at < first_ || at >= first_ + starts_.size()) RETURN_IF_ERROR(Fetch(at));
      std::memcpy(out, bytes_.data() + starts_[at - first_], source_.manifest_.TileBytes(place));
      return absl::OkStatus();
    }

   private:
    absl::Status Fetch(size_t at) {
      first_ = at;
      starts_.clear();
      const size_t end = std::min(places_.size(), at + kTilesPerRead);
      v1::ReadDenseRequest request;
      *request.mutable_version() = ToProto(source_.version_);
      uint64_t size_bytes = 0;
      for (size_t i = at; i < end; ++i) {
        const Manifest::Tensor& tensor = source_.manifest_.tensor(places_[i].tensor);
        v1::DenseRange& range = *request.add_ranges();
        range.set_tensor(places_[i].tensor);
        range.set_offset_bytes(places_[i].tile * kTileElements * tensor.element_bytes);
        range.set_size_bytes(source_.manifest_.TileBytes(places_[i]));
        starts_.push_back(size_bytes);
        size_bytes += range.size_bytes();
      }
      const absl::Status status = source_.Read(request, size_bytes, &bytes_);
      if (!status.ok()) starts_.clear();
      return status;
    }

    const ServedDense& source_;
    const std::vector<TilePlace> places_;
    size_t first_ = 0;
    std::vector<uint64_t> starts_;
    std::string bytes_;
  };

  absl::Status Read(const v1::ReadDenseRequest& request, uint64_t size_bytes,
                    std::string* bytes) const {
    std::unique_lock<std::mutex> lock(mutex_);
    turn_.wait(lock, [this] { return reading_ < kReadsAtOnce; });
    ++reading_;
    lock.unlock();
    const absl::Status status = RepeatUntilSettled(cancellation_, [&](bool*) {
      bytes->clear();
      Cancellation::Call call(cancellation_);
      const auto reader = connection_.stub().ReadDense(call.context(), request);
      v1::ReadDenseResponse response;
      while (reader->Read(&response)) {
        if (response.data().size() > size_bytes - bytes->size()) break;
        bytes->append(response.data());
      }
      call.context()->TryCancel();
      const grpc::Status ended = reader->Finish();
      if (bytes->size() == size_bytes) return absl::OkStatus();
      if (!ended.ok()) return connection_.FromGrpc(ended);
      return absl::DataLossError(absl::StrCat("the server sent ", bytes->size(), " bytes of ",
                                              size_bytes, " that were asked for"));
    });
    lock.lock();
    --reading_;
    turn_.notify_one();
    return status;
  }

  const Connection& connection_;
  const Manifest& manifest_;
  const VersionName version_;
  Cancellation& cancellation_;
  mutable std::mutex mutex_;
  mutable std::condition_variable turn_;
  mutable size_t reading_ = 0;
};

}  // namespace

std::unique_ptr<DenseSource> MakeServedDense(const Connection& connection, const Manifest& manifest,
                                             const VersionName& version,
                                             Cancellation& cancellation) {
  return std::make_unique<ServedDense>(connection, manifest, version, cancellation);
}

}  // namespace wstore::client
