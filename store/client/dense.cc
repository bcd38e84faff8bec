// Dense versions over the wire.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/client/difference.h"
#include "store/client/messages.h"
#include "store/client/sending.h"

namespace wstore::client {
namespace {

struct DenseContext {
  const Connection& connection;
  std::shared_ptr<const Manifest> manifest;
  v1::VersionName version;
  Deadline deadline;
  std::vector<ElementRange> held;
};

// Tiles in ascending order come from one stream; others, and what a broken stream has not brought,
// from a new one.
class ServedTiles final : public SpanTiles {
 public:
  ServedTiles(const DenseContext& context, uint32_t span)
      : context_(context), places_(context.manifest->SpanPlaces(span)) {}
  ~ServedTiles() override { Stop(); }

  absl::Status ReadTile(TilePlace place, uint8_t* out) override {
    return Retry(context_.connection, context_.deadline, [&] {
      absl::Status status = TryTile(place, out);
      if (status.ok()) return status;
      Stop();
      // Too many streams at the server: others will end.
      if (absl::IsResourceExhausted(status)) return absl::UnavailableError(status.message());
      return Repeatable(status);
    });
  }

 private:
  absl::Status TryTile(TilePlace place, uint8_t* out) {
    const uint64_t width = context_.manifest->tensor(place.tensor).element_bytes;
    uint64_t at = uint64_t{place.tile} * kTileElements * width;
    uint64_t left = context_.manifest->TileBytes(place);
    if (stream_ == nullptr || place < next_) RETURN_IF_ERROR(Start(place));
    while (left > 0) {
      const bool has = response_.tensor() == place.tensor && response_.offset_bytes() <= at &&
                       at - response_.offset_bytes() < response_.data().size();
      if (!has) {
        RETURN_IF_ERROR(NextMessage(place));
        continue;
      }
      const uint64_t from = at - response_.offset_bytes();
      const uint64_t size = std::min<uint64_t>(left, response_.data().size() - from);
      std::memcpy(out, response_.data().data() + from, size);
      out += size;
      at += size;
      left -= size;
    }
    next_ = place;
    return absl::OkStatus();
  }

  absl::Status Start(TilePlace first) {
    Stop();
    RETURN_IF_ERROR(context_.connection.CheckProcess());
    v1::ReadDenseRequest request;
    *request.mutable_version() = context_.version;
    for (const TilePlace place : places_) {
      if (place < first) continue;
      if (!context_.held.empty() && !context_.held[place.tensor].has_tile(place.tile)) continue;
      const uint64_t width = context_.manifest->tensor(place.tensor).element_bytes;
      const int last = request.ranges_size() - 1;
      if (last < 0 || request.ranges(last).tensor() != place.tensor) {
        v1::DenseRange* const range = request.add_ranges();
        range->set_tensor(place.tensor);
        range->set_offset_bytes(uint64_t{place.tile} * kTileElements * width);
      }
      v1::DenseRange* const range = request.mutable_ranges(request.ranges_size() - 1);
      range->set_size_bytes(range->size_bytes() + context_.manifest->TileBytes(place));
    }
    grpc_context_ = std::make_unique<grpc::ClientContext>();
    Connection::SetDeadline(grpc_context_.get(), context_.deadline);
    stream_ = context_.connection.stub().ReadDense(grpc_context_.get(), request);
    response_.Clear();
    next_ = first;
    return absl::OkStatus();
  }

  absl::Status NextMessage(TilePlace wanted) {
    if (stream_->Read(&response_)) return absl::OkStatus();
    const absl::Status status = context_.connection.FromGrpc(stream_->Finish());
    stream_.reset();
    if (!status.ok()) return status;
    return absl::DataLossError(absl::StrCat("the server's stream ended before tile ", wanted.tile,
                                            " of tensor ", wanted.tensor));
  }

  void Stop() {
    if (stream_ == nullptr) return;
    grpc_context_->TryCancel();
    static_cast<void>(stream_->Finish());
    stream_.reset();
  }

  const DenseContext& context_;
  const std::vector<TilePlace> places_;
  std::unique_ptr<grpc::ClientContext> grpc_context_;
  std::unique_ptr<grpc::ClientReader<v1::ReadDenseResponse>> stream_;
  v1::ReadDenseResponse response_;
  TilePlace next_;  // the stream has this tile and those behind it
};

class ServedDense final : public DenseSource {
 public:
  explicit ServedDense(DenseContext context) : context_(std::move(context)) {}
  absl::StatusOr<std::unique_ptr<SpanTiles>> OpenSpan(uint32_t span) const override {
    return std::make_unique<ServedTiles>(context_, span);
  }

 private:
  const DenseContext context_;
};

}  // namespace

std::unique_ptr<DenseSource> MakeServedDense(const Connection& connection,
                                             std::shared_ptr<const Manifest> manifest,
                                             const VersionInfo& version, Deadline deadline,
                                             std::vector<ElementRange> held) {
  return std::make_unique<ServedDense>(DenseContext{connection, std::move(manifest),
                                                    ToProto(version.version, version.chain_digest),
                                                    deadline, std::move(held)});
}

}  // namespace wstore::client
