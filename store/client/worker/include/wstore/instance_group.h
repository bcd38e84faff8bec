// wstore::InstanceGroup: how the ranks of one instance see each other.
//
// Ranks of an instance must stop at the same step, and start serving only when all of them stand at
// the same version. For that each shows the others a few hundred bytes, all the time, and looks at
// theirs; and hands them its layout when it starts. An engine brings what it has: threads of one
// process and processes of one host are here, others are a key-value store of the engine's launcher
// (such as PyTorch's TCPStore), or a thread that repeats a small all-gather beside the engine's own
// collectives.
//
// Nothing in it is trusted for what memory holds: that is judged by the server. What a rank that
// has died showed must go, at the latest when it is started again.
//
// Threads: one worker's thread calls it. No call waits for another rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace wstore {

class InstanceGroup {
 public:
  static constexpr size_t kMaxShownBytes = 512;

  virtual ~InstanceGroup() = default;
  virtual uint32_t rank() const = 0;
  virtual uint32_t ranks() const = 0;

  // Replaces what this rank shows; at most kMaxShownBytes. Each is seen whole or not at all.
  virtual void Show(std::string_view bytes) = 0;
  // What each rank shows, by rank, this one included. Empty: nothing; it is not there.
  virtual std::vector<std::string> Look() = 0;

  // Hands `bytes` (up to megabytes) to the others under a name, which says what they are (it has a
  // digest in it). Kept until this rank goes.
  virtual absl::Status Give(const std::string& name, std::string_view bytes) = 0;
  // What `rank` gave under that name; nothing: not there (yet).
  virtual std::optional<std::string> Take(uint32_t rank, const std::string& name) = 0;

  // `changed` is called, from any thread, when Look may have another answer. Returns false where
  // that is not known: then Look is asked every few milliseconds.
  virtual bool NotifyOnChange(std::function<void()> changed) = 0;
};

// For ranks that are threads of one process: one group each, in the order of ranks.
std::vector<std::unique_ptr<InstanceGroup>> MakeThreadGroups(uint32_t ranks);

// For ranks that are processes of one host and of one user. They meet in a directory, which is made
// with mode 0700 if it is not there; one on a file system in memory (/dev/shm, /run) is best. Each
// rank has a file there, which it keeps locked as long as it lives; what a dead process showed
// counts as nothing.
//   kInvalidArgument: not rank < ranks
//   kAlreadyExists: another process lives there as this rank
//   kPermissionDenied: no directory, or one that others can write to
//   else, as the system says
absl::StatusOr<std::unique_ptr<InstanceGroup>> OpenHostGroup(const std::string& directory,
                                                             uint32_t rank, uint32_t ranks);

// Removes what groups that were killed have left: the directories in `parent` whose names begin
// with `prefix`, which belong to this user, hold nothing but files of ranks, and in which no
// process lives as a rank. One that a group is being opened in at the same time is made again by
// that. Returns how many went; what cannot be read or removed stays.
size_t SweepHostGroups(const std::string& parent, std::string_view prefix);

}  // namespace wstore
