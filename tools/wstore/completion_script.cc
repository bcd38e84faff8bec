#include "tools/wstore/completion_script.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tools/wstore/command.h"

namespace wstore::cli {
namespace {

struct OptionWords {
  std::vector<std::string> names;  // with their dashes
  std::string type;                // of its value; empty for a flag
  std::string description;
};

// A verb, or with an empty name the program before any verb.
struct VerbWords {
  std::string name;
  std::string description;
  std::vector<OptionWords> options;
  std::vector<std::string> argument_types;
};

// The first sentence, without characters that the shells' quoting would have to care for.
std::string ShortDescription(const std::string& text) {
  const std::string sentence = text.substr(0, text.find_first_of(".;:"));
  return absl::StrReplaceAll(sentence, {{"'", ""}, {"[", "("}, {"]", ")"}, {"\"", ""}});
}

VerbWords WordsOf(const CLI::App& app, bool is_program) {
  VerbWords verb{.name = is_program ? "" : app.get_name(),
                 .description = ShortDescription(app.get_description()),
                 .options = {},
                 .argument_types = {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      verb.argument_types.push_back(option->get_type_name());
      continue;
    }
    OptionWords words;
    for (const std::string& name : option->get_lnames()) words.names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) words.names.push_back("-" + name);
    if (option->get_type_size() > 0) words.type = option->get_type_name();
    words.description = ShortDescription(option->get_description());
    verb.options.push_back(std::move(words));
  }
  return verb;
}

std::vector<VerbWords> CollectWords(const CLI::App& program) {
  std::vector<VerbWords> verbs = {WordsOf(program, true)};
  for (const CLI::App* verb : program.get_subcommands({})) verbs.push_back(WordsOf(*verb, false));
  return verbs;
}

std::string BashScript(const std::vector<VerbWords>& verbs) {
  std::vector<std::string> verb_names;
  std::string value_cases;     // "VERB OPTION") type=... ;;
  std::string argument_cases;  // "VERB POSITION") type=... ;;
  std::string option_cases;    // VERB) options=... ;;
  for (const VerbWords& verb : verbs) {
    if (!verb.name.empty()) verb_names.push_back(verb.name);
    std::vector<std::string> names;
    for (const OptionWords& option : verb.options) {
      names.insert(names.end(), option.names.begin(), option.names.end());
      if (option.type.empty()) continue;
      for (const std::string& name : option.names) {
        absl::StrAppend(&value_cases, "    \"", verb.name, " ", name, "\") type=", option.type,
                        " ;;\n");
      }
    }
    for (size_t i = 0; i < verb.argument_types.size(); ++i) {
      absl::StrAppend(&argument_cases, "    \"", verb.name, " ", i,
                      "\") type=", verb.argument_types[i], " ;;\n");
    }
    absl::StrAppend(&option_cases, "    \"", verb.name, "\") options=\"", absl::StrJoin(names, " "),
                    "\" ;;\n");
  }
  return absl::StrReplaceAll(R"bash(# Completes wstore in bash. Made by `wstore completion bash`.
_wstore_value_type() {  # VERB OPTION: sets type to what the option takes
  type=
  case "$1 $2" in
%VALUES%  esac
}
_wstore_argument_type() {  # VERB POSITION
  type=
  case "$1 $2" in
%ARGUMENTS%  esac
}
_wstore() {
  local current=${COMP_WORDS[COMP_CWORD]} verb= position=0 type= options= i
  local -a store=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    local word=${COMP_WORDS[i]}
    case $word in
      =) continue ;;
      --store)
        local value=${COMP_WORDS[i + 1]}
        [[ $value == = ]] && value=${COMP_WORDS[i + 2]}
        store=(--store "$value") ;;
    esac
    _wstore_value_type "$verb" "$word"
    if [[ -n $type ]]; then
      [[ ${COMP_WORDS[i + 1]} == = && i+1 -lt COMP_CWORD ]] && ((i++))
      ((i++))
      ((i < COMP_CWORD)) && type=
    elif [[ $word != -* ]]; then
      if [[ -z $verb ]]; then verb=$word; else ((position++)); fi
    fi
  done
  COMPREPLY=()
  [[ $current == = ]] && current=
  if [[ -z $type && $current == -* ]]; then
    case $verb in
%OPTIONS%    esac
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
    return
  fi
  if [[ -z $type && -z $verb ]]; then
    mapfile -t COMPREPLY < <(compgen -W "%VERBS%" -- "$current")
    return
  fi
  [[ -n $type ]] || _wstore_argument_type "$verb" "$position"
  case $type in
    VERSION)
      local names
      names=$("${COMP_WORDS[0]}" "${store[@]}" completion names 2>/dev/null)
      mapfile -t COMPREPLY < <(compgen -W "$names" -- "$current") ;;
    DIR)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    CHECKPOINT | FILE)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    VERDICT)
      mapfile -t COMPREPLY < <(compgen -W "bad good" -- "$current") ;;
    SHELL)
      mapfile -t COMPREPLY < <(compgen -W "bash zsh fish" -- "$current") ;;
  esac
}
complete -F _wstore wstore
)bash",
                             {{"%VALUES%", value_cases},
                              {"%ARGUMENTS%", argument_cases},
                              {"%OPTIONS%", option_cases},
                              {"%VERBS%", absl::StrJoin(verb_names, " ")}});
}

