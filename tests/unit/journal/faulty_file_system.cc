#include "tests/unit/journal/faulty_file_system.h"

#include <filesystem>
#include <fstream>

#include "tests/unit/journal/journal_testing.h"

namespace wstore::testing {
namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

class FaultyWritableFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FaultyWritableFile(std::unique_ptr<rocksdb::FSWritableFile> target, FaultyFileSystem* fs,
                     std::string name, std::shared_ptr<FaultyFileSystem::FileState> state)
      : FSWritableFileOwnerWrapper(std::move(target)),
        target_(FSWritableFileOwnerWrapper::target()),
        fs_(fs),
        name_(std::move(name)),
        state_(std::move(state)) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    if (IOStatus s = fs_->Operation("append " + name_); !s.ok()) return s;
    fs_->OnAppend(*state_, data.size());
    return target_->Append(data, options, debug);
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* debug) override {
    return Append(data, options, debug);
  }
  IOStatus Truncate(uint64_t size, const IOOptions& options, IODebugContext* debug) override {
    if (IOStatus s = fs_->Operation("truncate " + name_); !s.ok()) return s;
    fs_->OnTruncate(*state_, size);
    return target_->Truncate(size, options, debug);
  }
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    const IOStatus status = fs_->Operation("sync " + name_);
    fs_->OnSync(*state_, status.ok());
    return status;
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return Sync(options, debug);
  }
  // Hints, which promise nothing.
  IOStatus RangeSync(uint64_t, uint64_t, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }
  IOStatus Allocate(uint64_t, uint64_t, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }
  void PrepareWrite(size_t, size_t, const IOOptions&, IODebugContext*) override {}

 private:
  rocksdb::FSWritableFile* const target_;
  FaultyFileSystem* const fs_;
  const std::string name_;
  const std::shared_ptr<FaultyFileSystem::FileState> state_;
};

class FaultyRandomFile : public rocksdb::FSRandomRWFileOwnerWrapper {
 public:
  FaultyRandomFile(std::unique_ptr<rocksdb::FSRandomRWFile> target, FaultyFileSystem* fs,
                   std::string name, std::shared_ptr<FaultyFileSystem::FileState> state)
      : FSRandomRWFileOwnerWrapper(std::move(target)),
        target_(FSRandomRWFileOwnerWrapper::target()),
        fs_(fs),
        name_(std::move(name)),
        state_(std::move(state)) {}

  IOStatus Write(uint64_t offset, const Slice& data, const IOOptions& options,
                 IODebugContext* debug) override {
    if (IOStatus s = fs_->Operation("overwrite " + name_); !s.ok()) return s;
    std::string before(data.size(), '\0');
    Slice read;
    if (IOStatus s = target_->Read(offset, data.size(), options, &read, before.data(), debug);
        !s.ok()) {
      return s;
    }
    fs_->OnOverwrite(*state_, offset, read.ToString());
    return target_->Write(offset, data, options, debug);
  }
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    const IOStatus status = fs_->Operation("sync " + name_);
    fs_->OnSync(*state_, status.ok());
    return status;
  }

 private:
  rocksdb::FSRandomRWFile* const target_;
  FaultyFileSystem* const fs_;
  const std::string name_;
  const std::shared_ptr<FaultyFileSystem::FileState> state_;
};

class FaultyDirectory : public rocksdb::FSDirectoryWrapper {
 public:
  FaultyDirectory(std::unique_ptr<rocksdb::FSDirectory> target, FaultyFileSystem* fs,
                  std::string name)
      : FSDirectoryWrapper(std::move(target)), fs_(fs), name_(std::move(name)) {}

  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    if (IOStatus s = fs_->Operation("sync " + name_); !s.ok()) return s;
    fs_->OnDirectorySync(name_);
    return IOStatus::OK();
  }
  IOStatus FsyncWithDirOptions(const IOOptions& options, IODebugContext* debug,
                               const rocksdb::DirFsyncOptions&) override {
    return Fsync(options, debug);
  }

 private:
  FaultyFileSystem* const fs_;
  const std::string name_;
};

std::string Directory(const std::string& name) {
  return std::filesystem::path(name).parent_path().string();
}

std::string Plain(std::string name) {
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  return name;
}

}  // namespace

FaultyFileSystem::FaultyFileSystem(Fault fault, uint64_t at_operation, std::string graveyard)
    : FileSystemWrapper(rocksdb::FileSystem::Default()),
      fault_(fault),
      at_operation_(at_operation),
      graveyard_(std::move(graveyard)) {
  std::filesystem::create_directories(graveyard_);
}

bool FaultyFileSystem::fired() const {
  std::lock_guard lock(mutex_);
  return fired_;
}

uint64_t FaultyFileSystem::operations() const {
  std::lock_guard lock(mutex_);
  return operations_;
}

