#include "store/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/fault_list.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "store/checkpoint/safetensors_header.h"
#include "store/checkpoint/shard_index.h"

namespace wstore {
namespace {

FileIdentity IdentityOf(const struct stat& info, const std::string& path) {
  constexpr int64_t kNanosPerSecond = 1'000'000'000;
  return {path, static_cast<uint64_t>(info.st_size),
          info.st_mtim.tv_sec * kNanosPerSecond + info.st_mtim.tv_nsec, info.st_ino};
}

// Absolute, with the directory's links resolved and the last name kept: a snapshot directory whose
// files are links into a cache stays where the user knows it.
absl::StatusOr<std::string> ResolvePath(const std::string& path, bool is_directory) {
  const std::filesystem::path whole(path);
  const std::filesystem::path directory = is_directory ? whole : whole.parent_path();
  std::error_code error;
  std::filesystem::path resolved =
      std::filesystem::canonical(directory.empty() ? "." : directory, error);
  if (error) return ErrnoStatus(error.value(), path, "cannot be resolved");
  return (is_directory ? resolved : resolved / whole.filename()).string();
}

// Whether the name is there at all, be it a link that leads nowhere.
bool IsPresent(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 || errno != ENOENT;
}

absl::StatusOr<std::string> ReadIndexFile(const std::string& path) {
  ASSIGN_OR_RETURN(const PosixFile file, PosixFile::OpenForRead(path));
  struct stat info {};
  if (fstat(file.descriptor(), &info) != 0) return ErrnoStatus(errno, path, "cannot be examined");
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size > kMaxIndexBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", size, " bytes; the limit is ", kMaxIndexBytes));
  }
  std::string text(size, '\0');
  RETURN_IF_ERROR(
      file.ReadAt(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size())));
  return text;
}

absl::StatusOr<SafetensorsHeader> ReadHeader(const PosixFile& file, uint64_t file_size_bytes,
                                             uint64_t* data_start) {
  std::array<uint8_t, 8> first{};
  const auto present = absl::MakeSpan(first).first(std::min<uint64_t>(8, file_size_bytes));
  RETURN_IF_ERROR(file.ReadAt(0, present));
  const absl::StatusOr<uint64_t> length = ParseHeaderLength(present, file_size_bytes);
  if (!length.ok()) return Prefixed(length.status(), file.path());
  *data_start = first.size() + *length;
  std::string json(*length, '\0');
  RETURN_IF_ERROR(file.ReadAt(
      first.size(), absl::MakeSpan(reinterpret_cast<uint8_t*>(json.data()), json.size())));
  absl::StatusOr<SafetensorsHeader> header = ParseHeader(json, file_size_bytes - *data_start);
  if (!header.ok()) return Prefixed(header.status(), file.path());
  return header;
}

// Kinds of disagreement between an index and its shards, each with all of its offenders.
struct IndexFaults {
  FaultList repeated;
  FaultList absent;
  FaultList unnamed;

  absl::Status ToStatus() const {
    std::string text;
    const auto append = [&text](absl::string_view kind, const FaultList& faults) {
      if (faults.empty()) return;
      absl::StrAppend(&text, text.empty() ? "" : ". ", kind, ": ", faults.Text());
    };
    append("tensors in two shards", repeated);
    append("tensors of the index that are not in their shard", absent);
    append("tensors of shards that the index does not name", unnamed);
    return text.empty() ? absl::OkStatus() : absl::InvalidArgumentError(text);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path, "cannot be opened");
  auto checkpoint = std::unique_ptr<Checkpoint>(new Checkpoint);
  checkpoint->is_directory_ = S_ISDIR(info.st_mode);
  ASSIGN_OR_RETURN(checkpoint->path_, ResolvePath(path, checkpoint->is_directory_));
  const std::string& resolved = checkpoint->path_;
  if (!checkpoint->is_directory_) {
    RETURN_IF_ERROR(checkpoint->OpenSingle(resolved));
  } else if (const std::string index = absl::StrCat(resolved, "/", kIndexFileName);
             IsPresent(index)) {
    RETURN_IF_ERROR(checkpoint->OpenSharded(index));
  } else if (const std::string single = absl::StrCat(resolved, "/", kSingleFileName);
             IsPresent(single)) {
    RETURN_IF_ERROR(checkpoint->OpenSingle(single));
  } else {
    return absl::NotFoundError(
        absl::StrCat(resolved, ": holds neither ", kIndexFileName, " nor ", kSingleFileName));
  }
  return checkpoint;
}

absl::Status Checkpoint::OpenSingle(const std::string& path) {
  std::vector<PlacedSpec> tensors;
  RETURN_IF_ERROR(AddFile(path, &tensors));
  return SetTensors(std::move(tensors));
}

absl::Status Checkpoint::AddFile(const std::string& path, std::vector<PlacedSpec>* tensors) {
  ASSIGN_OR_RETURN(PosixFile file, PosixFile::OpenForRead(path));
  struct stat info {};
  if (fstat(file.descriptor(), &info) != 0) return ErrnoStatus(errno, path, "cannot be examined");
  FileIdentity identity = IdentityOf(info, path);
  uint64_t data_start = 0;
  ASSIGN_OR_RETURN(SafetensorsHeader header, ReadHeader(file, identity.size_bytes, &data_start));
  // A wish only: weights are read from front to back, so the kernel may read further ahead.
  (void)posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL);
  const auto number = static_cast<uint32_t>(files_.size());
  for (PlacedTensor& tensor : header.tensors) {
    tensors->push_back({std::move(tensor.spec), {number, data_start + tensor.begin}});
  }
  metadata_.merge(header.metadata);
  files_.push_back(std::move(file));
  identities_.push_back(std::move(identity));
  return absl::OkStatus();
}

