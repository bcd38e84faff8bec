#include "tools/wstore/session.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "tools/wstore/exit_code.h"
#include "tools/wstore/terminal.h"

namespace wstore::cli {
namespace {

// How often a store that another process writes is tried again.
constexpr int64_t kRetryMs = 50;

void Write(FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
}

absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& directory,
                                            const OpenOptions& options) {
  absl::StatusOr<std::unique_ptr<Store>> store = Store::Open(directory, options);
  if (!absl::IsNotFound(store.status())) return store;
  return absl::NotFoundError(absl::StrCat("there is no store in ", directory, "; `wstore init ",
                                          directory, " --base CHECKPOINT` creates one"));
}

}  // namespace

absl::StatusOr<std::string> Session::StoreDirectory() const {
  if (!options_.store.empty()) return options_.store;
  const char* const from_environment = std::getenv("WSTORE_STORE");
  if (from_environment != nullptr && *from_environment != '\0') return from_environment;
  return UsageError(
      "no store is named: give --store DIR, or set the environment variable WSTORE_STORE "
      "(`wstore init DIR --base CHECKPOINT` creates a store)");
}

absl::StatusOr<std::unique_ptr<Store>> Session::OpenForReading() const {
  ASSIGN_OR_RETURN(const std::string directory, StoreDirectory());
  OpenOptions options;
  options.read_only = true;
  return Open(directory, options);
}

absl::StatusOr<std::unique_ptr<Store>> Session::OpenForWriting() const {
  ASSIGN_OR_RETURN(const std::string directory, StoreDirectory());
  Clock& clock = SystemClock();
  const int64_t deadline_micros = clock.NowMonotonicMicros() + options_.timeout_ms * 1000;
  while (true) {
    absl::StatusOr<std::unique_ptr<Store>> store = Open(directory, {});
    const int64_t left_ms = (deadline_micros - clock.NowMonotonicMicros()) / 1000;
    if (!absl::IsUnavailable(store.status()) || left_ms <= 0) return store;
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(kRetryMs, left_ms)));
  }
}

void Session::Result(std::string_view text, const Json& document) {
  Write(stdout, options_.json ? Dump(document) : text);
}

void Session::ChangeResult(std::string_view text, std::string_view brief, const Json& document) {
  if (!options_.quiet || options_.json) return Result(text, document);
  if (!brief.empty()) Write(stdout, std::string(brief) + "\n");
}

void Session::Remark(std::string_view text) const {
  if (!options_.quiet) Write(stderr, std::string(text) + "\n");
}

bool Session::is_interactive() const { return IsTerminal(stdin) && IsTerminal(stderr); }

bool Session::shows_progress() const {
  return !options_.quiet && !options_.json && IsTerminal(stderr);
}

size_t Session::table_width() const { return TerminalWidth(stdout); }

}  // namespace wstore::cli
