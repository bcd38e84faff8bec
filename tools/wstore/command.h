// A verb of the command line. Each lives in a file of its own, commands/<verb>.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/wstore/exit_code.h"
#include "tools/wstore/session.h"

namespace wstore::cli {

class Command {
 public:
  virtual ~Command() = default;

  // Adds the verb with its own options, its description and examples to the program. The parser
  // writes into this object.
  virtual CLI::App* Define(CLI::App& program) = 0;

  // Does the work after parsing. An error becomes a message and an exit status.
  virtual absl::StatusOr<ExitCode> Run(Session& session) = 0;
};

// Headings that verbs are listed under in the program's help.
inline constexpr char kChangeGroup[] = "Verbs that change the store";
inline constexpr char kLookGroup[] = "Verbs that look";
inline constexpr char kOtherGroup[] = "Other verbs";

// Type names of arguments. Shell completion goes by them.
inline constexpr char kVersionType[] = "VERSION";  // v42, head or a tag
inline constexpr char kDirectoryType[] = "DIR";
inline constexpr char kFileType[] = "FILE";
inline constexpr char kCheckpointType[] = "CHECKPOINT";  // a file or a directory

// The end of a verb's help.
inline std::string Examples(std::initializer_list<const char*> lines) {
  std::string text = "Examples:";
  for (const char* line : lines) text += std::string("\n  ") + line;
  return text;
}

// One function per verb, in the order of the program's help.
std::unique_ptr<Command> MakeInitCommand();
std::unique_ptr<Command> MakePublishCommand();
std::unique_ptr<Command> MakeRollbackCommand();
std::unique_ptr<Command> MakeHoldCommand();
std::unique_ptr<Command> MakeResumeCommand();
std::unique_ptr<Command> MakeMarkCommand();
std::unique_ptr<Command> MakePromoteCommand();
std::unique_ptr<Command> MakeTagCommand();
std::unique_ptr<Command> MakeEvictCommand();
std::unique_ptr<Command> MakeLogCommand();
std::unique_ptr<Command> MakeShowCommand();
std::unique_ptr<Command> MakeDiffCommand();
std::unique_ptr<Command> MakeStatusCommand();
std::unique_ptr<Command> MakeWorkersCommand();
std::unique_ptr<Command> MakeTxCommand();
std::unique_ptr<Command> MakeVerifyCommand();
std::unique_ptr<Command> MakeExportCommand();
std::unique_ptr<Command> MakeServeCommand();
std::unique_ptr<Command> MakeWorkerCommand();
std::unique_ptr<Command> MakeDemoCommand();
std::unique_ptr<Command> MakeBenchCommand();
std::unique_ptr<Command> MakeCompletionCommand();

}  // namespace wstore::cli
