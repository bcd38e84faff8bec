// A dense checkpoint on disk: one safetensors file, or a directory of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "wstore/digest.h"
#include "wstore/manifest.h"

namespace wstore {

// What identifies a file's content cheaply: if none of it changed, the content is taken to be the same.
struct FileIdentity {
  std::string path;  // absolute
  uint64_t size_bytes = 0;
  int64_t mtime_ns = 0;
  uint64_t inode = 0;

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// Open files; reads are pread, so a file that is cut while open gives an error and never a signal.
// Thread-safe after Open.
class Checkpoint final : public TensorSource {
 public:
  // `path`: a safetensors file, or a directory with model.safetensors.index.json (which wins: only the
  // files it names count) or else model.safetensors. Reads headers only.
  //   kNotFound: no such path, or a directory with neither
  //   kInvalidArgument: not a sound safetensors file, a shard missing, a tensor in two shards, index
  //     and shards in disagreement. All offenders of one kind are listed, with stated and needed
  //     bytes. Nothing is allocated from a length before it has been checked against the file's size.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path);

  const Manifest& manifest() const { return manifest_; }
  // The absolute path that was opened.
  const std::string& path() const { return path_; }
  // The safetensors files, as they were when opened.
  const std::vector<FileIdentity>& files() const { return files_; }
  // The "__metadata__" of the files, merged; the first file's value wins.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // kDataLoss if any file's identity is no longer what it was when opened; names each.
  absl::Status CheckUnchanged() const;

  absl::Status Read(TensorIndex tensor, uint64_t offset_bytes,
                    absl::Span<uint8_t> out) const override;

 private:
  struct Place {
    size_t file = 0;
    uint64_t offset_bytes = 0;
  };
  Checkpoint() = default;
  // ... private parts of the implementer's choosing
  std::string path_;
  Manifest manifest_;
  std::vector<FileIdentity> files_;
  std::map<std::string, std::string> metadata_;
  std::vector<Place> places_;  // by tensor index
};

}  // namespace wstore
