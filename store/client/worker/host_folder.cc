#include "store/client/worker/host_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "wstore/instance_group.h"

namespace wstore {
namespace client {
namespace {

constexpr int kTries = 100;  // each is a sweep that came between

int OpenFolder(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

bool IsStillThere(int descriptor, const std::string& path) {
  struct stat held = {};
  struct stat named = {};
  return fstat(descriptor, &held) == 0 && lstat(path.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

// "rank-0", "rank-12.layout"
bool IsOfRank(std::string_view name) {
  if (!absl::StartsWith(ToAbsl(name), "rank-")) return false;
  name = name.substr(5, name.find('.') - 5);
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// False: it cannot be read, or holds something that no rank made.
bool ListRankFiles(int folder, std::vector<std::string>* names) {
  const int own = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const listing = own >= 0 ? fdopendir(own) : nullptr;
  if (listing == nullptr) {
    if (own >= 0) close(own);
    return false;
  }
  bool all_of_ranks = true;
  while (const dirent* const entry = readdir(listing)) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    all_of_ranks = all_of_ranks && IsOfRank(name);
    names->push_back(name);
  }
  closedir(listing);
  return all_of_ranks;
}

// Whether a process has the lock of a rank's file.
bool IsLive(int folder, const std::string& name) {
  const int file = openat(folder, name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return true;  // not known
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool is_free = fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
  close(file);
  return !is_free;
}

// The folder is this user's, and nobody holds it: `folder` has it alone.
bool RemoveDead(int folder, const std::string& path) {
  struct stat info = {};
  if (fstat(folder, &info) != 0 || info.st_uid != geteuid()) return false;
  if (flock(folder, LOCK_EX | LOCK_NB) != 0 || !IsStillThere(folder, path)) return false;
  std::vector<std::string> names;
  if (!ListRankFiles(folder, &names)) return false;
  for (const std::string& name : names) {
    if (IsLive(folder, name)) return false;
  }
  for (const std::string& name : names) unlinkat(folder, name.c_str(), 0);
  return rmdir(path.c_str()) == 0;
}

}  // namespace

absl::StatusOr<HostFolder> HostFolder::Hold(const std::string& path) {
  for (int i = 0; i < kTries; ++i) {
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
    }
    HostFolder folder(OpenFolder(path));
    if (folder.descriptor_ < 0 && errno == ENOENT) continue;
    // In a folder that all users share somebody else may have been first.
    struct stat info = {};
    if (folder.descriptor_ < 0 || fstat(folder.descriptor_, &info) != 0 ||
        info.st_uid != geteuid() || (info.st_mode & 0022) != 0) {
      return absl::PermissionDeniedError(
          absl::StrCat(path, " is not a directory that this user alone can write to"));
    }
    // Waits for a sweep at most, which may have removed it.
    if (flock(folder.descriptor_, LOCK_SH) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot lock ", path));
    }
    if (IsStillThere(folder.descriptor_, path)) return folder;
  }
  return absl::UnavailableError(absl::StrCat(path, " is removed again and again by others"));
}

HostFolder::HostFolder(HostFolder&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

HostFolder& HostFolder::operator=(HostFolder&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

HostFolder::~HostFolder() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace client

size_t SweepHostGroups(const std::string& parent, std::string_view prefix) {
  DIR* const listing = opendir(parent.c_str());
  if (listing == nullptr) return 0;
  std::vector<std::string> paths;
  while (const dirent* const entry = readdir(listing)) {
    const std::string name = entry->d_name;
    if (absl::StartsWith(name, ToAbsl(prefix))) paths.push_back(absl::StrCat(parent, "/", name));
  }
  closedir(listing);
  size_t removed = 0;
  for (const std::string& path : paths) {
    const int folder = client::OpenFolder(path);
    if (folder < 0) continue;
    if (client::RemoveDead(folder, path)) ++removed;
    close(folder);
  }
  return removed;
}

}  // namespace wstore
