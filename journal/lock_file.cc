#include "journal/lock_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace wstore::journal {
namespace {

// Field 22 of /proc/PID/stat: when the process started, in ticks since boot. With it a pid that was
// used again is told from the one that was written down. Empty if there is no such process.
std::string StartTime(const std::string& pid) {
  std::ifstream stat("/proc/" + pid + "/stat");
  const std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
  // The second field is a name in parentheses that may hold anything; the third follows the last
  // ')'.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return "";
  const std::vector<std::string> fields =
      absl::StrSplit(text.substr(name_end + 1), ' ', absl::SkipEmpty());
  constexpr size_t kStartTime = 22 - 3;
  return fields.size() > kStartTime ? fields[kStartTime] : "";
}

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.data();
}

// What the holder wrote: "pid PID start TICKS host NAME\n".
std::string DescribeHolder(int descriptor) {
  std::array<char, 512> buffer{};
  const ssize_t size = pread(descriptor, buffer.data(), buffer.size(), 0);
  const std::vector<std::string> words =
      absl::StrSplit(std::string(buffer.data(), size > 0 ? static_cast<size_t>(size) : 0),
                     absl::ByAnyChar(" \n"), absl::SkipEmpty());
  if (words.size() != 6 || words[0] != "pid") return "another process";
  if (words[5] != HostName()) return absl::StrCat("process ", words[1], " on host ", words[5]);
  if (StartTime(words[1]) == words[3]) return absl::StrCat("process ", words[1]);
  return absl::StrCat("process ", words[1],
                      " (which has ended; a process that it started holds the lock)");
}

}  // namespace

absl::StatusOr<std::unique_ptr<LockFile>> LockFile::Acquire(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    return absl::UnavailableError(absl::StrCat("opening ", path, ": ", std::strerror(errno)));
  }
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  // Locks of the open file description: unlike those of a process, they also exclude a second open
  // in this process, and closing some other descriptor of the file does not drop them.
  if (fcntl(descriptor, F_OFD_SETLK, &lock) != 0) {
    const int error = errno;
    const std::string why = error == EAGAIN || error == EACCES
                                ? absl::StrCat("is held by ", DescribeHolder(descriptor),
                                               ", which has the journal open for writing")
                                : absl::StrCat("cannot be taken: ", std::strerror(error));
    close(descriptor);
    return absl::UnavailableError(absl::StrCat("the lock ", path, " ", why));
  }
  // For the message of those who are refused only: on a full disk it may stay empty.
  const std::string pid = absl::StrCat(getpid());
  const std::string text =
      absl::StrCat("pid ", pid, " start ", StartTime(pid), " host ", HostName(), "\n");
  if (ftruncate(descriptor, 0) == 0) {
    [[maybe_unused]] const ssize_t written = pwrite(descriptor, text.data(), text.size(), 0);
  }
  return std::unique_ptr<LockFile>(new LockFile(descriptor));
}

LockFile::~LockFile() { close(descriptor_); }

}  // namespace wstore::journal
