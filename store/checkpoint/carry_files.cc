#include "store/checkpoint/carry_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "absl/strings/ascii.h"
#include "store/checkpoint/posix_file.h"

namespace wstore {
namespace {

// Endings of files that hold weights, or say where weights are.
constexpr std::array<std::string_view, 15> kWeightEndings = {
    ".safetensors", ".index.json", ".bin",  ".pt",  ".pth", ".ckpt",   ".gguf",  ".ggml",
    ".h5",          ".msgpack",    ".onnx", ".npz", ".pkl", ".pickle", ".tflite"};

bool HoldsWeights(const std::string& name) {
  const std::string lower = absl::AsciiStrToLower(name);
  return std::any_of(kWeightEndings.begin(), kWeightEndings.end(),
                     [&lower](std::string_view ending) { return lower.ends_with(ending); });
}

}  // namespace

absl::StatusOr<CarryList> ListCarryFiles(const Checkpoint& checkpoint) {
  CarryList list;
  if (!checkpoint.is_directory()) return list;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(checkpoint.path(), error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string path = it->path().string();
    const std::string name = it->path().filename().string();
    const bool is_tensor_file =
        std::any_of(checkpoint.files().begin(), checkpoint.files().end(),
                    [&path](const FileIdentity& file) { return file.path == path; });
    std::error_code unreadable;
    if (is_tensor_file || name.starts_with('.') || !it->is_regular_file(unreadable)) continue;
    const uint64_t size = it->file_size(unreadable);
    if (unreadable || size > kMaxCarriedBytes || HoldsWeights(name)) {
      list.skipped.push_back(name);
    } else {
      list.carried.push_back(path);
    }
  }
  if (error) return ErrnoStatus(error.value(), checkpoint.path(), "cannot be listed");
  std::sort(list.carried.begin(), list.carried.end());
  std::sort(list.skipped.begin(), list.skipped.end());
  return list;
}

}  // namespace wstore
