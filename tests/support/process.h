// Runs a program and tells what came of it.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace wstore::testing {

struct ProcessResult {
  int exit_status = -1;  // 128 + the signal if it was killed
  std::string out;
  std::string err;
};

struct ProcessOptions {
  std::string directory;                           // working directory; empty: this process's
  std::map<std::string, std::string> environment;  // beside this process's; "" unsets
  std::string input;                               // stdin; empty: /dev/null
  // stdin and stderr are a terminal of 80 columns, on which `input` is typed; stdout stays a file.
  // `err` is what the terminal shows.
  bool on_terminal = false;
};

// Waits for the end of the program, at most five minutes.
ProcessResult RunProcess(const std::vector<std::string>& command,
                         const ProcessOptions& options = {});

}  // namespace wstore::testing
