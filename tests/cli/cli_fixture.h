// The real command beside a small model, in a temporary directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/naive_safetensors.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace wstore::testing {

using Json = nlohmann::json;

class CliFixture {
 public:
  CliFixture() : random_(7) {
    model_ = {
        {"embed.weight", {"BF16", {300, 64}, RandomBytes(random_, 300 * 64 * 2)}},
        {"head.bias", {"F32", {64}, RandomBytes(random_, 64 * 4)}},
        {"layer.0.codes", {"I8", {70000}, RandomBytes(random_, 70000)}},
        {"layer.0.empty", {"F16", {0, 4}, ""}},
        {"layer.0.fp8", {"F8_E4M3", {33, 3}, RandomBytes(random_, 99)}},
        {"layer.0.packed", {"F4", {6, 4}, RandomBytes(random_, 12)}},
        {"steps", {"I64", {}, RandomBytes(random_, 8)}},
    };
  }

  // `wstore ARGUMENTS`, in the temporary directory. No store is named but by `arguments`.
  ProcessResult Run(const std::vector<std::string>& arguments, ProcessOptions options = {}) const {
    std::vector<std::string> command = {WSTORE_BINARY};
    command.insert(command.end(), arguments.begin(), arguments.end());
    options.directory = directory_.path();
    options.environment.emplace("WSTORE_STORE", "");
    options.environment.emplace("WSTORE_SERVER", "");
    return RunProcess(command, options);
  }

  // `wstore --store store ARGUMENTS`.
  ProcessResult OnStore(const std::vector<std::string>& arguments,
                        ProcessOptions options = {}) const {
    std::vector<std::string> all = {"--store", "store"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return Run(all, std::move(options));
  }

  // The same, which must exit with `exit_status`. Returns stdout.
  std::string Must(const std::vector<std::string>& arguments, int exit_status = 0) const {
    const ProcessResult result = OnStore(arguments);
    INFO(Describe(arguments, result));
    REQUIRE(result.exit_status == exit_status);
    return result.out;
  }

  // The same with --json: stdout is exactly one document.
  Json MustJson(std::vector<std::string> arguments, int exit_status = 0) const {
    arguments.insert(arguments.begin(), "--json");
    const ProcessResult result = OnStore(arguments);
    INFO(Describe(arguments, result));
    REQUIRE(result.exit_status == exit_status);
    Json document;
    REQUIRE_NOTHROW(document = Json::parse(result.out));
    return document;
  }

  // The message of an error: the same on stderr and in the document; nothing else is on stdout.
  std::string MustFail(const std::vector<std::string>& arguments, int exit_status,
                       const std::string& code) const {
    const Json document = MustJson(arguments, exit_status);
    const ProcessResult plain = OnStore(arguments);
    INFO(Describe(arguments, plain));
    REQUIRE(document.size() == 1);
    REQUIRE(document["error"]["code"] == code);
    REQUIRE(plain.exit_status == exit_status);
    REQUIRE(plain.out.empty());
    const std::string message = document["error"]["message"];
    REQUIRE_FALSE(message.empty());
    REQUIRE_THAT(plain.err, Catch::Matchers::Contains(message.substr(0, message.find('\n'))));
    return message;
  }

  // A store on the model.
  void Init() {
    std::filesystem::create_directory(path("base"));
    WriteFile(path("base/model.safetensors"),
              NaiveWrite(model_, NamesOf(model_), {{"format", "pt"}}));
    WriteFile(path("base/config.json"), "{\"model_type\":\"test\"}\n");
    const ProcessResult result = Run({"init", "store", "--base", "base"});
    INFO(result.err);
    REQUIRE(result.exit_status == 0);
  }

  // The model with `count` bytes of a tensor changed.
  NaiveTensors Changed(NaiveTensors tensors, const std::string& name, size_t count) {
    std::string& bytes = tensors.at(name).bytes;
    for (size_t i = 0; i < count; ++i) {
      bytes[i * (bytes.size() / count)] ^= static_cast<char>(1 + random_() % 255);
    }
    return tensors;
  }

  // Writes a checkpoint of one file and returns its name.
  std::string Checkpoint(const std::string& name, const NaiveTensors& tensors) const {
    WriteFile(path(name), NaiveWrite(tensors, NamesOf(tensors)));
    return name;
  }

  // Writes a checkpoint that differs from the model in `count` elements of "layer.0.codes".
  std::string CheckpointWithChanges(const std::string& name, size_t count) {
    return Checkpoint(name, Changed(model_, "layer.0.codes", count));
  }

  std::string path(const std::string& name) const { return directory_ / name; }
  const NaiveTensors& model() const { return model_; }
  NaiveTensors ReadCheckpoint(const std::string& name) const {
    return NaiveRead(ReadFile(path(name)));
  }

  static std::string Describe(const std::vector<std::string>& arguments,
                              const ProcessResult& result) {
    std::string text = "wstore";
    for (const std::string& argument : arguments) text += " " + argument;
    return text + "\nexit " + std::to_string(result.exit_status) + "\nstdout:\n" + result.out +
           "stderr:\n" + result.err;
  }

 private:
  TempDir directory_;
  std::mt19937_64 random_;
  NaiveTensors model_;
};

}  // namespace wstore::testing
