// The demonstration: a fleet on this machine that is updated, loses a rank, and is rolled back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace wstore::demo {

struct StoryOptions {
  std::string program;    // the wstore command
  std::string directory;  // empty and writable; everything stays there
  // Told of each step when it is done: the time since the start, and a line.
  std::function<void(int64_t micros, const std::string& text)> tell;
};

// Takes about half a minute. Everything that it says was checked; an error is the first thing that
// was not as it must be.
absl::Status TellStory(const StoryOptions& options);

}  // namespace wstore::demo
