// Help and completion of every verb.
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "tests/cli/cli_fixture.h"

namespace wstore::testing {
namespace {

using Catch::Matchers::Contains;

const std::vector<std::string> kVerbs = {
    "init",   "publish", "promote", "rollback", "hold",   "resume",    "mark", "tag",
    "evict",  "log",     "show",    "diff",     "status", "workers",   "tx",   "verify",
    "export", "serve",   "worker",  "demo",     "bench",  "completion"};

TEST_CASE("The program's help lists every verb, its version is that of the project") {
  const CliFixture cli;
  const ProcessResult help = cli.Run({"--help"});
  REQUIRE(help.exit_status == 0);
  REQUIRE(help.err.empty());
  for (const std::string& verb : kVerbs) REQUIRE_THAT(help.out, Contains("\n  " + verb + " "));
  REQUIRE_THAT(help.out, Contains("Examples:\n") && Contains("WSTORE_STORE"));
  REQUIRE(cli.Run({"--version"}).out == "wstore " WSTORE_VERSION "\n");
}

TEST_CASE("Every verb's help has a usage line, an example and the global options, in 80 columns") {
  const CliFixture cli;
  for (const std::string& verb : kVerbs) {
    const ProcessResult help = cli.Run({verb, "--help"});
    INFO(help.out);
    REQUIRE(help.exit_status == 0);
    REQUIRE(help.err.empty());
    REQUIRE_THAT(help.out,
                 Contains("Usage: wstore " + verb) && Contains("--json") && Contains("--store"));
    const size_t examples = help.out.find("Examples:\n");
    REQUIRE(examples != std::string::npos);
    REQUIRE_THAT(help.out.substr(examples), Contains("wstore " + verb));
    for (const auto line : absl::StrSplit(help.out, '\n')) {
      INFO(line);
      REQUIRE((line.size() <= 80 || absl::StrContains(line, "wstore")));
    }
    REQUIRE(cli.Run({verb, "-h"}).out == help.out);
  }
}

// What bash offers for a command line; the last word is being typed.
std::vector<std::string> Complete(const CliFixture& cli, const std::vector<std::string>& words) {
  std::string script = "PATH=" + std::filesystem::path(WSTORE_BINARY).parent_path().string() +
                       ":$PATH; source <(wstore completion bash); COMP_WORDS=(";
  for (const std::string& word : words) script += "'" + word + "' ";
  script += "); COMP_CWORD=" + std::to_string(words.size() - 1) +
            "; _wstore; printf '%s\\n' \"${COMPREPLY[@]}\"";
  ProcessOptions options;
  options.directory = cli.path("");
  options.environment["WSTORE_STORE"] = "";
  const ProcessResult result = RunProcess({"bash", "-c", script}, options);
  INFO(script << "\n" << result.err);
  REQUIRE(result.err.empty());
  REQUIRE(result.exit_status == 0);
  return absl::StrSplit(result.out, '\n', absl::SkipEmpty());
}

TEST_CASE("bash completes verbs, options, versions and files") {
  CliFixture cli;
  cli.Init();
  cli.Must({"tag", "prod", "v0"});
  using Words = std::vector<std::string>;
  REQUIRE(Complete(cli, {"wstore", ""}) == kVerbs);
  REQUIRE(Complete(cli, {"wstore", "ro"}) == Words{"rollback"});
  REQUIRE(Complete(cli, {"wstore", "rollback", "--d"}) == Words{"--dry-run"});
  REQUIRE(Complete(cli, {"wstore", "--sto"}) == Words{"--store"});
  const Words names = {"head", "prod", "v0"};
  REQUIRE(Complete(cli, {"wstore", "--store", "store", "show", ""}) == names);
  REQUIRE(Complete(cli, {"wstore", "--store", "=", "store", "show", ""}) == names);
  REQUIRE(Complete(cli, {"wstore", "diff", "--store", "store", "v0", "p"}) == Words{"prod"});
  REQUIRE(Complete(cli, {"wstore", "--store", "store", "rollback", "--to", "v"}) == Words{"v0"});
  REQUIRE(Complete(cli, {"wstore", "init", "new", "--base", "ba"}) == Words{"base"});
  REQUIRE(Complete(cli, {"wstore", "verify", "--base", "--a"}) == Words{"--all"});
  REQUIRE(Complete(cli, {"wstore", "completion", "z"}) == Words{"zsh"});
  // Without a store there are no names, and no error either.
  REQUIRE(Complete(cli, {"wstore", "show", ""}).empty());
}

TEST_CASE("The scripts of zsh and fish parse where those are installed") {
  const CliFixture cli;
  for (const std::string shell : {"zsh", "fish"}) {
    const ProcessResult script = cli.Run({"completion", shell});
    REQUIRE(script.exit_status == 0);
    for (const std::string& verb : kVerbs) REQUIRE_THAT(script.out, Contains(verb));
    WriteFile(cli.path("script"), script.out);
    ProcessOptions options;
    options.directory = cli.path("");
    const ProcessResult parsed = RunProcess({shell, "-n", "script"}, options);
    INFO(parsed.err);
    REQUIRE((parsed.exit_status == 0 || parsed.exit_status == 127));
  }
}

}  // namespace
}  // namespace wstore::testing
