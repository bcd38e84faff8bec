// Writes a dense checkpoint as safetensors files. docs/formats/checkpoint.md says what it writes.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "store/checkpoint/export_plan.h"
#include "store/checkpoint/posix_file.h"
#include "store/checkpoint/staging_directory.h"
#include "wstore/manifest.h"

namespace wstore {

struct WriterOptions {
  // Data bytes of a shard; a tensor is never split, so one that is larger has a shard of its own.
  uint64_t shard_size_bytes = 5'000'000'000;
  // The "__metadata__" of every file.
  std::map<std::string, std::string> metadata;
  // Paths of files to be copied beside the tensors under their own names; see carry_files.h.
  std::vector<std::string> carry_files;
  // Paths of files that are in use, such as those of an open base: neither they nor anything in
  // their directories is written.
  std::vector<std::string> forbidden_paths;
};

// One export. Everything is written into a hidden folder of the output directory and renamed into
// place by Finish; until then, and after any failure before Finish, the directory holds what it
// held. A process that is killed leaves the hidden folder behind (".wstore-export-XXXXXX"), which
// the next export into the same directory removes.
//
// The same manifest, options and bytes give the same files, bit for bit.
class CheckpointWriter {
 public:
  // Creates `out_directory` if it is not there (its parent must be), reserves the space of all
  // files, and copies the carried ones.
  //   kAlreadyExists: the directory holds safetensors files or an index other than those this
  //   export would
  //     write: readers could mix the two. All are named
  //   kFailedPrecondition: it holds a file of forbidden_paths, or another export into it is running
  //   kInvalidArgument: see PlanExport; a carried file's name twice, or that of a tensor file
  //   kNotFound: no parent directory, or no such carried file
  //   kResourceExhausted: no space (bytes needed are given), or too many shards to hold open
  // `manifest` must outlive the writer.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const std::string& out_directory,
                                                                  const Manifest& manifest,
                                                                  WriterOptions options);

  // Without Finish, or if that failed: removes everything that is not in place.
  ~CheckpointWriter() = default;

  // Writes bytes of a tensor, in any order, each byte once. Thread-safe; not durable until Finish.
  //   kResourceExhausted: no space
  absl::Status Write(TensorIndex tensor, uint64_t offset_bytes, absl::Span<const uint8_t> data);

  // Makes all files durable and puts them in place: carried files, then shards, the index (or the
  // single model.safetensors) last. An index that is to be replaced is removed before the first
  // shard is, so a crash leaves no index beside a mixture of shards. Files that replace others do
  // so by rename. Durable on return. Once; no Write may run or follow.
  //   kFailedPrecondition: bytes of some tensors were never written (named), or twice; nothing is
  //   in
  //     place. Also what Create refuses, if the directory has changed since
  //   others as the system says; some files may be in place, each of them complete
  absl::Status Finish();

  // Names of the files, in the order of the tensors; the index, if any, comes last.
  std::vector<std::string> FileNames() const;

 private:
  CheckpointWriter(const Manifest& manifest, WriterOptions options);
  absl::Status CheckTarget() const;
  absl::Status StageFiles();
  absl::Status CheckComplete() const;

  const Manifest& manifest_;
  const WriterOptions options_;
  ExportPlan plan_;
  std::unique_ptr<StagingDirectory> staging_;
  std::vector<PosixFile> files_;                      // as in plan_
  std::vector<std::string> carried_;                  // names
  std::vector<std::atomic<uint64_t>> written_bytes_;  // by tensor
};

}  // namespace wstore
