#include "store/staged_content.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace wstore {
namespace {

absl::Status FileError(int error, const char* what, const std::string& directory) {
  const std::string text =
      absl::StrCat(what, " a file for staged chunks in ", directory, ": ", strerror(error));
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return full ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

// A file that goes with its descriptor.
absl::StatusOr<int> OpenNameless(const std::string& directory) {
  const int file = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT) {
    return FileError(errno, "opening", directory);
  }
  // A file system that cannot do that.
  std::string name = absl::StrCat(directory, "/.incoming-XXXXXX");
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named < 0) return FileError(errno, "opening", directory);
  unlink(name.c_str());
  return named;
}

int WriteAll(int file, std::string_view bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : EIO;
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return 0;
}

std::vector<TensorRange> TensorsOf(const ChunkView& chunk) {
  std::vector<TensorRange> ranges;
  for (const EncodedTile& tile : chunk.tiles()) {
    const TensorIndex tensor = tile.place.tensor;
    if (ranges.empty() || ranges.back().end < tensor) {
      ranges.push_back({tensor, tensor + 1});
    } else {
      ranges.back().end = tensor + 1;
    }
  }
  ranges.shrink_to_fit();
  return ranges;
}

bool SameSummary(const ContributorSummary& a, const ContributorSummary& b) {
  return a.chunks == b.chunks && a.digest == b.digest && a.sums == b.sums;
}

}  // namespace

struct StagedContent::Contributor {
  struct Chunk {
    ChunkKey key;
    uint64_t offset = 0;
    uint32_t size_bytes = 0;
    std::vector<TensorRange> tensors;  // of its tiles
  };

  ~Contributor() {
    if (file >= 0) close(file);
  }

  mutable std::mutex mutex;
  int file = -1;
  uint64_t end = 0;  // of what is in the file
  uint64_t elements = 0;
  std::vector<Chunk> chunks;  // by sequence number, keys ascending
  std::optional<TilePlace> last_tile;
  std::shared_ptr<const ContributorSummary> summary;  // null: it has not finished
};

// The chunks of one contributor, span by span.
class StagedContent::Source final : public PatchSource {
 public:
  Source(const StagedContent& content, const Contributor& contributor)
      : content_(content), contributor_(contributor) {}

  absl::Status ReadSpan(uint32_t span,
                        const std::function<absl::Status(const ChunkView&)>& visit) const override {
    const auto& chunks = contributor_.chunks;
    const auto first = std::lower_bound(
        chunks.begin(), chunks.end(), span,
        [](const Contributor::Chunk& chunk, uint32_t value) { return chunk.key.span < value; });
    for (auto it = first; it != chunks.end() && it->key.span == span; ++it) {
      ASSIGN_OR_RETURN(
          const std::string bytes,
          content_.ReadChunk(contributor_, static_cast<uint64_t>(it - chunks.begin())));
      ASSIGN_OR_RETURN(const ChunkView chunk, ChunkView::Parse(bytes, content_.manifest_));
      RETURN_IF_ERROR(visit(chunk));
    }
    return absl::OkStatus();
  }

 private:
  const StagedContent& content_;
  const Contributor& contributor_;
};

StagedContent::StagedContent(const Manifest& manifest, std::string directory,
                             TransactionNumber transaction, uint32_t contributors,
                             const Limits& limits)
    : manifest_(manifest),
      directory_(std::move(directory)),
      transaction_(transaction),
      limits_(limits) {
  for (uint32_t i = 0; i < contributors; ++i) {
    contributors_.push_back(std::make_unique<Contributor>());
  }
}

StagedContent::~StagedContent() = default;

absl::StatusOr<StagedContent::Contributor*> StagedContent::Find(uint32_t contributor) const {
  if (contributor < contributors_.size()) return contributors_[contributor].get();
  return absl::InvalidArgumentError(absl::StrCat("contributor ", contributor, " of transaction ",
                                                 transaction_.value(), "; it has ",
                                                 contributors_.size(), ", numbered from 0"));
}

