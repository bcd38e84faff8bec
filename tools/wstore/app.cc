#include "tools/wstore/app.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/strings.h"
#include "tools/wstore/command.h"
#include "tools/wstore/format.h"
#include "tools/wstore/help.h"
#include "tools/wstore/parse.h"

namespace wstore::cli {
namespace {

constexpr std::array kMakeCommands = {
    MakeInitCommand,   MakePublishCommand,    MakePromoteCommand, MakeRollbackCommand,
    MakeHoldCommand,   MakeResumeCommand,     MakeMarkCommand,    MakeTagCommand,
    MakeEvictCommand,  MakeLogCommand,        MakeShowCommand,    MakeDiffCommand,
    MakeStatusCommand, MakeWorkersCommand,    MakeTxCommand,      MakeVerifyCommand,
    MakeExportCommand, MakeServeCommand,      MakeWorkerCommand,  MakeDemoCommand,
    MakeBenchCommand,  MakeCompletionCommand,
};

struct Verb {
  CLI::App* app;
  std::unique_ptr<Command> command;
};

// The same options before and after the verb. The one that stands last counts.
void AddGlobalOptions(CLI::App& app, GlobalOptions* options) {
  constexpr char kGroup[] = "Global options";
  app.add_option("--store", options->store,
                 "The store's directory. Default: the environment variable WSTORE_STORE")
      ->type_name(kDirectoryType)
      ->group(kGroup);
  app.add_option("--server", options->server,
                 "The server of a store that is served elsewhere: unix:PATH or HOST:PORT. Default: "
                 "WSTORE_SERVER, or the server that runs in the store's directory")
      ->type_name("ADDR")
      ->group(kGroup);
  app.add_flag("--json", options->json, "Print one JSON document on stdout, and nothing else there")
      ->group(kGroup);
  app.add_flag("--quiet", options->quiet,
               "No progress and no remarks; of a change only the version")
      ->group(kGroup);
  app.add_option_function<std::string>(
         "--timeout",
         [options](const std::string& text) {
           options->timeout_ms = ParseDurationMs(text).value_or(0);
         },
         "How long to wait while another process writes to the store, or for a server: all its "
         "answers together, such as 5s. Default: not at all, and a minute an answer")
      ->check([](const std::string& text) {
        return std::string(ParseDurationMs(text).status().message());
      })
      ->type_name("DURATION")
      ->group(kGroup);
}

std::vector<Verb> DefineProgram(CLI::App& program, GlobalOptions* options) {
  program.name("wstore");
  program.formatter(std::make_shared<HelpFormatter>());
  program.set_help_flag("-h,--help", "Print this help and exit");
  program.set_version_flag("--version", "wstore " WSTORE_VERSION, "Print the version and exit");
  program.require_subcommand(0, 1);
  AddGlobalOptions(program, options);
  program.footer(
      "Examples:\n"
      "  export WSTORE_STORE=/srv/store\n"
      "  wstore init $WSTORE_STORE --base /models/qwen3-8b\n"
      "  wstore publish --from /runs/rl-7/step-1200 -m \"step 1200\"\n"
      "  wstore log\n"
      "\n`wstore VERB --help` tells more about a verb.");
  std::vector<Verb> verbs;
  for (const auto make : kMakeCommands) {
    std::unique_ptr<Command> command = make();
    CLI::App* const app = command->Define(program);
    AddGlobalOptions(*app, options);
    verbs.push_back({app, std::move(command)});
  }
  return verbs;
}

// Whether --json is asked for on a command line that may not parse.
bool AsksForJson(int argc, char** argv) {
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    if (std::string_view(argv[i]) == "--json") return true;
  }
  return false;
}

// Letters that must be changed, added or left out to make one word of the other.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

std::string UnknownVerbMessage(const std::string& word, const std::vector<Verb>& verbs) {
  std::vector<std::string> names;
  std::string nearest;
  size_t least = 3;
  for (const Verb& verb : verbs) {
    names.push_back(verb.app->get_name());
    const size_t distance = EditDistance(word, names.back());
    if (distance < least) {
      least = distance;
      nearest = names.back();
    }
  }
  return absl::StrCat("there is no verb \"", word, "\"",
                      nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?"),
                      " The verbs are: ", absl::StrJoin(names, ", "));
}

ExitCode ReportError(const absl::Status& status, const std::string& verb, bool is_json) {
  if (is_json) {
    const Json document = {
        {"error", {{"code", ErrorName(status)}, {"message", std::string(status.message())}}}};
    std::fputs(Dump(document).c_str(), stdout);
  }
  const std::string program = absl::StrCat("wstore", verb.empty() ? "" : " ", verb);
  std::fprintf(stderr, "%s: %s\n", program.c_str(), Printable(ToStd(status.message())).c_str());
  if (IsUsageError(status)) std::fprintf(stderr, "Try `%s --help`.\n", program.c_str());
  return ExitCodeOf(status);
}

// The verb that the command line asks for; nothing if the parser has answered itself (help,
// version).
absl::StatusOr<Verb*> Parse(CLI::App& program, std::vector<Verb>& verbs, int argc, char** argv) {
  const auto find_chosen = [&]() -> Verb* {
    for (Verb& verb : verbs) {
      if (verb.app->parsed()) return &verb;
    }
    return nullptr;
  };
  try {
    program.parse(argc, argv);
  } catch (const CLI::CallForVersion& version) {
    const Json document = {{"name", "wstore"}, {"version", WSTORE_VERSION}};
    std::puts(AsksForJson(argc, argv) ? Dump(document).c_str() : version.what());
    return nullptr;
  } catch (const CLI::Success&) {
    std::fputs(program.help().c_str(), stdout);
    return nullptr;
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> extras = program.remaining(true);
    if (find_chosen() == nullptr && !extras.empty() && !extras.front().starts_with("-")) {
      return UsageError(UnknownVerbMessage(extras.front(), verbs));
    }
    return UsageError(error.what());
  }
  if (Verb* const chosen = find_chosen()) return chosen;
  return UsageError("a verb is needed, such as `wstore status`");
}

absl::StatusOr<ExitCode> RunVerb(Verb& verb, const GlobalOptions& options) {
  if (!options.store.empty() && !options.server.empty()) {
    return UsageError("--store and --server name two stores; give one of them");
  }
  Session session(options);
  // The libraries beneath report by exception where memory runs out.
  try {
    return verb.command->Run(session);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace

ExitCode RunCommandLine(int argc, char** argv) {
  GlobalOptions options;
  CLI::App program(
      "A transactional, versioned store for model weights that change while they are served");
  std::vector<Verb> verbs = DefineProgram(program, &options);

  absl::StatusOr<Verb*> verb = Parse(program, verbs, argc, argv);
  std::string name;
  for (const Verb& candidate : verbs) {
    if (candidate.app->parsed()) name = candidate.app->get_name();
  }
  if (!verb.ok()) return ReportError(verb.status(), name, AsksForJson(argc, argv));

  ExitCode code = ExitCode::kDone;
  if (*verb != nullptr) {
    const absl::StatusOr<ExitCode> result = RunVerb(**verb, options);
    code = result.ok() ? *result : ReportError(result.status(), name, options.json);
  }
  if (std::fflush(stdout) != 0 && code == ExitCode::kDone) {
    std::fprintf(stderr, "wstore: done, but the output could not be written: %s\n",
                 std::strerror(errno));
    return ExitCode::kFailed;
  }
  return code;
}

}  // namespace wstore::cli
