// The program that runs, with what it needs to run a test case: it may be the command line too.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace wstore::testing {

inline std::vector<std::string> ThisProgram() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  const std::vector<std::string> arguments = absl::StrSplit(line, '\0');
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  if (arguments.size() > 1 && arguments[1] == "gpu_tests") command.push_back("gpu_tests");
  return command;
}

}  // namespace wstore::testing
