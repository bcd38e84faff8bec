#include "store/head_image.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "common/status_macros.h"
#include "wstore/chunk.h"

namespace wstore {

// Reads the image.
class HeadImage::View : public DenseSource {
 public:
  explicit View(const HeadImage& image) : image_(image) {}
  absl::StatusOr<std::unique_ptr<SpanTiles>> OpenSpan(uint32_t) const override {
    return std::make_unique<Tiles>(image_);
  }

 private:
  class Tiles final : public SpanTiles {
   public:
    explicit Tiles(const HeadImage& image) : image_(image) {}
    absl::Status ReadTile(TilePlace place, uint8_t* out) override {
      const Manifest& manifest = image_.manifest_;
      const uint64_t width = manifest.tensor(place.tensor).element_bytes;
      std::memcpy(out, image_.At(place), manifest.TileElements(place) * width);
      return absl::OkStatus();
    }

   private:
    const HeadImage& image_;
  };

  const HeadImage& image_;
};

// Keeps it where it is, too.
class HeadImage::Reader final : public View {
 public:
  explicit Reader(HeadImage* image) : View(*image), image_(image) {}
  ~Reader() override {
    {
      const std::lock_guard<std::mutex> lock(image_->mutex_);
      --image_->readers_;
    }
    image_->changed_.notify_all();
  }

 private:
  HeadImage* const image_;
};

HeadImage::HeadImage(const Manifest& manifest, ImageSources sources)
    : manifest_(manifest), sources_(std::move(sources)), thread_([this] { Run(); }) {}

HeadImage::~HeadImage() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HeadImage::Follow(VersionId head) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    target_ = head;
  }
  changed_.notify_all();
}

std::unique_ptr<DenseSource> HeadImage::Read(VersionId version) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (version_ != version) return nullptr;
  ++readers_;
  return std::make_unique<Reader>(this);
}

std::optional<VersionId> HeadImage::version() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return version_;
}

bool HeadImage::is_stopping() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stopping_;
}

uint8_t* HeadImage::At(TilePlace place) const {
  const uint64_t width = manifest_.tensor(place.tensor).element_bytes;
  return tensors_[place.tensor].get() + place.tile * kTileElements * width;
}

void HeadImage::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (target_.has_value() && readers_ == 0); });
    if (stopping_) return;
    const VersionId to = *std::exchange(target_, std::nullopt);
    const std::optional<VersionId> from = std::exchange(version_, std::nullopt);
    if (from == to) {
      version_ = to;
      continue;
    }
    lock.unlock();
    const bool moved = Move(from, to).ok();
    lock.lock();
    if (moved) {
      version_ = to;
    } else {
      tensors_.clear();
    }
  }
}

absl::Status HeadImage::Move(std::optional<VersionId> from, VersionId to) {
  if (!from.has_value()) return Build(to);
  ASSIGN_OR_RETURN(const std::unique_ptr<PatchSource> difference, sources_.difference(*from, to));
  for (uint32_t span = 0; span < manifest_.spans(); ++span) {
    if (is_stopping()) return absl::CancelledError("the store is being closed");
    RETURN_IF_ERROR(difference->ReadSpan(span, [this](const ChunkView& chunk) {
      for (const EncodedTile& tile : chunk.tiles()) XorTile(tile, At(tile.place));
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

absl::Status HeadImage::Build(VersionId version) {
  tensors_.clear();
  for (const Manifest::Tensor& tensor : manifest_.tensors()) {
    tensors_.emplace_back(new (std::nothrow) uint8_t[tensor.size_bytes()]);
    if (tensors_.back() == nullptr) return absl::ResourceExhaustedError("no memory for an image");
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<DenseSource> dense, sources_.materialise(version));
  for (uint32_t span = 0; span < manifest_.spans(); ++span) {
    if (is_stopping()) return absl::CancelledError("the store is being closed");
    ASSIGN_OR_RETURN(const std::unique_ptr<SpanTiles> tiles, dense->OpenSpan(span));
    const uint64_t end = std::min((uint64_t{span} + 1) * kSpanTiles, manifest_.tiles());
    for (uint64_t tile = uint64_t{span} * kSpanTiles; tile < end; ++tile) {
      const TilePlace place = manifest_.PlaceOf(tile);
      RETURN_IF_ERROR(tiles->ReadTile(place, At(place)));
    }
  }
  return sources_.check(version, View(*this));
}

}  // namespace wstore
