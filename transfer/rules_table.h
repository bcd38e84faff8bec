// The shape of placement rules: plain data, which placement_rules.cc carries out. rules_table.cc
// has the rules themselves.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace wstore {

// A size that config.json gives, directly or as a product. SizeKey tells which entries.
enum class Size : uint8_t {
  kNone,  // no such dimension
  kOne,
  kHidden,
  kQueries,  // heads x head size
  kKeys,     // KV heads x head size
  kHeadDim,
  kIntermediate,
  kVocab,
  kExperts,
  kExpertIntermediate,
  kSharedIntermediate,  // of all shared experts together
  kQueryLora,
  kKvLora,
  kKvLoraAndRope,
  kMlaQueries,  // heads x (nope + rope)
  kMlaKeys,     // heads x (nope + value)
  kMlaValues,   // heads x value
  kPositions,
  kTokenTypes,
  kLabels,
  kCount,
};

// How a tensor is divided among ranks.
enum class Split : uint8_t {
  kWhole,    // every rank has all of it
  kRows,     // dimension 0, evenly (column parallel, since weights are [out, in])
  kColumns,  // dimension 1, evenly (row parallel)
  kHeads,    // dimension 0, by whole attention heads
  kKvHeads,  // dimension 0, by whole KV heads; where there are more ranks than heads, these repeat
  kVocab,    // dimension 0, padded to a multiple of 64 and then evenly
};

// Which layers, or which end of the model, a buffer belongs to.
enum class Scope : uint8_t {
  kInput,   // before the first layer: on the first stage, and on the last one if tied
  kOutput,  // behind the last layer
  kLayer,
  kDenseLayer,  // layers without routed experts
  kExpertLayer,
  kPredictionLayer,  // behind the last layer: predicts further tokens
};

// When a buffer exists.
enum class When : uint8_t {
  kAlways,
  kQkvBias,
  kOutputBias,
  kMlpBias,
  kQueryLora,
  kNoQueryLora,
  kSharedExperts,
  kCorrectionBias,
  kUntied,
};

// Which ranks share a buffer's tensors among them.
enum class Group : uint8_t {
  kTensorParallel,
  kExperts,        // one entry per local expert in dimension 0; see RankSpec::expert_parallel
  kSharedExperts,  // tensor parallel, or whole under sequence parallelism
};

// A tensor that is part of a buffer. In names, {prefix} and {layer} stand for what the family says
// ("model.", "model.layers.12"), {expert} for a number.
struct PartRule {
  std::string_view tensor;
  Size rows = Size::kNone;
  Size columns = Size::kNone;  // kNone: a vector
  Split split = Split::kWhole;
  std::string_view other_tensor = {};  // tried where the checkpoint does not have `tensor`
};

inline constexpr size_t kMaxParts = 3;

// A buffer: its parts one below the other (dimension 0).
struct BufferRule {
  std::string_view buffer;
  Scope scope = Scope::kLayer;
  std::array<PartRule, kMaxParts> parts;  // those behind the last have no name
  When when = When::kAlways;
  Group group = Group::kTensorParallel;
};

// Tensors that the engine does not load.
struct IgnoreRule {
  std::string_view name;
  Scope scope = Scope::kInput;
  bool is_prefix = false;
};

// A family of architectures that are placed alike.
struct Family {
  std::span<const std::string_view> architectures;
  // What {prefix} stands for in tensor names: the first with which `probe` is a tensor.
  std::span<const std::string_view> prefixes;
  std::string_view probe;
  std::string_view buffer_prefix;  // what {prefix} stands for in buffer names
  std::string_view layers;         // {layer} is {prefix}, this, and the number
  std::array<std::span<const BufferRule>, 6> buffers;
  std::array<std::span<const IgnoreRule>, 2> ignored;
  // Entries of config.json.
  std::string_view experts_key = {};
  std::string_view expert_intermediate_key = {};
  std::string_view shared_experts_key = {};       // the number of shared experts, or else
  std::string_view shared_intermediate_key = {};  // their size together
  // The tensor that lm_head.weight is tied to where config.json says so, without its prefix.
  std::string_view tied_input = {};
  bool has_stages = true;            // can be split by pipeline parallelism
  bool ends_on_every_stage = false;  // all stages keep kInput and kOutput
};

std::span<const Family> Families();

}  // namespace wstore