IOStatus FaultyFileSystem::Operation(const std::string& what) {
  std::lock_guard lock(mutex_);
  ++operations_;
  const bool fails = fault_ == Fault::kErrors
                         ? operations_ >= at_operation_
                         : fault_ != Fault::kNone && operations_ == at_operation_;
  if (!fails) return IOStatus::OK();
  fired_ = true;
  if (fault_ == Fault::kNoSpaceOnce) return IOStatus::NoSpace("injected", what);
  return IOStatus::IOError("injected", what);
}

void FaultyFileSystem::OnAppend(FileState& file, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  file.size += bytes;
}

void FaultyFileSystem::OnOverwrite(FileState& file, uint64_t offset, std::string before) {
  std::lock_guard lock(mutex_);
  file.overwritten.emplace_back(offset, std::move(before));
}

void FaultyFileSystem::OnTruncate(FileState& file, uint64_t size) {
  std::lock_guard lock(mutex_);
  file.size = size;
  file.synced_size = std::min(file.synced_size, size);
}

void FaultyFileSystem::OnSync(FileState& file, bool ok) {
  std::lock_guard lock(mutex_);
  if (!ok) file.sync_failed = true;
  if (file.sync_failed) return;
  file.synced_size = file.size;
  file.overwritten.clear();
}

void FaultyFileSystem::OnDirectorySync(const std::string& directory) {
  std::lock_guard lock(mutex_);
  changes_.erase(directory);
}

// Files that were there before are on the disk.
std::shared_ptr<FaultyFileSystem::FileState> FaultyFileSystem::StateOf(const std::string& name) {
  std::shared_ptr<FileState>& state = files_[name];
  if (state == nullptr) {
    state = std::make_shared<FileState>();
    std::error_code missing;
    const uint64_t size = std::filesystem::file_size(name, missing);
    if (!missing) state->size = state->synced_size = size;
  }
  return state;
}

// Keeps a link to the file at `name`, if there is one.
std::string FaultyFileSystem::Bury(const std::string& name) {
  if (!std::filesystem::exists(name)) return "";
  const std::string saved = graveyard_ + "/" + std::to_string(buried_++);
  std::filesystem::create_hard_link(name, saved);
  return saved;
}

IOStatus FaultyFileSystem::NewWritableFile(const std::string& raw_name, const FileOptions& options,
                                           std::unique_ptr<rocksdb::FSWritableFile>* result,
                                           IODebugContext* debug) {
  const std::string name = Plain(raw_name);
  if (IOStatus s = Operation("create " + name); !s.ok()) return s;
  std::shared_ptr<FileState> state;
  {
    std::lock_guard lock(mutex_);
    NameChange change{NameChange::Kind::kCreate, name, "", Bury(name), nullptr};
    if (!change.saved.empty()) {
      change.saved_state = StateOf(name);
      std::filesystem::remove(name);  // the saved link must keep its content
    }
    changes_[Directory(name)].push_back(change);
    state = files_[name] = std::make_shared<FileState>();
  }
  IOStatus s = target()->NewWritableFile(name, options, result, debug);
  if (s.ok()) *result = std::make_unique<FaultyWritableFile>(std::move(*result), this, name, state);
  return s;
}

IOStatus FaultyFileSystem::ReopenWritableFile(const std::string& raw_name,
                                              const FileOptions& options,
                                              std::unique_ptr<rocksdb::FSWritableFile>* result,
                                              IODebugContext* debug) {
  const std::string name = Plain(raw_name);
  if (IOStatus s = Operation("reopen " + name); !s.ok()) return s;
  std::shared_ptr<FileState> state;
  {
    std::lock_guard lock(mutex_);
    state = StateOf(name);
  }
  IOStatus s = target()->ReopenWritableFile(name, options, result, debug);
  if (s.ok()) *result = std::make_unique<FaultyWritableFile>(std::move(*result), this, name, state);
  return s;
}

IOStatus FaultyFileSystem::NewRandomRWFile(const std::string& raw_name, const FileOptions& options,
                                           std::unique_ptr<rocksdb::FSRandomRWFile>* result,
                                           IODebugContext* debug) {
  const std::string name = Plain(raw_name);
  if (IOStatus s = Operation("open " + name); !s.ok()) return s;
  std::shared_ptr<FileState> state;
  {
    std::lock_guard lock(mutex_);
    state = StateOf(name);
  }
  IOStatus s = target()->NewRandomRWFile(name, options, result, debug);
  if (s.ok()) *result = std::make_unique<FaultyRandomFile>(std::move(*result), this, name, state);
  return s;
}

IOStatus FaultyFileSystem::NewDirectory(const std::string& name, const IOOptions& options,
                                        std::unique_ptr<rocksdb::FSDirectory>* result,
                                        IODebugContext* debug) {
  IOStatus s = target()->NewDirectory(name, options, result, debug);
  if (s.ok()) *result = std::make_unique<FaultyDirectory>(std::move(*result), this, Plain(name));
  return s;
}

