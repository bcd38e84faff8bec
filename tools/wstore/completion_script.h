// Shell completion scripts, made from the verbs and options of the program, so that they cannot
// drift.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace wstore::cli {

// The script for `shell`: "bash", "zsh" or "fish". Names of versions and tags come from the store
// at the time of completion.
std::string CompletionScript(const CLI::App& program, std::string_view shell);

}  // namespace wstore::cli
