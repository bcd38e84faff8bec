#include "store/checkpoint/staging_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace wstore {
namespace {

constexpr std::string_view kPrefix = ".wstore-export-";
constexpr std::string_view kPattern = ".wstore-export-XXXXXX";

// Makes a newly created directory's own entry durable.
absl::Status SyncParent(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const PosixFile directory(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), parent);
  if (directory.descriptor() < 0) return ErrnoStatus(errno, parent, "cannot be opened");
  return directory.Sync();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StagingDirectory>> StagingDirectory::Create(
    const std::string& target) {
  auto staging = std::unique_ptr<StagingDirectory>(new StagingDirectory);
  constexpr mode_t kMode = 0777;
  const bool created = mkdir(target.c_str(), kMode) == 0;
  if (!created && errno != EEXIST) return ErrnoStatus(errno, target, "cannot be created");
  std::error_code error;
  const std::filesystem::path resolved = std::filesystem::canonical(target, error);
  if (error) return ErrnoStatus(error.value(), target, "cannot be resolved");
  staging->target_ = resolved.string();
  staging->created_target_ = created;
  if (created) RETURN_IF_ERROR(SyncParent(staging->target_));
  staging->directory_ = PosixFile(
      open(staging->target_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), staging->target_);
  if (staging->directory_.descriptor() < 0) {
    return ErrnoStatus(errno, staging->target_, "cannot be opened as a directory");
  }
  RETURN_IF_ERROR(staging->Lock());
  std::string path =
      absl::StrCat(staging->target_, "/", absl::string_view(kPattern.data(), kPattern.size()));
  if (mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, path, "cannot be created");
  staging->staging_path_ = path;
  return staging;
}

StagingDirectory::~StagingDirectory() {
  std::error_code ignored;
  if (!staging_path_.empty()) std::filesystem::remove_all(staging_path_, ignored);
  // Fails, as it should, if anybody else has put something there.
  if (created_target_ && !is_published_) rmdir(target_.c_str());
}

absl::Status StagingDirectory::Lock() {
  if (flock(directory_.descriptor(), LOCK_EX | LOCK_NB) == 0) {
    RemoveLeftovers();
    return absl::OkStatus();
  }
  if (errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(absl::StrCat(
        target_, ": another export into this directory is running; wait for it to end"));
  }
  // Some network file systems have no locks. Then nothing is known about leftovers either.
  return absl::OkStatus();
}

void StagingDirectory::RemoveLeftovers() {
  std::error_code ignored;
  std::vector<std::filesystem::path> leftovers;
  for (const auto& entry : std::filesystem::directory_iterator(target_, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool is_ours = name.size() == kPattern.size() && name.starts_with(kPrefix);
    if (is_ours && entry.symlink_status(ignored).type() == std::filesystem::file_type::directory) {
      leftovers.push_back(entry.path());
    }
  }
  for (const std::filesystem::path& path : leftovers) std::filesystem::remove_all(path, ignored);
}

absl::StatusOr<std::vector<std::string>> StagingDirectory::ListTarget() const {
  std::error_code error;
  std::vector<std::string> names;
  for (auto it = std::filesystem::directory_iterator(target_, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return ErrnoStatus(error.value(), target_, "cannot be listed");
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<PosixFile> StagingDirectory::AddFile(const std::string& name, uint64_t size_bytes) {
  const std::string path = absl::StrCat(staging_path_, "/", name);
  constexpr mode_t kMode = 0666;
  PosixFile file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kMode), path);
  if (file.descriptor() < 0) return ErrnoStatus(errno, path, "cannot be created");
  const auto size = static_cast<off_t>(size_bytes);
  int reserved = 0;
  while (size > 0 && (reserved = fallocate(file.descriptor(), 0, 0, size)) != 0 && errno == EINTR) {
  }
  // Where space cannot be reserved, writing finds out.
  if (reserved != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
    reserved = ftruncate(file.descriptor(), size);
  }
  if (reserved != 0) {
    return ErrnoStatus(
        errno, target_,
        absl::StrCat("no room for '", name, "', which needs ", size_bytes, " bytes"));
  }
  return file;
}

absl::Status StagingDirectory::RenameIntoPlace(const std::string& name) {
  const std::string from = absl::StrCat(staging_path_, "/", name);
  const std::string to = absl::StrCat(target_, "/", name);
  if (rename(from.c_str(), to.c_str()) != 0)
    return ErrnoStatus(errno, to, "cannot be put in place");
  is_published_ = true;
  return absl::OkStatus();
}

absl::Status StagingDirectory::Publish(const std::vector<std::string>& names,
                                       const std::string& last, bool retract_last) {
  if (retract_last) {
    const std::string path = absl::StrCat(target_, "/", last);
    if (unlink(path.c_str()) == 0) {
      RETURN_IF_ERROR(directory_.Sync());
    } else if (errno != ENOENT) {
      return ErrnoStatus(errno, path, "cannot be removed");
    }
  }
  for (const std::string& name : names) RETURN_IF_ERROR(RenameIntoPlace(name));
  RETURN_IF_ERROR(directory_.Sync());
  RETURN_IF_ERROR(RenameIntoPlace(last));
  return directory_.Sync();
}

}  // namespace wstore
