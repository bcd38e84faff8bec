#include "wstore/journal.h"

#include <utility>

#include "journal/open.h"

namespace wstore {

absl::StatusOr<std::unique_ptr<Journal>> Journal::Create(const std::string& directory,
                                                         NewRecord first) {
  return journal::CreateOn(rocksdb::FileSystem::Default(), directory, std::move(first));
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(const std::string& directory,
                                                       const JournalOptions& options) {
  return journal::OpenOn(rocksdb::FileSystem::Default(), directory, options);
}

}  // namespace wstore