// How zsh completes a value of a type.
std::string ZshAction(const std::string& type) {
  if (type == kVersionType) return "_wstore_names";
  if (type == kDirectoryType) return "_files -/";
  if (type == kCheckpointType || type == kFileType) return "_files";
  if (type == "SHELL") return "(bash zsh fish)";
  if (type == "VERDICT") return "(bad good)";
  return " ";
}

// What _arguments takes for the options of a verb, each on a line of its own.
std::string ZshOptions(const VerbWords& verb) {
  std::string specs;
  for (const OptionWords& option : verb.options) {
    for (const std::string& name : option.names) {
      const std::string value =
          option.type.empty() ? "" : absl::StrCat(":", option.type, ":", ZshAction(option.type));
      absl::StrAppend(&specs, " \\\n        '*", name, "[", option.description, "]", value, "'");
    }
  }
  return specs;
}

std::string ZshScript(const std::vector<VerbWords>& verbs) {
  std::string names;
  std::string cases;
  for (const VerbWords& verb : verbs) {
    if (verb.name.empty()) continue;
    absl::StrAppend(&names, "    '", verb.name, ":", verb.description, "'\n");
    std::string arguments;
    for (size_t i = 0; i < verb.argument_types.size(); ++i) {
      const std::string& type = verb.argument_types[i];
      absl::StrAppend(&arguments, " \\\n        '", i + 1, ":", type, ":", ZshAction(type), "'");
    }
    absl::StrAppend(&cases, "    ", verb.name, ")\n      _arguments", ZshOptions(verb), arguments,
                    " ;;\n");
  }
  return absl::StrReplaceAll(
      R"zsh(#compdef wstore
# Completes wstore in zsh. Made by `wstore completion zsh`.
_wstore_names() {
  local -a store names
  [[ -n $opt_args[--store] ]] && store=(--store ${(Q)opt_args[--store]})
  names=(${(f)"$(wstore $store completion names 2>/dev/null)"})
  compadd -a names
}
_wstore() {
  local curcontext=$curcontext state line
  local -a verbs
  typeset -A opt_args
  verbs=(
%NAMES%  )
  _arguments -C%GLOBALS% \
        '1:verb:->verb' '*::argument:->argument'
  case $state in
    verb) _describe -t verbs verb verbs; return ;;
    argument) ;;
    *) return ;;
  esac
  case $words[1] in
%CASES%  esac
}
compdef _wstore wstore
)zsh",
      {{"%NAMES%", names}, {"%GLOBALS%", ZshOptions(verbs.front())}, {"%CASES%", cases}});
}

// What fish needs to complete a value of a type.
std::string FishAction(const std::string& type) {
  if (type == kVersionType) return " -x -a '(__wstore_names)'";
  if (type == kDirectoryType) return " -x -a '(__fish_complete_directories)'";
  if (type == kCheckpointType || type == kFileType) return " -r -F";
  if (type == "SHELL") return " -x -a 'bash zsh fish'";
  if (type == "VERDICT") return " -x -a 'bad good'";
  return " -x";
}

std::string FishScript(const std::vector<VerbWords>& verbs) {
  std::string script = R"fish(# Completes wstore in fish. Made by `wstore completion fish`.
function __wstore_names
    set -l words (commandline -opc)
    set -l store
    for i in (seq (count $words))
        if test "$words[$i]" = --store -a $i -lt (count $words)
            set store --store $words[(math $i + 1)]
        end
    end
    wstore $store completion names 2>/dev/null
end
complete -c wstore -f
)fish";
  for (const VerbWords& verb : verbs) {
    const std::string where = verb.name.empty()
                                  ? "__fish_use_subcommand"
                                  : absl::StrCat("__fish_seen_subcommand_from ", verb.name);
    const std::string line = absl::StrCat("complete -c wstore -n '", where, "'");
    if (!verb.name.empty()) {
      absl::StrAppend(&script, "complete -c wstore -n __fish_use_subcommand -a ", verb.name,
                      " -d '", verb.description, "'\n");
    }
    for (const OptionWords& option : verb.options) {
      absl::StrAppend(&script, line);
      for (const std::string& name : option.names) {
        absl::StrAppend(&script,
                        name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1));
      }
      absl::StrAppend(&script, option.type.empty() ? "" : FishAction(option.type), " -d '",
                      option.description, "'\n");
    }
    for (const std::string& type : verb.argument_types) {
      absl::StrAppend(&script, line, FishAction(type), "\n");
    }
  }
  return script;
}

}  // namespace

std::string CompletionScript(const CLI::App& program, std::string_view shell) {
  const std::vector<VerbWords> verbs = CollectWords(program);
  if (shell == "zsh") return ZshScript(verbs);
  if (shell == "fish") return FishScript(verbs);
  return BashScript(verbs);
}

}  // namespace wstore::cli
