// One pass over the chunks of a committed payload.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "journal/database.h"
#include "wstore/types.h"
#include "wstore/v1/journal.pb.h"

namespace wstore::journal {

class PayloadReader {
 public:
  // Chunks with `first_key` <= key. `payload` must outlive the reader.
  PayloadReader(const v1::PayloadSummary& payload, std::string first_key);

  // As Journal::ReadPayload. Can be called again where file_vanished(), with a database opened
  // anew: it goes on behind the last chunk that was visited.
  absl::Status Read(
      Database& database,
      const std::function<absl::StatusOr<bool>(const ChunkKey&, std::string_view)>& visit);

  // The last Read failed because a file of the database was not there.
  bool file_vanished() const { return file_vanished_; }

 private:
  absl::Status CheckComplete() const;

  const v1::PayloadSummary& payload_;
  const std::string first_key_;
  std::string last_key_;  // visited; empty before the first
  uint64_t chunks_ = 0;
  uint64_t bytes_ = 0;
  bool file_vanished_ = false;
};

}  // namespace wstore::journal