absl::Status StagedContent::CheckNext(const Contributor& contributor, uint32_t number,
                                      uint64_t sequence, std::string_view bytes,
                                      const ChunkView& chunk) const {
  const std::string name = absl::StrCat("chunk ", sequence, " of contributor ", number);
  const ChunkHeader& header = chunk.header();
  if (header.transaction != transaction_ || header.key.contributor != number) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " says transaction ", header.transaction.value(), ", contributor ",
                     header.key.contributor, "; this is transaction ", transaction_.value()));
  }
  const bool starts_span =
      contributor.chunks.empty() || contributor.chunks.back().key.span < header.key.span;
  const uint32_t part = starts_span ? 0 : contributor.chunks.back().key.part + 1u;
  const bool in_order = starts_span || contributor.chunks.back().key.span == header.key.span;
  if (!in_order || header.key.part != part ||
      (contributor.last_tile && chunk.tiles().front().place <= *contributor.last_tile)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " (span ", header.key.span, ", part ", header.key.part,
                     ") does not follow the one before: spans and tiles ascend, and the parts of a "
                     "span count from 0"));
  }
  if (contributor.chunks.size() >= limits_.max_chunks ||
      size_bytes_ + bytes.size() > limits_.max_size_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name, " is past the limits of ", limits_.max_chunks,
                     " chunks a contributor and ", limits_.max_size_bytes, " bytes in all"));
  }
  return absl::OkStatus();
}

absl::Status StagedContent::Put(uint32_t contributor, uint64_t sequence, std::string_view bytes) {
  ASSIGN_OR_RETURN(const bool is_new, Add(contributor, sequence, bytes));
  if (is_new) Announce();
  return absl::OkStatus();
}

// False: it was there.
absl::StatusOr<bool> StagedContent::Add(uint32_t contributor, uint64_t sequence,
                                        std::string_view bytes) {
  ASSIGN_OR_RETURN(Contributor* const found, Find(contributor));
  ASSIGN_OR_RETURN(const ChunkView chunk, ChunkView::Parse(bytes, manifest_));
  const std::lock_guard<std::mutex> lock(found->mutex);
  if (sequence < found->chunks.size()) {
    ASSIGN_OR_RETURN(const std::string before, ReadChunk(*found, sequence));
    if (before == bytes) return false;
    return absl::AlreadyExistsError(absl::StrCat("chunk ", sequence, " of contributor ",
                                                 contributor, " was sent before, and was another"));
  }
  if (found->summary && sequence >= found->summary->chunks) {
    return absl::FailedPreconditionError(
        absl::StrCat("contributor ", contributor, " has finished with ", found->summary->chunks,
                     " chunks; chunk ", sequence, " comes too late"));
  }
  if (sequence > found->chunks.size()) {
    return absl::OutOfRangeError(absl::StrCat("chunk ", sequence, " of contributor ", contributor,
                                              "; the next one is ", found->chunks.size()));
  }
  RETURN_IF_ERROR(CheckNext(*found, contributor, sequence, bytes, chunk));
  if (found->file < 0) {
    ASSIGN_OR_RETURN(found->file, OpenNameless(directory_));
  }
  if (const int error = WriteAll(found->file, bytes, found->end); error != 0) {
    return FileError(error, "writing", directory_);
  }
  found->chunks.push_back(
      {chunk.header().key, found->end, static_cast<uint32_t>(bytes.size()), TensorsOf(chunk)});
  found->end += bytes.size();
  found->elements += chunk.changed();
  found->last_tile = chunk.tiles().back().place;
  size_bytes_ += bytes.size();
  return true;
}

absl::StatusOr<uint64_t> StagedContent::next_sequence(uint32_t contributor) const {
  ASSIGN_OR_RETURN(const Contributor* const found, Find(contributor));
  const std::lock_guard<std::mutex> lock(found->mutex);
  return found->chunks.size();
}

absl::Status StagedContent::Finish(uint32_t contributor, ContributorSummary summary) {
  return Settle(contributor, std::move(summary), /*chunks_follow=*/false);
}

absl::Status StagedContent::Declare(uint32_t contributor, ContributorSummary summary) {
  return Settle(contributor, std::move(summary), /*chunks_follow=*/true);
}

