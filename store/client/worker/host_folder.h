// The folder in which the ranks of one instance meet, held as long as one of them lives.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace wstore::client {

// A shared lock on a folder, which goes with this object and with the process. Move-only.
class HostFolder {
 public:
  // Makes the folder, with mode 0700, if it is not there.
  //   kPermissionDenied: it is no directory that this user alone can write to
  //   else, as the system says
  static absl::StatusOr<HostFolder> Hold(const std::string& path);

  HostFolder() = default;
  HostFolder(HostFolder&& other) noexcept;
  HostFolder& operator=(HostFolder&& other) noexcept;
  ~HostFolder();

 private:
  explicit HostFolder(int descriptor) : descriptor_(descriptor) {}

  int descriptor_ = -1;
};

}  // namespace wstore::client
