// What is known about the terminal.
#pragma once

#include <cstdio>
#include <string>

namespace wstore::cli {

bool IsTerminal(FILE* stream);

// Columns of the terminal behind `stream`; 0 if it is none or does not say.
size_t TerminalWidth(FILE* stream);

// Shows `question` on stderr and reads a line from stdin. True for "y" or "yes".
bool AskYesNo(const std::string& question);

}  // namespace wstore::cli