absl::Status StagedContent::Settle(uint32_t contributor, ContributorSummary summary,
                                   bool chunks_follow) {
  ASSIGN_OR_RETURN(Contributor* const found, Find(contributor));
  const std::lock_guard<std::mutex> lock(found->mutex);
  if (found->summary) {
    if (SameSummary(*found->summary, summary)) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat("contributor ", contributor, " has finished with another summary"));
  }
  const bool is_possible = summary.chunks == found->chunks.size() ||
                           (chunks_follow && summary.chunks > found->chunks.size());
  if (!is_possible) {
    return absl::InvalidArgumentError(absl::StrCat("contributor ", contributor, " finishes with ",
                                                   summary.chunks, " chunks, but ",
                                                   found->chunks.size(), " have come"));
  }
  if (summary.sums && !summary.sums->empty() && summary.sums->back().tensor >= manifest_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("contributor ", contributor, " has sums of tensor ",
                     summary.sums->back().tensor, "; the base has ", manifest_.size()));
  }
  found->summary = std::make_shared<const ContributorSummary>(std::move(summary));
  return absl::OkStatus();
}

bool StagedContent::is_whole(uint32_t contributor) const {
  const Contributor& found = *contributors_[contributor];
  const std::lock_guard<std::mutex> lock(found.mutex);
  return found.summary && found.summary->chunks == found.chunks.size();
}

std::shared_ptr<const ContributorSummary> StagedContent::summary(uint32_t contributor) const {
  const absl::StatusOr<Contributor*> found = Find(contributor);
  if (!found.ok()) return nullptr;
  const std::lock_guard<std::mutex> lock((*found)->mutex);
  return (*found)->summary;
}

absl::StatusOr<std::string> StagedContent::ReadChunk(const Contributor& contributor,
                                                     uint64_t sequence) const {
  const Contributor::Chunk& chunk = contributor.chunks[sequence];
  std::string bytes(chunk.size_bytes, '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = pread(contributor.file, bytes.data() + done, bytes.size() - done,
                              static_cast<off_t>(chunk.offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return FileError(got < 0 ? errno : EIO, "reading", directory_);
    done += static_cast<size_t>(got);
  }
  return bytes;
}

absl::StatusOr<bool> StagedContent::Read(
    uint32_t contributor, uint64_t sequence,
    const std::function<absl::Status(std::string_view)>& visit) const {
  ASSIGN_OR_RETURN(const Contributor* const found, Find(contributor));
  std::string bytes;
  {
    const std::lock_guard<std::mutex> lock(found->mutex);
    if (sequence >= found->chunks.size()) return false;
    ASSIGN_OR_RETURN(bytes, ReadChunk(*found, sequence));
  }
  RETURN_IF_ERROR(visit(bytes));
  return true;
}

std::optional<bool> StagedContent::HasAny(uint32_t contributor, uint64_t sequence,
                                          const TensorSet& tensors) const {
  const Contributor& found = *contributors_[contributor];
  const std::lock_guard<std::mutex> lock(found.mutex);
  if (sequence >= found.chunks.size()) return std::nullopt;
  const auto& ranges = found.chunks[sequence].tensors;
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const TensorRange& range) { return tensors.HasAnyOf(range); });
}

std::unique_ptr<PatchSource> StagedContent::Patches(uint32_t contributor) const {
  WSTORE_CHECK(contributor < contributors_.size());
  return std::make_unique<Source>(*this, *contributors_[contributor]);
}

uint64_t StagedContent::elements(uint32_t contributor) const {
  const Contributor& found = *contributors_[contributor];
  const std::lock_guard<std::mutex> lock(found.mutex);
  return found.elements;
}

void StagedContent::Discard() {
  discarded_ = true;
  Announce();
}

uint64_t StagedContent::Watch(std::function<void()> changed) {
  const std::lock_guard<std::mutex> lock(watchers_mutex_);
  watchers_.emplace(next_watch_, std::move(changed));
  return next_watch_++;
}

void StagedContent::Unwatch(uint64_t watch) {
  const std::lock_guard<std::mutex> lock(watchers_mutex_);
  watchers_.erase(watch);
}

void StagedContent::Announce() {
  const std::lock_guard<std::mutex> lock(watchers_mutex_);
  for (const auto& [watch, changed] : watchers_) changed();
}

}  // namespace wstore
