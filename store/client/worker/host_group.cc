// Ranks as processes of one host: a directory with a file for each.
//
//   rank-N          what the rank shows, mapped by all: a sequence number, a length, bytes
//   rank-N.NAME     what it gave
//
// A rank holds a lock on its file as long as it lives, and a shared one on the directory. The
// sequence number is odd while the bytes are written; a reader that finds it odd or changed reads
// again.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "store/client/worker/host_folder.h"
#include "wstore/instance_group.h"

namespace wstore {
namespace {

constexpr int64_t kAliveCheckMicros = 50'000;
constexpr size_t kWords = InstanceGroup::kMaxShownBytes / sizeof(uint64_t);

// In shared memory, all zero at first. Words, so that every access is atomic.
struct Slot {
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> size_bytes;
  std::atomic<uint64_t> words[kWords];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

absl::Status SystemError(const std::string& what) { return absl::ErrnoToStatus(errno, what); }

// One rank's file, mapped.
class SlotFile {
 public:
  SlotFile() = default;
  SlotFile(SlotFile&& other) noexcept { *this = std::move(other); }
  SlotFile& operator=(SlotFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~SlotFile() {
    if (slot_ != nullptr) munmap(slot_, sizeof(Slot));
    if (descriptor_ >= 0) close(descriptor_);
  }

  absl::Status Open(const std::string& path) {
    descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (descriptor_ < 0) return SystemError(absl::StrCat("cannot open ", path));
    struct stat info = {};
    if (fstat(descriptor_, &info) != 0) return SystemError(path);
    if (info.st_size < static_cast<off_t>(sizeof(Slot)) &&
        ftruncate(descriptor_, sizeof(Slot)) != 0) {
      return SystemError(absl::StrCat("cannot enlarge ", path));
    }
    void* const memory =
        mmap(nullptr, sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (memory == MAP_FAILED) return SystemError(absl::StrCat("cannot map ", path));
    slot_ = static_cast<Slot*>(memory);
    return absl::OkStatus();
  }

  // Locks of descriptors, not of processes: they go with this file, and with the process.
  bool Lock() { return SetLock(F_OFD_SETLK); }
  bool IsLockedByAnother() const {
    struct flock lock = WholeFile();
    return fcntl(descriptor_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  }

  void Write(std::string_view bytes) {
    // Whoever reads one of the words also sees this.
    slot_->sequence.fetch_add(1, std::memory_order_acq_rel);
    slot_->size_bytes.store(bytes.size(), std::memory_order_release);
    for (size_t i = 0; i * sizeof(uint64_t) < bytes.size(); ++i) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i * sizeof(word),
                  std::min(sizeof(word), bytes.size() - i * sizeof(word)));
      slot_->words[i].store(word, std::memory_order_release);
    }
    slot_->sequence.fetch_add(1, std::memory_order_release);
  }

  // After the death of a writer in the middle of it, the number is odd.
  void Reset() {
    if (slot_->sequence.load() % 2 == 1) slot_->sequence.fetch_add(1);
    Write("");
  }

  // Nothing: it is being written.
  std::optional<std::string> Read() const {
    const uint64_t before = slot_->sequence.load(std::memory_order_acquire);
    const uint64_t size = slot_->size_bytes.load(std::memory_order_acquire);
    if (before % 2 == 1 || size > InstanceGroup::kMaxShownBytes) return std::nullopt;
    std::string bytes(kWords * sizeof(uint64_t), '\0');
    for (size_t i = 0; i * sizeof(uint64_t) < size; ++i) {
      const uint64_t word = slot_->words[i].load(std::memory_order_acquire);
      std::memcpy(bytes.data() + i * sizeof(word), &word, sizeof(word));
    }
    if (slot_->sequence.load(std::memory_order_relaxed) != before) return std::nullopt;
    bytes.resize(size);
    return bytes;
  }

 private:
  static struct flock WholeFile() {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    return lock;
  }
  bool SetLock(int command) {
    struct flock lock = WholeFile();
    return fcntl(descriptor_, command, &lock) == 0;
  }

  int descriptor_ = -1;
  Slot* slot_ = nullptr;
};

class HostGroup final : public InstanceGroup {
 public:
  HostGroup(client::HostFolder folder, std::string directory, uint32_t rank, uint32_t ranks)
      : folder_(std::move(folder)), directory_(std::move(directory)), rank_(rank), mates_(ranks) {}
  ~HostGroup() override {
    mates_[rank_].file.Reset();
    RemoveGiven();
  }

