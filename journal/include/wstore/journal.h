// The journal: a durable, ordered, tamper-evident list of records, each of which may commit a
// payload of many chunks. What records and chunks mean is the business of the layers above.
//
// On disk (docs/formats/journal.md), under one directory:
//   LOCK       our own lock; one process has the journal open for writing
//   db/        a RocksDB database: records by sequence number, payload chunks by transaction
//   stage/     SST files of transactions that are not committed yet
//   witness    a small double-buffered file, synced after every commit, that names the last record
//   and
//              the highest numbers ever used; it shows a lost tail, which no chain inside the
//              database can
//
// Every record carries a sequence number and the digest of its predecessor. Opening checks the
// witness, the chain, and the first and last chunk of each payload before the database is opened
// for writing.
//
// Threads: all const calls but records() may run beside each other and beside calls that write.
// Calls that write are serialized by an internal lock and block on the disk; Stage and
// PayloadWriter are not serialized with anything.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "wstore/digest.h"
#include "wstore/types.h"

namespace wstore {

// The chunks of one transaction on their way into the journal. A small payload (up to 1 MiB) is
// kept in memory and committed in the record's own batch; a larger one goes to an SST file of its
// own beside the database. Nothing is visible to readers before Journal::Commit. Destroying it
// without a commit removes what it has written. One thread at a time; several writers may exist.
// All must be destroyed before their journal.
class PayloadWriter {
 public:
  virtual ~PayloadWriter() = default;

  // Keys must ascend; a chunk has at most 1 GiB.
  //   kInvalidArgument: one of these does not hold; nothing was added
  //   kResourceExhausted: no space left on the device
  //   kUnavailable: another I/O error
  // After the last two the writer can only be destroyed.
  virtual absl::Status Add(const ChunkKey& key, std::string_view chunk) = 0;

  // Does ahead of Commit all that takes time in proportion to the payload: an SST file is synced
  // and ingested, durable but invisible. Afterwards Commit costs two small synced writes whatever
  // the size. Optional: Commit calls it. Nothing can be added after it.
  //   errors as for Add; after one the writer can only be destroyed
  virtual absl::Status Finish() = 0;

  virtual TransactionNumber transaction() const = 0;
  virtual uint64_t chunks() const = 0;
  virtual uint64_t size_bytes() const = 0;  // of all chunks
};

struct NewRecord {
  std::string body;  // opaque
  // The payload that becomes visible with this record; may be null. Taken over by Commit.
  std::unique_ptr<PayloadWriter> payload;
};

struct StoredRecord {
  uint64_t sequence = 0;
  Digest digest;  // of the whole record, its predecessor's digest included
  std::string body;
  std::optional<TransactionNumber> payload;  // the transaction whose chunks it committed
};

// The highest numbers ever handed out. They survive crashes, so that no number is used twice.
struct HighWaterMarks {
  uint64_t transaction = 0;
  uint64_t version = 0;
  uint64_t move = 0;

  friend bool operator==(const HighWaterMarks&, const HighWaterMarks&) = default;
};

struct JournalOptions {
  // Opens without the lock and without changing a single file, beside a live writer too. Commits
  // are refused. A snapshot: what is committed later is not seen.
  bool read_only = false;
};

class Journal {
 public:
  virtual ~Journal() = default;

  // Makes a new journal in `directory`, which must exist; its first record is `first`, which has no
  // payload. Repeatable: an attempt that failed or crashed is cleared away, whatever it left.
  //   kAlreadyExists: a journal is there already, or files of one
  //   kInvalidArgument: `first` has a payload, or its body is too large (see Commit)
  //   kNotFound: no such directory
  //   kResourceExhausted, kUnavailable: no space; another process has it open, or an I/O error
  //   kUnknown: only the last step failed. Either Open succeeds, or Create can be repeated.
  static absl::StatusOr<std::unique_ptr<Journal>> Create(const std::string& directory,
                                                         NewRecord first);

  // Opens a journal, checks it, and, for writing, clears away what unfinished commits left. A
  // record whose commit was cut off between the record and the witness is kept.
  //   kNotFound: no journal there, or one whose Create was not finished
  //   kUnavailable: another process has it open for writing (named by pid; not for a read-only
  //   open),
  //     a live writer changed it in every attempt to read it, or an I/O error
  //   kResourceExhausted: no space to open it for writing; a read-only open still works
  //   kDataLoss: damaged. The message names the last good sequence number and what is missing.
  //   Nothing
  //     in the database has been changed.
  //   kFailedPrecondition: a later version of this program wrote it
  static absl::StatusOr<std::unique_ptr<Journal>> Open(const std::string& directory,
                                                       const JournalOptions& options);

  // All records in order. Not beside Commit, which changes the vector.
  virtual const std::vector<StoredRecord>& records() const = 0;

  virtual HighWaterMarks high_water_marks() const = 0;

  // Raises marks (never lowers one); durable when it returns. On an error they are unchanged,
  // although the raised ones may be found after reopening.
  //   kFailedPrecondition: opened read-only
  //   kResourceExhausted, kUnavailable: no space, another I/O error, or failed()
  virtual absl::Status RaiseHighWaterMarks(const HighWaterMarks& marks) = 0;

  // Starts the payload of a transaction. Nothing is written yet.
  //   kFailedPrecondition: opened read-only
  virtual absl::StatusOr<std::unique_ptr<PayloadWriter>> Stage(TransactionNumber transaction) = 0;

  // Appends one or more records, all or none, and makes them durable: payloads are ingested, the
  // records written in one synced batch, the witness synced. On success they are in records().
  //   kInvalidArgument: a body of more than 256 MiB, or a transaction that has a payload already
  //   kFailedPrecondition: opened read-only
  //   kResourceExhausted, kUnavailable: refused before the records' write began; nothing has
  //   changed.
  //     If failed() is true now, only reopening helps.
  //   kUnknown: the write began and its outcome cannot be known. The journal refuses further
  //   commits;
  //     reopening it settles the outcome, and then the records are wholly there or wholly absent.
  virtual absl::Status Commit(std::vector<NewRecord> records) = 0;

  // As Commit, but the records are only written, not synced: they survive the end of this process,
  // and a power failure may take them away, wholly. They are in records(). The next Sync or Commit
  // makes them durable.
  //   errors as for Commit
  virtual absl::Status Append(std::vector<NewRecord> records) = 0;

  // Makes what was appended durable. Nothing to do: OK.
  //   kFailedPrecondition: opened read-only
  //   kUnavailable: failed()
  //   kUnknown: as for Commit
  virtual absl::Status Sync() = 0;

  // Calls `visit` for each chunk of a committed payload with `first` <= key, in key order, until it
  // returns false or an error, or the chunks end. The chunk is valid during the call only. A read
  // that visits every chunk also compares their number and bytes with what was committed.
  //   kNotFound: no such payload
  //   kDataLoss: RocksDB's checksums do not match, or chunks are missing
  //   kUnavailable: an I/O error
  //   what `visit` returned
  virtual absl::Status ReadPayload(
      TransactionNumber transaction, const ChunkKey& first,
      const std::function<absl::StatusOr<bool>(const ChunkKey&, std::string_view)>& visit)
      const = 0;

  // True once a commit ended in kUnknown or the database stopped itself after an error in the
  // background: reading still works, but only reopening lets anything be written.
  virtual bool failed() const = 0;

  // Bytes of live SST files, WAL and manifest.
  virtual uint64_t size_bytes() const = 0;
};

}  // namespace wstore
