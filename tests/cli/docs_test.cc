// Runs the commands that the documents show and compares what they print.
//
// In a ```console block, a line that begins with "$ " is a command and what follows is its output,
// stdout and stderr together. The blocks of a document are one shell session. Numbers that differ
// from run to run (digests, times, rates, sizes on disk, who did it) are compared by their form
// only.
#include <regex>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/support/catch.h"
#include "tests/support/naive_safetensors.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace wstore::testing {
namespace {

constexpr char kSource[] = WSTORE_SOURCE_DIR;

struct Step {
  std::string command;
  std::string output;
};

std::vector<Step> StepsOf(const std::vector<std::string>& lines) {
  std::vector<Step> steps;
  for (const std::string& line : lines) {
    if (absl::StartsWith(line, "$ ")) {
      steps.push_back({line.substr(2), ""});
    } else {
      REQUIRE_FALSE(steps.empty());
      steps.back().output += line + "\n";
    }
  }
  return steps;
}

std::vector<Step> StepsOfDocument(const std::string& name) {
  std::vector<std::string> lines;
  bool is_inside = false;
  const std::vector<std::string> all =
      absl::StrSplit(ReadFile(absl::StrCat(kSource, "/", name)), '\n');
  for (const std::string& line : all) {
    if (absl::StartsWith(line, "```")) {
      is_inside = line == "```console";
    } else if (is_inside) {
      lines.push_back(line);
    }
  }
  return StepsOf(lines);
}

// Replaces what differs from run to run, and how columns are padded for it.
std::string Normalize(std::string text) {
  const std::vector<std::pair<const char*, const char*>> rules = {
      {R"re(\b[0-9a-f]{32,64}\b)re", "DIGEST"},
      {R"re(\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+Z)?)?)re", "TIME"},
      {R"re(\b\d+(\.\d+)? [kMG]?B/s)re", "RATE"},
      {R"re(\b\d+(\.\d+)? (ms|s)\b)re", "DURATION"},
      {R"re(("duration_ms": )[0-9.e-]+)re", "$1DURATION"},
      {R"re(\b\d+(\.\d+)? [kM]B\b)re", "SIZE"},
      {R"re(\b\d+\.\d\d bytes per)re", "N bytes per"},
      {R"re(\([0-9,]+ bytes\))re", "(N bytes)"},
      {R"re(("(journal_bytes|bytes)": )\d+)re", "$1SIZE"},
      {R"re([A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+)re", "ACTOR"},
      {R"re((/[A-Za-z0-9_.-]+)+/minilm-excerpt)re", "minilm-excerpt"},
      {R"re( +)re", " "},
      {R"re( +\n)re", "\n"},
  };
  for (const auto& [pattern, replacement] : rules) {
    text = std::regex_replace(text, std::regex(pattern), replacement);
  }
  return std::string(absl::StripAsciiWhitespace(text));
}

// Runs all steps in one shell, in a fresh directory beside a copy of the excerpt, and compares.
void RunSteps(const std::vector<Step>& steps) {
  const TempDir directory;
  std::filesystem::create_symlink(absl::StrCat(kSource, "/tests/data/minilm-excerpt"),
                                  directory / "minilm-excerpt");
  std::string script;
  for (size_t i = 0; i < steps.size(); ++i) {
    absl::StrAppend(&script, steps[i].command, "\necho \"=== step ", i, "\"\n");
  }
  ProcessOptions options;
  options.directory = directory.path();
  options.environment["WSTORE_STORE"] = "";
  const std::string programs = std::filesystem::path(WSTORE_BINARY).parent_path();
  options.environment["PATH"] = absl::StrCat(programs, ":", programs, "/examples:", getenv("PATH"));
  const ProcessResult result = RunProcess({"bash", "-c", "exec 2>&1\n" + script}, options);
  std::string rest = result.out;
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string marker = absl::StrCat("=== step ", i, "\n");
    const size_t end = rest.find(marker);
    REQUIRE(end != std::string::npos);
    const std::string output = rest.substr(0, end);
    rest = rest.substr(end + marker.size());
    INFO("$ " << steps[i].command << "\n" << output);
    CHECK(Normalize(output) == Normalize(steps[i].output));
  }
}

TEST_CASE("The commands in docs/cli.md print what it says") {
  const std::vector<Step> steps = StepsOfDocument("docs/cli.md");
  REQUIRE(steps.size() > 20);
  RunSteps(steps);
}

TEST_CASE("docs/client.md shows the example that is built") {
  const std::string text = ReadFile(absl::StrCat(kSource, "/docs/client.md"));
  const std::string example = ReadFile(absl::StrCat(kSource, "/docs/examples/trainer.cc"));
  REQUIRE(absl::StrContains(text, absl::StrCat("```cpp\n", example, "```\n")));
}

TEST_CASE("docs/embedding.md shows the example that is built, and what it prints") {
  const std::string text = ReadFile(absl::StrCat(kSource, "/docs/embedding.md"));
  const std::string example = ReadFile(absl::StrCat(kSource, "/docs/examples/embedded.cc"));
  REQUIRE(absl::StrContains(text, absl::StrCat("```cpp\n", example, "```\n")));
  RunSteps(StepsOfDocument("docs/embedding.md"));
}

// The times of a story are its own.
std::string WithoutNumbers(const std::string& text) {
  const std::string timed = std::regex_replace(text, std::regex(R"(\b\d+(\.\d+)? (ms|s)\b)"), "T");
  return std::regex_replace(timed, std::regex(R"(process \d+| +)"), " ");
}

TEST_CASE("The README's demonstration is what wstore demo prints") {
  const std::string text = ReadFile(absl::StrCat(kSource, "/README.md"));
  const size_t begin = text.find("```text\n");
  REQUIRE(begin != std::string::npos);
  const std::string shown = text.substr(begin + 8, text.find("```\n", begin + 8) - begin - 8);
  const ProcessResult result = RunProcess({WSTORE_BINARY, "demo"});
  INFO(result.out << result.err);
  REQUIRE(result.exit_status == 0);
  REQUIRE(WithoutNumbers(result.out) == WithoutNumbers(shown));
}

TEST_CASE("The README's example is what tools/example runs and prints") {
  const std::vector<Step> expected = StepsOfDocument("README.md");
  REQUIRE(expected.size() >= 6);
  ProcessOptions options;
  options.environment["WSTORE_BIN"] = WSTORE_BINARY;
  options.environment["WSTORE_STORE"] = "";
  const ProcessResult result = RunProcess({absl::StrCat(kSource, "/tools/example")}, options);
  INFO(result.out << result.err);
  REQUIRE(result.exit_status == 0);
  std::vector<std::string> lines = absl::StrSplit(result.out, '\n');
  const std::vector<Step> actual = StepsOf(lines);
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    CHECK(actual[i].command == expected[i].command);
    CHECK(Normalize(actual[i].output) == Normalize(expected[i].output));
  }
}

}  // namespace
}  // namespace wstore::testing