  absl::Status Open() {
    for (uint32_t i = 0; i < ranks(); ++i) RETURN_IF_ERROR(mates_[i].file.Open(Path(i)));
    if (!mates_[rank_].file.Lock()) {
      return absl::AlreadyExistsError(
          absl::StrCat("another process lives as rank ", rank_, " in ", directory_));
    }
    mates_[rank_].file.Reset();
    RemoveGiven();
    return absl::OkStatus();
  }

  uint32_t rank() const override { return rank_; }
  uint32_t ranks() const override { return static_cast<uint32_t>(mates_.size()); }

  void Show(std::string_view bytes) override { mates_[rank_].file.Write(bytes); }

  std::vector<std::string> Look() override {
    const int64_t now = SystemClock().NowMonotonicMicros();
    std::vector<std::string> shown(mates_.size());
    for (uint32_t i = 0; i < mates_.size(); ++i) {
      Mate& mate = mates_[i];
      if (i != rank_ && now >= mate.check_at) {
        mate.check_at = now + kAliveCheckMicros;
        mate.lives = mate.file.IsLockedByAnother();
      }
      // What was seen last counts while the next is being written.
      if (std::optional<std::string> bytes = mate.file.Read()) mate.seen = *std::move(bytes);
      if (i == rank_ || mate.lives) shown[i] = mate.seen;
    }
    return shown;
  }

  absl::Status Give(const std::string& name, std::string_view bytes) override {
    const std::string path = absl::StrCat(Path(rank_), ".", name);
    const std::string temporary = absl::StrCat(path, ".new");
    {
      std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
      file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      file.flush();
      if (!file.good()) return SystemError(absl::StrCat("cannot write ", temporary));
    }
    if (rename(temporary.c_str(), path.c_str()) != 0) return SystemError(path);
    return absl::OkStatus();
  }

  std::optional<std::string> Take(uint32_t rank, const std::string& name) override {
    std::ifstream file(absl::StrCat(Path(rank), ".", name), std::ios::binary);
    if (!file.is_open()) return std::nullopt;
    return std::string{std::istreambuf_iterator<char>(file), {}};
  }

  bool NotifyOnChange(std::function<void()>) override { return false; }

 private:
  struct Mate {
    SlotFile file;
    bool lives = false;
    int64_t check_at = 0;
    std::string seen;
  };

  std::string Path(uint32_t rank) const { return absl::StrCat(directory_, "/rank-", rank); }

  void RemoveGiven() const {
    std::error_code error;
    std::vector<std::filesystem::path> mine;
    const std::string prefix = absl::StrCat("rank-", rank_, ".");
    for (const auto& entry : std::filesystem::directory_iterator(directory_, error)) {
      if (absl::StartsWith(entry.path().filename().string(), prefix)) mine.push_back(entry.path());
    }
    for (const auto& path : mine) std::filesystem::remove(path, error);
  }

  const client::HostFolder folder_;
  const std::string directory_;
  const uint32_t rank_;
  std::vector<Mate> mates_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<InstanceGroup>> OpenHostGroup(const std::string& directory,
                                                             uint32_t rank, uint32_t ranks) {
  if (rank >= ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " of ", ranks, " ranks; ranks count from 0"));
  }
  ASSIGN_OR_RETURN(client::HostFolder folder, client::HostFolder::Hold(directory));
  auto group = std::make_unique<HostGroup>(std::move(folder), directory, rank, ranks);
  RETURN_IF_ERROR(group->Open());
  return group;
}

}  // namespace wstore
