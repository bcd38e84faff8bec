// Files by descriptor, with errors that name them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace wstore {

// An open descriptor and the path for messages. Move-only; closes itself.
class PosixFile {
 public:
  PosixFile() = default;
  PosixFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  ~PosixFile();
  PosixFile(PosixFile&& other) noexcept;
  PosixFile& operator=(PosixFile&& other) noexcept;

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }

  // Opens a regular file, through symbolic links.
  //   kNotFound: no such file; kInvalidArgument: not a regular file; others as the system says
  static absl::StatusOr<PosixFile> OpenForRead(const std::string& path);

  // All of `out` from `offset_bytes`. Thread-safe.
  //   kDataLoss: the file ends before, or the disk fails
  absl::Status ReadAt(uint64_t offset_bytes, absl::Span<uint8_t> out) const;

  // All of `data` at `offset_bytes`. Thread-safe.
  //   kResourceExhausted: no space
  absl::Status WriteAt(uint64_t offset_bytes, absl::Span<const uint8_t> data) const;

  // Makes the file (or the directory) durable.
  absl::Status Sync() const;

 private:
  int descriptor_ = -1;
  std::string path_;
};

// The status of errno, its message beginning with "PATH: what".
absl::Status ErrnoStatus(int error, std::string_view path, std::string_view what);

}  // namespace wstore
