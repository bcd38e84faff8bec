// Head's dense bits in host memory, so that a publish onto a long chain need not compose it onto
// the base first.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "wstore/manifest.h"
#include "wstore/patch_source.h"
#include "wstore/types.h"

namespace wstore {

// Where an image gets its bits from. Called by the image's thread.
struct ImageSources {
  std::function<absl::StatusOr<std::unique_ptr<DenseSource>>(VersionId)> materialise;
  std::function<absl::StatusOr<std::unique_ptr<PatchSource>>(VersionId from, VersionId to)>
      difference;
  // Whether these bits have the version's recorded sums. Asked once the image is built.
  std::function<absl::Status(VersionId, const DenseSource&)> check;
};

// A thread of its own builds the image and moves it after head. Whatever goes wrong (no memory, a
// base that changed, damage) leaves no image until head moves again: an image makes things faster,
// and nothing depends on it. Thread-safe.
class HeadImage {
 public:
  // `manifest` must outlive it. Does nothing before the first Follow.
  HeadImage(const Manifest& manifest, ImageSources sources);
  // Waits for the thread, a span's work at most.
  ~HeadImage();

  // Head is now this version. Does not wait.
  void Follow(VersionId head);

  // The bits of a version; nullptr if it is not the one that the image holds. The image is not
  // moved as long as the result exists.
  std::unique_ptr<DenseSource> Read(VersionId version);

  std::optional<VersionId> version() const;

 private:
  class View;
  class Reader;

  void Run();
  // Takes the image to a version. No reader is there. The image holds nothing unless it is OK.
  absl::Status Move(std::optional<VersionId> from, VersionId to);
  absl::Status Build(VersionId version);
  bool is_stopping() const;
  uint8_t* At(TilePlace place) const;

  const Manifest& manifest_;
  const ImageSources sources_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<VersionId> target_;   // where head is, if that has not been seen to
  std::optional<VersionId> version_;  // what the image holds
  int readers_ = 0;
  bool stopping_ = false;
  // By tensor. Written by the thread while version_ is empty.
  std::vector<std::unique_ptr<uint8_t[]>> tensors_;

  std::thread thread_;
};

}  // namespace wstore
