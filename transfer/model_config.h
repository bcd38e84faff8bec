// What placement rules need to know of a config.json.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "transfer/rules_table.h"

namespace wstore {

class ModelConfig {
 public:
  // Reads the entries that `family` needs.
  //   kInvalidArgument: not JSON; no rules for the architecture; quantised; entries of a wrong kind
  static absl::StatusOr<ModelConfig> Parse(std::string_view json);

  const std::string& architecture() const { return architecture_; }
  const Family& family() const { return *family_; }

  // 0: config.json does not say. SizeName tells what is missing.
  uint64_t size(Size size) const { return sizes_[static_cast<size_t>(size)]; }
  uint64_t heads() const { return heads_; }
  uint64_t kv_heads() const { return kv_heads_; }
  uint64_t layers() const { return layers_; }
  uint64_t prediction_layers() const { return prediction_layers_; }
  bool is_expert_layer(uint64_t layer) const;
  bool is_tied() const { return is_tied_; }
  void set_tied(bool is_tied) { is_tied_ = is_tied; }
  // Whether buffers with this condition exist.
  bool Holds(When when) const;

 private:
  class Reader;

  void ReadSizes(Reader& reader);
  void ReadExperts(Reader& reader);
  void ReadLatentAttention(Reader& reader);
  void ReadFlags(Reader& reader);
  void Set(Size size, uint64_t value) { sizes_[static_cast<size_t>(size)] = value; }

  std::string architecture_;
  const Family* family_ = nullptr;
  std::array<uint64_t, static_cast<size_t>(Size::kCount)> sizes_{};
  uint64_t heads_ = 0;
  uint64_t kv_heads_ = 0;
  uint64_t layers_ = 0;
  uint64_t prediction_layers_ = 0;
  // Which layers have experts.
  std::vector<uint64_t> dense_layers_;  // ascending
  uint64_t first_expert_layer_ = 0;
  uint64_t expert_layer_step_ = 1;
  uint64_t expert_layer_shift_ = 0;  // layer + shift is a multiple of step
  bool has_qkv_bias_ = false;
  bool has_output_bias_ = false;
  bool has_mlp_bias_ = false;
  bool has_correction_bias_ = false;
  bool is_tied_ = false;
};

// The entries of config.json that a size comes from.
std::string SizeName(Size size, const Family& family);

}  // namespace wstore