IOStatus FaultyFileSystem::DeleteFile(const std::string& raw_name, const IOOptions& options,
                                      IODebugContext* debug) {
  const std::string name = Plain(raw_name);
  if (IOStatus s = Operation("delete " + name); !s.ok()) return s;
  std::lock_guard lock(mutex_);
  NameChange change{NameChange::Kind::kDelete, name, "", Bury(name), nullptr};
  if (!change.saved.empty()) {
    change.saved_state = StateOf(name);
    files_.erase(name);
    changes_[Directory(name)].push_back(change);
  }
  return target()->DeleteFile(name, options, debug);
}

IOStatus FaultyFileSystem::CreateDirIfMissing(const std::string& name, const IOOptions& options,
                                              IODebugContext* debug) {
  if (std::filesystem::exists(name)) return IOStatus::OK();
  if (IOStatus s = Operation("mkdir " + name); !s.ok()) return s;
  {
    std::lock_guard lock(mutex_);
    changes_[Directory(Plain(name))].push_back(
        {NameChange::Kind::kCreate, Plain(name), "", "", nullptr});
  }
  return target()->CreateDirIfMissing(name, options, debug);
}

IOStatus FaultyFileSystem::RenameFile(const std::string& raw_from, const std::string& raw_to,
                                      const IOOptions& options, IODebugContext* debug) {
  const std::string from = Plain(raw_from);
  const std::string to = Plain(raw_to);
  if (IOStatus s = Operation("rename " + from + " to " + to); !s.ok()) return s;
  std::lock_guard lock(mutex_);
  NameChange change{NameChange::Kind::kRename, to, from, Bury(to), nullptr};
  if (!change.saved.empty()) change.saved_state = StateOf(to);
  files_[to] = StateOf(from);
  files_.erase(from);
  // The file that was created under its old name is one that appeared under its new one.
  changes_[Directory(to)].push_back(change);
  return target()->RenameFile(from, to, options, debug);
}

IOStatus FaultyFileSystem::LinkFile(const std::string& raw_from, const std::string& raw_to,
                                    const IOOptions& options, IODebugContext* debug) {
  const std::string from = Plain(raw_from);
  const std::string to = Plain(raw_to);
  if (IOStatus s = Operation("link " + from + " to " + to); !s.ok()) return s;
  std::lock_guard lock(mutex_);
  files_[to] = StateOf(from);
  changes_[Directory(to)].push_back({NameChange::Kind::kCreate, to, "", "", nullptr});
  return target()->LinkFile(from, to, options, debug);
}

IOStatus FaultyFileSystem::GetFreeSpace(const std::string& path, const IOOptions& options,
                                        uint64_t* free_bytes, IODebugContext* debug) {
  if (free_space_ == UINT64_MAX) return target()->GetFreeSpace(path, options, free_bytes, debug);
  *free_bytes = free_space_;
  return IOStatus::OK();
}

void FaultyFileSystem::Undo(const NameChange& change) {
  std::error_code ignored;
  if (change.kind == NameChange::Kind::kRename) {
    std::filesystem::rename(change.name, change.from, ignored);
    files_[change.from] = files_[change.name];
  } else if (change.kind == NameChange::Kind::kCreate) {
    std::filesystem::remove_all(change.name, ignored);
  }
  files_.erase(change.name);
  if (!change.saved.empty()) {
    std::filesystem::rename(change.saved, change.name, ignored);
    files_[change.name] = change.saved_state;
  }
}

namespace {

// The file may have become as long as it was, but not all of its pages were written.
void LoseUnsyncedEnd(std::string& content, uint64_t synced_size, std::mt19937_64& random) {
  if (content.size() <= synced_size) return;
  if (random() % 2 == 0) {
    content.resize(synced_size + random() % (content.size() - synced_size + 1));
  }
  if (content.size() > synced_size && random() % 2 == 0) {
    const uint64_t from = synced_size + random() % (content.size() - synced_size);
    const uint64_t bytes = 1 + random() % (content.size() - from);
    content.replace(from, bytes, bytes, '\0');
  }
}

}  // namespace

void FaultyFileSystem::LosePower(uint64_t seed) {
  std::lock_guard lock(mutex_);
  std::mt19937_64 random(seed);
  for (auto& [directory, changes] : changes_) {
    // A directory's changes reach the disk in their order, up to some point.
    const size_t kept = random() % (changes.size() + 1);
    while (changes.size() > kept) {
      Undo(changes.back());
      changes.pop_back();
    }
  }
  for (const auto& [name, state] : files_) {
    if (state == nullptr || !std::filesystem::is_regular_file(name)) continue;
    std::string content = ReadWholeFile(name);
    for (const auto& [offset, before] : state->overwritten) {
      for (size_t block = 0; block < before.size(); block += 4096) {
        if (random() % 2 == 0) continue;
        const std::string old = before.substr(block, 4096);
        content.replace(offset + block, old.size(), old);
      }
    }
    LoseUnsyncedEnd(content, state->synced_size, random);
    WriteWholeFile(name, content);
  }
  changes_.clear();
  files_.clear();
}

}  // namespace wstore::testing
