// A small Qwen3-MoE, and training steps for it: the same bits wherever and whenever they are made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "wstore/manifest.h"

namespace wstore::demo {

// 4 layers, 8 experts, 2 KV heads: 5.3 million elements of bf16.
class Model {
 public:
  // Fresh weights.
  Model();

  const Manifest& manifest() const { return manifest_; }
  // In the manifest's order.
  const std::string& bytes(TensorIndex tensor) const { return bytes_[tensor]; }
  // How many training steps were taken.
  uint64_t steps() const { return steps_; }

  // What an optimizer does at a low learning rate: about one element in a hundred goes one unit in
  // the last place up or down.
  void TrainStep();

  // Writes config.json and model.safetensors.
  absl::Status Write(const std::string& directory) const;

 private:
  Manifest manifest_;
  std::vector<std::string> bytes_;
  uint64_t steps_ = 0;
};

}  // namespace wstore::demo
