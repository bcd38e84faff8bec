#include "store/checkpoint/writer.h"

#include <errno.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/fault_list.h"
#include "common/status_macros.h"
#include "store/checkpoint/shard_index.h"

namespace wstore {
namespace {

absl::Span<const uint8_t> AsBytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

bool IsCheckpointFile(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
}

// The file itself, whatever paths lead to it; nothing if there is none.
std::optional<std::pair<dev_t, ino_t>> FileAt(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return std::pair(info.st_dev, info.st_ino);
}

std::string NameOf(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

std::string DirectoryOf(const std::string& path) {
  const std::string directory = std::filesystem::path(path).parent_path().string();
  return directory.empty() ? "." : directory;
}

absl::Status CopyFile(const std::string& path, StagingDirectory& staging) {
  ASSIGN_OR_RETURN(const PosixFile from, PosixFile::OpenForRead(path));
  struct stat info {};
  if (fstat(from.descriptor(), &info) != 0) return ErrnoStatus(errno, path, "cannot be examined");
  const auto size = static_cast<uint64_t>(info.st_size);
  ASSIGN_OR_RETURN(const PosixFile to, staging.AddFile(NameOf(path), size));
  std::vector<uint8_t> buffer(std::min<uint64_t>(size, 1 << 20));
  for (uint64_t at = 0; at < size; at += buffer.size()) {
    const auto piece = absl::MakeSpan(buffer).first(std::min<uint64_t>(buffer.size(), size - at));
    RETURN_IF_ERROR(from.ReadAt(at, piece));
    RETURN_IF_ERROR(to.WriteAt(at, piece));
  }
  return to.Sync();
}

}  // namespace

CheckpointWriter::CheckpointWriter(const Manifest& manifest, WriterOptions options)
    : manifest_(manifest), options_(std::move(options)), written_bytes_(manifest.size()) {}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(
    const std::string& out_directory, const Manifest& manifest, WriterOptions options) {
  auto writer =
      std::unique_ptr<CheckpointWriter>(new CheckpointWriter(manifest, std::move(options)));
  ASSIGN_OR_RETURN(writer->plan_, PlanExport(manifest, writer->options_.shard_size_bytes,
                                             writer->options_.metadata));
  std::set<std::string> names;
  for (const std::string& name : writer->FileNames()) names.insert(name);
  for (const std::string& path : writer->options_.carry_files) {
    writer->carried_.push_back(NameOf(path));
    const bool is_new = names.insert(writer->carried_.back()).second;
    if (!is_new || IsCheckpointFile(writer->carried_.back())) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": cannot be carried along: another file of the export has this name"));
    }
  }
  ASSIGN_OR_RETURN(writer->staging_, StagingDirectory::Create(out_directory));
  RETURN_IF_ERROR(writer->CheckTarget());
  RETURN_IF_ERROR(writer->StageFiles());
  return writer;
}

std::vector<std::string> CheckpointWriter::FileNames() const {
  std::vector<std::string> names;
  for (const ExportPlan::File& file : plan_.files) names.push_back(file.name);
  if (!plan_.index.empty()) names.push_back(kIndexFileName);
  return names;
}

absl::Status CheckpointWriter::CheckTarget() const {
  const std::string& target = staging_->target();
  const std::vector<std::string> file_names = FileNames();
  const std::set<std::string> names(file_names.begin(), file_names.end());
  std::set<std::pair<dev_t, ino_t>> replaced;
  for (const std::string& name : names) {
    if (const auto file = FileAt(absl::StrCat(target, "/", name))) replaced.insert(*file);
  }
  for (const std::string& path : options_.forbidden_paths) {
    const auto file = FileAt(path);
    if (FileAt(DirectoryOf(path)) == FileAt(target) || (file && replaced.contains(*file))) {
      return absl::FailedPreconditionError(
          absl::StrCat(target, ": holds ", path,
                       ", which is in use as a source; choose another directory to export to"));
    }
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> present, staging_->ListTarget());
  FaultList others;
  for (const std::string& name : present) {
    if (IsCheckpointFile(name) && !names.contains(name)) others.Add(Quoted(name));
  }
  if (others.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      target, ": holds files of another checkpoint: ", others.Text(), ". This export would write ",
      file_names.front(), names.size() == 1 ? "" : " to " + file_names.back(),
      " and replaces only these: remove the others, or choose another directory"));
}

absl::Status CheckpointWriter::StageFiles() {
  for (const ExportPlan::File& file : plan_.files) {
    ASSIGN_OR_RETURN(PosixFile staged, staging_->AddFile(file.name, file.size_bytes));
    RETURN_IF_ERROR(staged.WriteAt(0, AsBytes(file.header)));
    files_.push_back(std::move(staged));
  }
  if (!plan_.index.empty()) {
    ASSIGN_OR_RETURN(const PosixFile index, staging_->AddFile(kIndexFileName, plan_.index.size()));
    RETURN_IF_ERROR(index.WriteAt(0, AsBytes(plan_.index)));
    RETURN_IF_ERROR(index.Sync());
  }
  for (const std::string& path : options_.carry_files) RETURN_IF_ERROR(CopyFile(path, *staging_));
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Write(TensorIndex tensor, uint64_t offset_bytes,
                                     absl::Span<const uint8_t> data) {
  const uint64_t size = manifest_.tensor(tensor).size_bytes();
  WSTORE_CHECK(offset_bytes <= size && data.size() <= size - offset_bytes);
  const ExportPlan::Place& place = plan_.places[tensor];
  RETURN_IF_ERROR(files_[place.file].WriteAt(place.offset_bytes + offset_bytes, data));
  written_bytes_[tensor] += data.size();
  return absl::OkStatus();
}

absl::Status CheckpointWriter::CheckComplete() const {
  FaultList faults;
  for (TensorIndex i = 0; i < manifest_.size(); ++i) {
    const uint64_t needed = manifest_.tensor(i).size_bytes();
    const uint64_t written = written_bytes_[i];
    if (written == needed) continue;
    faults.Add(absl::StrCat("tensor ", Quoted(manifest_.tensor(i).spec.name), " has ",
                            Bytes(needed), ", ", written, " were written"));
  }
  if (faults.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(staging_->target(), ": the export is not complete: ", faults.Text()));
}

absl::Status CheckpointWriter::Finish() {
  RETURN_IF_ERROR(CheckComplete());
  for (const PosixFile& file : files_) RETURN_IF_ERROR(file.Sync());
  RETURN_IF_ERROR(CheckTarget());
  std::vector<std::string> names = carried_;
  for (const std::string& name : FileNames()) names.push_back(name);
  const std::string last = std::move(names.back());
  names.pop_back();
  const absl::Status published = staging_->Publish(names, last, !plan_.index.empty());
  if (!published.ok()) return published;
  files_.clear();
  staging_.reset();
  return absl::OkStatus();
}

}  // namespace wstore
