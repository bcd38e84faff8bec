#include "store/checkpoint/posix_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/strings.h"

namespace wstore {

PosixFile::~PosixFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

PosixFile::PosixFile(PosixFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

PosixFile& PosixFile::operator=(PosixFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

absl::StatusOr<PosixFile> PosixFile::OpenForRead(const std::string& path) {
  // O_NONBLOCK: opening a pipe that stands at the path must not wait for a writer.
  PosixFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), path);
  if (file.descriptor() < 0) return ErrnoStatus(errno, path, "cannot be opened");
  struct stat info {};
  if (fstat(file.descriptor(), &info) != 0) return ErrnoStatus(errno, path, "cannot be examined");
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  return file;
}

absl::Status PosixFile::ReadAt(uint64_t offset_bytes, absl::Span<uint8_t> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = pread(descriptor_, out.data() + done, out.size() - done,
                              static_cast<off_t>(offset_bytes + done));
    if (got < 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      const absl::Status status = ErrnoStatus(error, path_, "cannot be read");
      const bool is_lost = error == EIO || error == ESTALE;
      return is_lost ? absl::DataLossError(status.message()) : status;
    }
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(path_, ": was cut while open: bytes ", offset_bytes,
                                              " to ", offset_bytes + out.size(),
                                              " were asked for, it ends at ", offset_bytes + done));
    }
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status PosixFile::WriteAt(uint64_t offset_bytes, absl::Span<const uint8_t> data) const {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t put = pwrite(descriptor_, data.data() + done, data.size() - done,
                               static_cast<off_t>(offset_bytes + done));
    if (put < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(
          errno, path_,
          absl::StrCat("cannot write ", data.size(), " bytes at byte ", offset_bytes));
    }
    done += static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

absl::Status PosixFile::Sync() const {
  if (fsync(descriptor_) != 0) return ErrnoStatus(errno, path_, "cannot be synced");
  return absl::OkStatus();
}

absl::Status ErrnoStatus(int error, std::string_view path, std::string_view what) {
  return absl::ErrnoToStatus(error, absl::StrCat(ToAbsl(path), ": ", ToAbsl(what)));
}

}  // namespace wstore
