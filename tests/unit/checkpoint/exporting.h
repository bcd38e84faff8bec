// Exports of tensors that a test has in memory.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "store/checkpoint/writer.h"
#include "tests/support/catch.h"
#include "tests/support/naive_safetensors.h"

namespace wstore::testing {

inline Manifest ManifestOf(const NaiveTensors& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    specs.push_back({name, *ParseDtype(tensor.dtype), tensor.shape});
  }
  auto manifest = Manifest::Create(std::move(specs));
  REQUIRE_OK(manifest);
  return *std::move(manifest);
}

inline absl::Span<const uint8_t> AsBytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

inline absl::Status WriteAll(const NaiveTensors& tensors, CheckpointWriter& writer) {
  TensorIndex index = 0;
  for (const auto& [name, tensor] : tensors) {
    const absl::Status status = writer.Write(index++, 0, AsBytes(tensor.bytes));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

inline absl::Status Export(const NaiveTensors& tensors, const std::string& directory,
                           const WriterOptions& options = {}) {
  const Manifest manifest = ManifestOf(tensors);
  auto writer = CheckpointWriter::Create(directory, manifest, options);
  if (!writer.ok()) return writer.status();
  const absl::Status status = WriteAll(tensors, **writer);
  return status.ok() ? (*writer)->Finish() : status;
}

// A sound single file under the export's name, and its content.
inline std::string WriteOldExport(const std::string& directory) {
  const std::string old = FileOf("{\"__metadata__\":{\"which\":\"old\"}}");
  WriteFile(directory + "/model.safetensors", old);
  return old;
}

}  // namespace wstore::testing
