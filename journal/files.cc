#include "journal/files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "journal/status.h"

namespace wstore::journal {
namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

class ReadOnlyFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit ReadOnlyFileSystem(std::shared_ptr<rocksdb::FileSystem> target)
      : FileSystemWrapper(std::move(target)) {}

  const char* Name() const override { return "WstoreReadOnlyFileSystem"; }

  IOStatus NewWritableFile(const std::string& name, const FileOptions&,
                           std::unique_ptr<rocksdb::FSWritableFile>*, IODebugContext*) override {
    return Refuse(name);
  }
  IOStatus ReopenWritableFile(const std::string& name, const FileOptions&,
                              std::unique_ptr<rocksdb::FSWritableFile>*, IODebugContext*) override {
    return Refuse(name);
  }
  IOStatus ReuseWritableFile(const std::string& name, const std::string&, const FileOptions&,
                             std::unique_ptr<rocksdb::FSWritableFile>*, IODebugContext*) override {
    return Refuse(name);
  }
  IOStatus NewRandomRWFile(const std::string& name, const FileOptions&,
                           std::unique_ptr<rocksdb::FSRandomRWFile>*, IODebugContext*) override {
    return Refuse(name);
  }
  IOStatus DeleteFile(const std::string& name, const IOOptions&, IODebugContext*) override {
    return Refuse(name);
  }
  IOStatus Truncate(const std::string& name, size_t, const IOOptions&, IODebugContext*) override {
    return Refuse(name);
  }
  IOStatus CreateDir(const std::string& name, const IOOptions&, IODebugContext*) override {
    return Refuse(name);
  }
  // Asked for the database directory itself, which exists.
  IOStatus CreateDirIfMissing(const std::string&, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }
  IOStatus DeleteDir(const std::string& name, const IOOptions&, IODebugContext*) override {
    return Refuse(name);
  }
  IOStatus RenameFile(const std::string& name, const std::string&, const IOOptions&,
                      IODebugContext*) override {
    return Refuse(name);
  }
  IOStatus LinkFile(const std::string& name, const std::string&, const IOOptions&,
                    IODebugContext*) override {
    return Refuse(name);
  }
  IOStatus LockFile(const std::string& name, const IOOptions&, rocksdb::FileLock**,
                    IODebugContext*) override {
    return Refuse(name);
  }

 private:
  static IOStatus Refuse(const std::string& name) {
    return IOStatus::NotSupported("opened read-only", name);
  }
};

}  // namespace

Paths::Paths(const std::string& journal_directory)
    : directory(journal_directory),
      lock(directory + "/LOCK"),
      creating(directory + "/creating"),
      database(directory + "/db"),
      stage(directory + "/stage"),
      witness(directory + "/witness"),
      new_witness(stage + "/witness") {}

absl::StatusOr<bool> Exists(rocksdb::FileSystem& fs, const std::string& path) {
  const IOStatus status = fs.FileExists(path, IOOptions(), nullptr);
  if (status.ok()) return true;
  if (status.IsNotFound()) return false;
  return ToStatus(status, absl::StrCat("looking for ", path));
}

absl::StatusOr<std::vector<std::string>> List(rocksdb::FileSystem& fs,
                                              const std::string& directory) {
  std::vector<std::string> names;
  const IOStatus status = fs.GetChildren(directory, IOOptions(), &names, nullptr);
  if (IsMissingFile(status)) return std::vector<std::string>();
  RETURN_IF_ERROR(ToStatus(status, absl::StrCat("listing ", directory)));
  names.erase(std::remove_if(names.begin(), names.end(),
                             [](const std::string& name) { return name == "." || name == ".."; }),
              names.end());
  return names;
}

absl::StatusOr<std::string> ReadFile(rocksdb::FileSystem& fs, const std::string& path,
                                     size_t limit_bytes) {
  const std::string what = absl::StrCat("reading ", path);
  std::unique_ptr<rocksdb::FSSequentialFile> file;
  IOStatus status = fs.NewSequentialFile(path, FileOptions(), &file, nullptr);
  if (IsMissingFile(status)) return absl::NotFoundError(absl::StrCat(what, ": no such file"));
  RETURN_IF_ERROR(ToStatus(status, what));
  std::string content(limit_bytes, '\0');
  rocksdb::Slice read;
  RETURN_IF_ERROR(
      ToStatus(file->Read(limit_bytes, IOOptions(), &read, content.data(), nullptr), what));
  if (read.data() != content.data()) return read.ToString();
  content.resize(read.size());
  return content;
}

absl::Status WriteFile(rocksdb::FileSystem& fs, const std::string& path, std::string_view content) {
  const std::string what = absl::StrCat("writing ", path);
  std::unique_ptr<rocksdb::FSWritableFile> file;
  RETURN_IF_ERROR(ToStatus(fs.NewWritableFile(path, FileOptions(), &file, nullptr), what));
  const rocksdb::Slice data(content.data(), content.size());
  RETURN_IF_ERROR(ToStatus(file->Append(data, IOOptions(), nullptr), what));
  RETURN_IF_ERROR(ToStatus(file->Sync(IOOptions(), nullptr), what));
  return ToStatus(file->Close(IOOptions(), nullptr), what);
}

absl::Status RemoveFilesIn(rocksdb::FileSystem& fs, const std::string& directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, List(fs, directory));
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(directory, "/", name);
    RETURN_IF_ERROR(
        ToStatus(fs.DeleteFile(path, IOOptions(), nullptr), absl::StrCat("removing ", path)));
  }
  return absl::OkStatus();
}

absl::Status CheckSpace(rocksdb::FileSystem& fs, const std::string& path, uint64_t bytes) {
  constexpr uint64_t kReserveBytes = 8 << 20;
  uint64_t free_bytes = 0;
  // A file system that cannot say how much is free is not refused for it.
  if (!fs.GetFreeSpace(path, IOOptions(), &free_bytes, nullptr).ok()) return absl::OkStatus();
  if (free_bytes >= kReserveBytes && free_bytes - kReserveBytes >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no space: ", free_bytes, " bytes are free at ", path, ", and this write needs ",
                   bytes, " with ", kReserveBytes, " left over. Free some space and try again."));
}

absl::Status SyncDirectory(rocksdb::FileSystem& fs, const std::string& directory) {
  const std::string what = absl::StrCat("syncing ", directory);
  std::unique_ptr<rocksdb::FSDirectory> handle;
  RETURN_IF_ERROR(ToStatus(fs.NewDirectory(directory, IOOptions(), &handle, nullptr), what));
  // On some file systems RocksDB leaves directory syncs out unless they are forced.
  RETURN_IF_ERROR(ToStatus(handle->Fsync(IOOptions(/*force_dir_fsync_=*/true), nullptr), what));
  return ToStatus(handle->Close(IOOptions(), nullptr), what);
}

std::shared_ptr<rocksdb::FileSystem> MakeReadOnly(std::shared_ptr<rocksdb::FileSystem> target) {
  return std::make_shared<ReadOnlyFileSystem>(std::move(target));
}

}  // namespace wstore::journal
