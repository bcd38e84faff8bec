#include "journal/ingest_guard.h"

#include <utility>

#include "absl/strings/match.h"

namespace wstore::journal {
namespace {

// The guard whose database this thread is ingesting into.
thread_local const IngestGuard* ingesting = nullptr;

}  // namespace

IngestGuard::IngestGuard(std::shared_ptr<rocksdb::FileSystem> target,
                         std::string database_directory)
    : FileSystemWrapper(std::move(target)), prefix_(std::move(database_directory) + "/") {}

IngestGuard::Scope::Scope(const IngestGuard& guard) { ingesting = &guard; }
IngestGuard::Scope::~Scope() { ingesting = nullptr; }

rocksdb::IOStatus IngestGuard::DeleteFile(const std::string& name,
                                          const rocksdb::IOOptions& options,
                                          rocksdb::IODebugContext* debug) {
  if (absl::StartsWith(name, prefix_)) {
    // A successful ingest removes a file too, but it is the one in the stage directory.
    if (ingesting == this) holds_files_ = true;
    if (holds_files_) return rocksdb::IOStatus::OK();
  }
  return FileSystemWrapper::DeleteFile(name, options, debug);
}

}  // namespace wstore::journal