absl::Status Checkpoint::OpenSharded(const std::string& index_path) {
  ASSIGN_OR_RETURN(const std::string text, ReadIndexFile(index_path));
  const absl::StatusOr<ShardIndex> index = ParseShardIndex(text);
  if (!index.ok()) return Prefixed(index.status(), index_path);

  FaultList missing;
  FaultList unsound;
  std::vector<PlacedSpec> tensors;
  for (const std::string& name : index->files) {
    const absl::Status status = AddFile(absl::StrCat(path_, "/", name), &tensors);
    if (absl::IsNotFound(status)) {
      missing.Add(Quoted(name));
    } else if (absl::IsInvalidArgument(status)) {
      unsound.Add(std::string(status.message()));
    } else if (!status.ok()) {
      return status;
    }
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_path, ": names files that are missing: ", missing.Text(), ". It names ",
                     index->files.size(), "; all must be there"));
  }
  RETURN_IF_ERROR(unsound.ToStatus());

  std::stable_sort(tensors.begin(), tensors.end(), [](const PlacedSpec& a, const PlacedSpec& b) {
    return a.spec.name < b.spec.name;
  });
  RETURN_IF_ERROR(Prefixed(CompareWithIndex(*index, tensors), index_path));
  return SetTensors(std::move(tensors));
}

absl::Status Checkpoint::CompareWithIndex(const ShardIndex& index,
                                          const std::vector<PlacedSpec>& sorted) {
  IndexFaults faults;
  auto entry = index.entries.begin();
  // Both sides are in the order of names: one walk over the two.
  for (auto at = sorted.begin(); at != sorted.end();) {
    const std::string& name = at->spec.name;
    auto last = at;
    while (last + 1 != sorted.end() && (last + 1)->spec.name == name) ++last;
    const std::string& file = index.files[at->place.file];
    for (; entry != index.entries.end() && entry->tensor < name; ++entry) {
      faults.absent.Add(Quoted(entry->tensor) + " in " + Quoted(index.files[entry->file]));
    }
    const bool is_named = entry != index.entries.end() && entry->tensor == name;
    if (last != at) {
      const std::string& other = index.files[last->place.file];
      faults.repeated.Add(absl::StrCat(Quoted(name), " in ", Quoted(file), " and ", Quoted(other)));
    } else if (!is_named) {
      faults.unnamed.Add(absl::StrCat(Quoted(name), " in ", Quoted(file)));
    } else if (entry->file != at->place.file) {
      faults.absent.Add(absl::StrCat(Quoted(name), " in ", Quoted(index.files[entry->file]),
                                     " (it is in ", Quoted(file), ")"));
    }
    if (is_named) ++entry;
    at = last + 1;
  }
  for (; entry != index.entries.end(); ++entry) {
    faults.absent.Add(Quoted(entry->tensor) + " in " + Quoted(index.files[entry->file]));
  }
  return faults.ToStatus();
}

absl::Status Checkpoint::SetTensors(std::vector<PlacedSpec> tensors) {
  // Sorted by name and without repeats, so the manifest keeps the order.
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  places_.reserve(tensors.size());
  for (PlacedSpec& tensor : tensors) {
    specs.push_back(std::move(tensor.spec));
    places_.push_back(tensor.place);
  }
  absl::StatusOr<Manifest> manifest = Manifest::Create(std::move(specs));
  if (!manifest.ok()) return Prefixed(manifest.status(), path_);
  manifest_ = *std::move(manifest);
  WSTORE_CHECK(manifest_.size() == places_.size());
  return absl::OkStatus();
}

absl::Status Checkpoint::CheckUnchanged() const {
  FaultList changed;
  for (size_t i = 0; i < files_.size(); ++i) {
    const FileIdentity& then = identities_[i];
    struct stat opened {};
    struct stat at_path {};
    if (fstat(files_[i].descriptor(), &opened) != 0) {
      return ErrnoStatus(errno, then.path, "cannot be examined");
    }
    if (stat(then.path.c_str(), &at_path) != 0) {
      changed.Add(absl::StrCat(then.path, " is no longer there"));
    } else if (at_path.st_ino != then.inode) {
      changed.Add(absl::StrCat(then.path, " was replaced by another file"));
    } else if (IdentityOf(at_path, then.path) != then || IdentityOf(opened, then.path) != then) {
      changed.Add(absl::StrCat(then.path, " was changed in place (", then.size_bytes,
                               " bytes when opened, ", opened.st_size, " now)"));
    }
  }
  if (changed.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the checkpoint is not what it was when opened: ", changed.Text()));
}

absl::Status Checkpoint::Read(TensorIndex tensor, uint64_t offset_bytes,
                              absl::Span<uint8_t> out) const {
  const uint64_t size = manifest_.tensor(tensor).size_bytes();
  WSTORE_CHECK(offset_bytes <= size && out.size() <= size - offset_bytes);
  const Place& place = places_[tensor];
  return files_[place.file].ReadAt(place.offset_bytes + offset_bytes, out);
}

}  // namespace wstore
