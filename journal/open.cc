#include "journal/open.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "journal/check.h"
#include "journal/database.h"
#include "journal/files.h"
#include "journal/journal_impl.h"
#include "journal/lock_file.h"
#include "journal/manifest_tail.h"
#include "journal/status.h"
#include "journal/witness.h"

namespace wstore::journal {
namespace {

// A database as a read-only open found it.
struct Snapshot {
  std::shared_ptr<rocksdb::FileSystem> file_system;  // with which it could be opened
  std::shared_ptr<Database> database;
  Contents contents;
  WitnessReading witness;
};

// kNotFound where there is no journal; OK where there is one, whole or not.
absl::Status CheckPresent(rocksdb::FileSystem& fs, const Paths& paths) {
  ASSIGN_OR_RETURN(const bool creating, Exists(fs, paths.creating));
  if (creating) {
    return absl::NotFoundError(absl::StrCat("the creation of a journal in ", paths.directory,
                                            " was not finished; create it again"));
  }
  ASSIGN_OR_RETURN(const bool witness, Exists(fs, paths.witness));
  ASSIGN_OR_RETURN(const bool database, Exists(fs, paths.database));
  if (!witness && !database) {
    return absl::NotFoundError(absl::StrCat("no journal in ", paths.directory));
  }
  return absl::OkStatus();
}

// Opens the database and checks what is in it.
absl::Status ReadDatabase(std::shared_ptr<rocksdb::FileSystem> fs, const Paths& paths,
                          Snapshot& snapshot) {
  snapshot.file_system = fs;
  ASSIGN_OR_RETURN(snapshot.database,
                   Database::Open(paths.database, OpenMode::kReadOnly, std::move(fs)));
  ASSIGN_OR_RETURN(snapshot.contents, CheckContents(*snapshot.database, snapshot.witness.state));
  return absl::OkStatus();
}

absl::StatusOr<Snapshot> ReadSnapshot(std::shared_ptr<rocksdb::FileSystem> fs, const Paths& paths) {
  Snapshot snapshot;
  // The witness first: what it names is in the database before it is in the witness.
  absl::StatusOr<WitnessReading> witness = ReadWitness(*fs, paths.witness);
  if (absl::IsNotFound(witness.status())) {
    return absl::DataLossError(
        absl::StrCat(paths.witness,
                     " is missing, so it cannot be told whether acknowledged records are too. "
                     "Nothing was changed. Restore a backup, or that file."));
  }
  ASSIGN_OR_RETURN(snapshot.witness, std::move(witness));
  const absl::Status whole = ReadDatabase(fs, paths, snapshot);
  if (!absl::IsDataLoss(whole)) {
    RETURN_IF_ERROR(whole);
    return snapshot;
  }
  // A power failure may have torn the end of the manifest. As with the WAL: what is whole before it
  // counts, and the witness tells whether that is enough.
  const absl::Status intact = ReadDatabase(HideTornManifestEnds(fs), paths, snapshot);
  if (absl::IsDataLoss(intact) && intact != whole) {
    return Prefixed(intact, absl::StrCat(whole.message(), "; with the manifest before its damage"));
  }
  RETURN_IF_ERROR(intact);
  return snapshot;
}

// Whatever a writer does, the size, the times or the name of some file changes; only the witness is
// written in place, and its times may not show it.
struct Picture {
  std::map<std::string, std::tuple<ino_t, off_t, time_t, long>> files;
  std::string witness;

