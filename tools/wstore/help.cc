#include "tools/wstore/help.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace wstore::cli {
namespace {

constexpr size_t kWidth = 80;
constexpr size_t kColumn = 24;
constexpr size_t kVerbColumn = 14;

// Breaks a text into lines of `width` columns.
std::string Wrap(const std::string& text, size_t width) {
  std::string out;
  size_t used = 0;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (used > 0 && used + 1 + word.size() > width) {
      out += '\n';
      used = 0;
    } else if (used > 0) {
      out += ' ';
      ++used;
    }
    absl::StrAppend(&out, word);
    used += word.size();
  }
  return out;
}

}  // namespace

HelpFormatter::HelpFormatter() {
  column_width(kColumn);
  label("Positionals", "Arguments");
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode mode) const {
  // The base class puts blank lines both after a part and before the next.
  return absl::StrReplaceAll(CLI::Formatter::make_help(app, std::move(name), mode),
                             {{"\n\n\n", "\n\n"}});
}

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  std::string usage = absl::StrCat("\nUsage: ", name);
  if (app->get_parent() == nullptr) return usage + " [OPTIONS] VERB ...\n";
  std::string positionals;
  for (const CLI::Option* option : app->get_options()) {
    if (option->get_positional()) {
      absl::StrAppend(&positionals, " ", make_option_usage(option));
    } else if (option->get_required()) {
      absl::StrAppend(&positionals, " ", option->get_name(), make_option_opts(option));
    }
  }
  return absl::StrCat(usage, positionals, " [OPTIONS]\n");
}

std::string HelpFormatter::make_description(const CLI::App* app) const {
  return Wrap(absl::StrCat(app->get_description(), "."), kWidth) + "\n";
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  return option->get_type_size() == 0 ? "" : absl::StrCat(" ", option->get_type_name());
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  return Wrap(option->get_description(), kWidth - kColumn);
}

std::string HelpFormatter::make_subcommand(const CLI::App* verb) const {
  std::string line = absl::StrCat("  ", verb->get_name());
  line.resize(kVerbColumn, ' ');
  const std::string description = Wrap(verb->get_description(), kWidth - kVerbColumn);
  return absl::StrCat(
      line, absl::StrReplaceAll(description, {{"\n", "\n" + std::string(kVerbColumn, ' ')}}), "\n");
}

}  // namespace wstore::cli
