// A dense checkpoint on disk: one safetensors file, or a directory of them.
// docs/formats/checkpoint.md says which files are accepted.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "store/checkpoint/posix_file.h"
#include "wstore/digest.h"
#include "wstore/manifest.h"

namespace wstore {

struct ShardIndex;

// What identifies a file's content cheaply: if none of it changed, the content is taken to be the
// same.
struct FileIdentity {
  std::string path;  // absolute
  uint64_t size_bytes = 0;
  int64_t mtime_ns = 0;
  uint64_t inode = 0;

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// Open files; reads are pread, so a file that is cut while open gives an error and never a signal.
// Holds one descriptor a file. Thread-safe after Open.
class Checkpoint final : public TensorSource {
 public:
  // `path`: a safetensors file, or a directory with model.safetensors.index.json (which wins: only
  // the files it names count) or else model.safetensors. Reads headers only. Memory follows the
  // size of the headers, which are at most 100,000,000 bytes a file.
  //   kNotFound: no such path, or a directory with neither
  //   kInvalidArgument: not a sound safetensors file, a shard missing, a tensor in two shards,
  //   index
  //     and shards in disagreement. All offenders of one kind are listed, with stated and needed
  //     bytes. Nothing is allocated from a length before it has been checked against the file's
  //     size.
  //   kDataLoss: a file cannot be read, or was cut at this moment
  //   kPermissionDenied and others: as the system says
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path);

  const Manifest& manifest() const { return manifest_; }
  // The absolute path that was opened: without "." and "..", its directory free of symbolic links.
  const std::string& path() const { return path_; }
  // Whether that is a directory.
  bool is_directory() const { return is_directory_; }
  // The safetensors files, as they were when opened, sorted by path.
  const std::vector<FileIdentity>& files() const { return identities_; }
  // The "__metadata__" of the files, merged; the first file's value wins.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // kDataLoss if any file's identity is no longer what it was when opened, be it the open file or
  // the one that is at its path now; names each. Content rewritten under the same identity is found
  // by digests only.
  absl::Status CheckUnchanged() const;

  //   kDataLoss: the file was cut while open, or its disk fails; named
  absl::Status Read(TensorIndex tensor, uint64_t offset_bytes,
                    absl::Span<uint8_t> out) const override;

 private:
  struct Place {
    uint32_t file = 0;
    uint64_t offset_bytes = 0;  // in the file
  };
  struct PlacedSpec {
    TensorSpec spec;
    Place place;
  };

  Checkpoint() = default;
  absl::Status OpenSingle(const std::string& path);
  absl::Status OpenSharded(const std::string& index_path);
  // Opens one file and appends what it holds to files_, identities_ and `tensors`.
  absl::Status AddFile(const std::string& path, std::vector<PlacedSpec>* tensors);
  // Whether shards and index name the same tensors in the same places. `sorted`: by name.
  static absl::Status CompareWithIndex(const ShardIndex& index,
                                       const std::vector<PlacedSpec>& sorted);
  absl::Status SetTensors(std::vector<PlacedSpec> tensors);

  std::string path_;
  bool is_directory_ = false;
  Manifest manifest_;
  std::vector<PosixFile> files_;
  std::vector<FileIdentity> identities_;
  std::map<std::string, std::string> metadata_;
  std::vector<Place> places_;  // by tensor index
};

}  // namespace wstore
