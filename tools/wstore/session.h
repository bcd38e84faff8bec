// What all verbs share: the global options, the store they name, and where output goes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "tools/wstore/json.h"
#include "tools/wstore/progress_line.h"
#include "tools/wstore/store_access.h"
#include "wstore/connect.h"
#include "wstore/store.h"

namespace wstore::cli {

struct GlobalOptions {
  std::string store;   // --store; empty: not given
  std::string server;  // --server; empty: not given
  bool json = false;
  bool quiet = false;
  int64_t timeout_ms = 0;
};

// stdout carries results and nothing else: text, or with --json one document. Everything that is
// said beside the result goes to stderr.
class Session {
 public:
  // `options` are filled in by the parser, before any other method is called.
  explicit Session(const GlobalOptions& options) : options_(options) {}

  const GlobalOptions& options() const { return options_; }

  // The directory that --store or WSTORE_STORE names. A UsageError says how to name one.
  absl::StatusOr<std::string> StoreDirectory() const;

  // The store that --server, --store, WSTORE_SERVER or WSTORE_STORE names, the first of them that
  // is given. A directory whose server answers is used through that server. Without one, a store
  // that is opened for reading works beside a writer and changes nothing; opening it for writing
  // waits up to --timeout while another process has it open.
  absl::StatusOr<std::unique_ptr<StoreAccess>> OpenForReading() const;
  absl::StatusOr<std::unique_ptr<StoreAccess>> OpenForWriting() const;
  // The same without looking for a server: for what needs the files themselves.
  absl::StatusOr<std::unique_ptr<Store>> OpenFilesForReading() const;
  absl::StatusOr<std::unique_ptr<Store>> OpenFilesForWriting() const;

  // The server that is named, or that of the directory that is named, whether it runs or not.
  absl::StatusOr<ConnectOptions> ServerOptions() const;
  // What is named, as it is shown.
  std::string StoreName() const;

  // A result: `text` as it stands, or `document` with --json. Once per run.
  void Result(std::string_view text, const Json& document);
  // The result of a verb that changes the store: with --quiet no more than `brief`, which may be
  // empty.
  void ChangeResult(std::string_view text, std::string_view brief, const Json& document);

  // A remark beside the result, without a newline at its end; not with --quiet.
  void Remark(std::string_view text) const;

  // Whether somebody who can answer sits at the terminal.
  bool is_interactive() const;
  // Whether progress is to be seen.
  bool shows_progress() const;
  // The width that tables are cut to; 0: not at all.
  size_t table_width() const;

 private:
  // --server or WSTORE_SERVER, unless --store goes before it; empty: none.
  std::string ServerAddress() const;
  absl::StatusOr<std::unique_ptr<StoreAccess>> OpenAt(const std::string& address,
                                                      const std::string& directory) const;
  // Through the server, if one is named, or answers in the directory; otherwise null.
  absl::StatusOr<std::unique_ptr<StoreAccess>> OpenServed() const;

  const GlobalOptions& options_;
};

}  // namespace wstore::cli
