// The witness: a small file beside the database that names the last acknowledged record and the
// highest numbers ever used. A chain inside a database cannot see that its own tail is gone; this
// file does.
//
// It has two slots, written in turn, and each slot is kept twice, in blocks of its own:
//   - an update that a crash tears destroys at most the slot being written, which nobody has been
//     told of; the other slot is the state before;
//   - one block that goes bad later takes nothing that was acknowledged with it.
// docs/formats/journal.md gives the bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "journal/files.h"
#include "rocksdb/file_system.h"
#include "wstore/digest.h"
#include "wstore/journal.h"

namespace wstore::journal {

constexpr uint64_t kWitnessBlockBytes = 4096;
constexpr uint64_t kWitnessBytes = 4 * kWitnessBlockBytes;

struct WitnessState {
  uint64_t records = 0;  // acknowledged; the last one's sequence number plus one
  Digest last_digest;    // of that record; zeros if there is none
  HighWaterMarks marks;

  friend bool operator==(const WitnessState&, const WitnessState&) = default;
};

struct WitnessReading {
  uint64_t generation = 0;
  WitnessState state;
};

// The valid slot with the highest generation.
//   kNotFound: no such file
//   kDataLoss: no block is valid
//   kFailedPrecondition: written by a later version of this format
absl::StatusOr<WitnessReading> ReadWitness(rocksdb::FileSystem& fs, const std::string& path);

// The block that holds `reading`, without its padding. For tests and ReadWitness.
std::string EncodeWitness(const WitnessReading& reading);

// The witness of a journal that is open for writing. One thread at a time.
class Witness {
 public:
  // Puts a new file with generation + 1 in the place of any old one; durable when it returns. Every
  // open for writing begins so: what an earlier process wrote may be in the page cache only, and if
  // its sync failed it will never get further.
  static absl::StatusOr<std::unique_ptr<Witness>> Replace(std::shared_ptr<rocksdb::FileSystem> fs,
                                                          const Paths& paths,
                                                          const WitnessReading& reading);

  // Durable when it returns. After an error the state on disk is the old or the new one, and the
  // next call writes a new file: a file whose sync failed is not synced again.
  absl::Status Write(const WitnessState& state);

 private:
  Witness(std::shared_ptr<rocksdb::FileSystem> fs, const Paths& paths);
  absl::Status WriteNewFile(const WitnessState& state);
  absl::Status WriteSlot(const WitnessState& state);

  const std::shared_ptr<rocksdb::FileSystem> fs_;
  const Paths paths_;
  uint64_t generation_ = 0;
  std::unique_ptr<rocksdb::FSRandomRWFile> file_;  // null after an error
};

}  // namespace wstore::journal