  friend bool operator==(const Picture&, const Picture&) = default;
};

Picture TakePicture(rocksdb::FileSystem& fs, const Paths& paths) {
  Picture picture;
  const absl::StatusOr<std::vector<std::string>> names = List(fs, paths.database);
  if (names.ok()) {
    for (const std::string& name : *names) {
      struct stat info {};
      const bool there = stat((paths.database + "/" + name).c_str(), &info) == 0;
      picture.files[name] = {there ? info.st_ino : 0, info.st_size, info.st_mtim.tv_sec,
                             info.st_mtim.tv_nsec};
    }
  }
  picture.witness = ReadFile(fs, paths.witness, kWitnessBytes).value_or("");
  return picture;
}

// A writer beside us may remove a file between our reading of its name and our opening of it, which
// looks like damage. It is damage only if nothing has moved meanwhile.
absl::StatusOr<Snapshot> ReadSnapshotBesideWriter(const std::shared_ptr<rocksdb::FileSystem>& fs,
                                                  const Paths& paths) {
  constexpr int kAttempts = 30;
  absl::StatusOr<Snapshot> snapshot = ReadSnapshot(fs, paths);
  for (int attempt = 2; !snapshot.ok(); ++attempt) {
    if (attempt > kAttempts) {
      return absl::UnavailableError(absl::StrCat(
          "a writer changed the journal ", paths.directory, " in each of ", kAttempts,
          " attempts to read it; try again. The last one saw: ", snapshot.status().message()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(attempt, 20)));
    const Picture before = TakePicture(*fs, paths);
    snapshot = ReadSnapshot(fs, paths);
    if (!snapshot.ok() && TakePicture(*fs, paths) == before) return snapshot;
  }
  return snapshot;
}

// Leaves out what is not acknowledged: it may be gone after the next power loss.
absl::Status TrimToAcknowledged(rocksdb::FileSystem& fs, const Paths& paths, Snapshot& snapshot) {
  ASSIGN_OR_RETURN(WitnessReading now, ReadWitness(fs, paths.witness));
  if (now.generation < snapshot.witness.generation) now = snapshot.witness;
  std::vector<StoredRecord>& records = snapshot.contents.records;
  while (records.size() > now.state.records) {
    if (records.back().payload.has_value()) {
      snapshot.contents.payloads.erase(*records.back().payload);
    }
    records.pop_back();
  }
  snapshot.witness = now;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Journal>> OpenReadOnly(std::shared_ptr<rocksdb::FileSystem> fs,
                                                      const Paths& paths) {
  ASSIGN_OR_RETURN(Snapshot snapshot, ReadSnapshotBesideWriter(fs, paths));
  RETURN_IF_ERROR(TrimToAcknowledged(*fs, paths, snapshot));
  JournalImpl::Parts parts;
  parts.file_system = std::move(snapshot.file_system);
  parts.database = std::move(snapshot.database);
  parts.contents = std::move(snapshot.contents);
  parts.marks = snapshot.witness.state.marks;
  return std::make_unique<JournalImpl>(paths, std::move(parts));
}

absl::StatusOr<std::unique_ptr<Journal>> OpenForWriting(std::shared_ptr<rocksdb::FileSystem> fs,
                                                        const Paths& paths) {
  JournalImpl::Parts parts;
  ASSIGN_OR_RETURN(parts.lock, LockFile::Acquire(paths.lock));
  ASSIGN_OR_RETURN(Snapshot snapshot, ReadSnapshot(fs, paths));
  snapshot.database.reset();
  // All that was acknowledged is there. From here on files may be removed.
  ASSIGN_OR_RETURN(parts.database,
                   Database::Open(paths.database, OpenMode::kWrite, snapshot.file_system));
  RETURN_IF_ERROR(ToStatus(fs->CreateDirIfMissing(paths.stage, rocksdb::IOOptions(), nullptr),
                           absl::StrCat("creating ", paths.stage)));
  RETURN_IF_ERROR(RemoveFilesIn(*fs, paths.stage));
  RETURN_IF_ERROR(SweepPayloads(*parts.database, snapshot.contents.payloads));
  // Opening has rewritten what the WAL held, so a record without a witness is durable by now.
  const std::vector<StoredRecord>& records = snapshot.contents.records;
  snapshot.witness.state.records = records.size();
  if (!records.empty()) snapshot.witness.state.last_digest = records.back().digest;
  ASSIGN_OR_RETURN(parts.witness, Witness::Replace(fs, paths, snapshot.witness));
  parts.file_system = std::move(fs);
  parts.contents = std::move(snapshot.contents);
  parts.marks = snapshot.witness.state.marks;
  return std::make_unique<JournalImpl>(paths, std::move(parts));
}

// Refuses to create over anything but an unfinished creation, and clears that away.
absl::Status PrepareDirectory(rocksdb::FileSystem& fs, const Paths& paths) {
  ASSIGN_OR_RETURN(const bool creating, Exists(fs, paths.creating));
  if (!creating) {
    for (const std::string* path : {&paths.witness, &paths.database, &paths.stage}) {
      ASSIGN_OR_RETURN(const bool exists, Exists(fs, *path));
      if (exists) {
        return absl::AlreadyExistsError(absl::StrCat("a journal, or a part of one, is in ",
                                                     paths.directory, " already: ", *path));
      }
    }
    // On disk before anything else is, and off it after everything else is on it.
    RETURN_IF_ERROR(WriteFile(fs, paths.creating, ""));
    RETURN_IF_ERROR(SyncDirectory(fs, paths.directory));
  }
  ASSIGN_OR_RETURN(const bool witness, Exists(fs, paths.witness));
  if (witness) {
    RETURN_IF_ERROR(ToStatus(fs.DeleteFile(paths.witness, rocksdb::IOOptions(), nullptr),
                             absl::StrCat("removing ", paths.witness)));
  }
  for (const std::string* path : {&paths.database, &paths.stage}) {
    RETURN_IF_ERROR(RemoveFilesIn(fs, *path));
    RETURN_IF_ERROR(ToStatus(fs.CreateDirIfMissing(*path, rocksdb::IOOptions(), nullptr),
                             absl::StrCat("creating ", *path)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> CreateOn(std::shared_ptr<rocksdb::FileSystem> file_system,
                                                  const std::string& directory, NewRecord first) {
  if (first.payload != nullptr) {
    return absl::InvalidArgumentError("the first record of a journal cannot have a payload");
  }
  const Paths paths(directory);
  ASSIGN_OR_RETURN(const bool exists, Exists(*file_system, directory));
  if (!exists) return absl::NotFoundError(absl::StrCat("no directory ", directory));
  JournalImpl::Parts parts;
  ASSIGN_OR_RETURN(parts.lock, LockFile::Acquire(paths.lock));
  RETURN_IF_ERROR(PrepareDirectory(*file_system, paths));
  ASSIGN_OR_RETURN(parts.database, Database::Open(paths.database, OpenMode::kCreate, file_system));
  ASSIGN_OR_RETURN(parts.witness, Witness::Replace(file_system, paths, WitnessReading()));
  parts.file_system = file_system;
  auto journal = std::make_unique<JournalImpl>(paths, std::move(parts));
  std::vector<NewRecord> records;
  records.push_back(std::move(first));
  const absl::Status committed = journal->Commit(std::move(records));
  if (absl::IsUnknown(committed)) return absl::UnavailableError(committed.message());
  RETURN_IF_ERROR(committed);
  RETURN_IF_ERROR(SyncDirectory(*file_system, directory));
  RETURN_IF_ERROR(ToStatus(file_system->DeleteFile(paths.creating, rocksdb::IOOptions(), nullptr),
                           absl::StrCat("removing ", paths.creating)));
  if (const absl::Status synced = SyncDirectory(*file_system, directory); !synced.ok()) {
    return absl::UnknownError(
        absl::StrCat("whether the journal was created is not known: open it, or create it again: ",
                     synced.message()));
  }
  return journal;
}

absl::StatusOr<std::unique_ptr<Journal>> OpenOn(std::shared_ptr<rocksdb::FileSystem> file_system,
                                                const std::string& directory,
                                                const JournalOptions& options) {
  const Paths paths(directory);
  RETURN_IF_ERROR(CheckPresent(*file_system, paths));
  if (options.read_only) return OpenReadOnly(std::move(file_system), paths);
  return OpenForWriting(std::move(file_system), paths);
}

}  // namespace wstore::journal
