// The program: global options and verbs, parsing, and errors as messages and exit statuses.
#pragma once

#include "tools/wstore/exit_code.h"

namespace wstore::cli {

// Runs one command line. What it prints is as docs/cli.md says.
ExitCode RunCommandLine(int argc, char** argv);

}  // namespace wstore::cli
