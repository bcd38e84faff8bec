#include "tools/wstore/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <array>

#include "absl/strings/ascii.h"

namespace wstore::cli {

bool IsTerminal(FILE* stream) { return isatty(fileno(stream)) != 0; }

size_t TerminalWidth(FILE* stream) {
  winsize size{};
  if (!IsTerminal(stream) || ioctl(fileno(stream), TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

bool AskYesNo(const std::string& question) {
  std::fprintf(stderr, "%s [y/N] ", question.c_str());
  std::fflush(stderr);
  std::array<char, 64> answer{};
  if (std::fgets(answer.data(), answer.size(), stdin) == nullptr) return false;
  const std::string lower = absl::AsciiStrToLower(absl::StripAsciiWhitespace(answer.data()));
  return lower == "y" || lower == "yes";
}

}  // namespace wstore::cli
