#include "wstore/placement_rules.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "transfer/grouped_faults.h"
#include "transfer/model_config.h"
#include "transfer/rank_shares.h"
#include "transfer/rules_table.h"
#include "wstore/layout_builder.h"

namespace wstore {
namespace {

// A config.json for another model lacks all it names; the first this many show it.
constexpr size_t kMaxMissing = 1000;
constexpr uint64_t kMaxPredictionLayers = 64;
constexpr std::string_view kHead = "lm_head.weight";

// Names that quantised checkpoints give to scales, zero points and packed weights.
constexpr std::string_view kQuantisedSuffixes[] = {
    ".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".input_scale", ".weight_packed",
    ".qweight",      ".qzeros",           ".scales",         ".g_idx",       ".weight_shape"};

// Carries out the rules of one family for one rank.
class RuleRunner {
 public:
  RuleRunner(const ModelConfig& config, const Manifest& manifest, const RankSpec& rank)
      : config_(config),
        family_(config.family()),
        manifest_(manifest),
        shares_(config, rank),
        builder_(manifest),
        is_known_(manifest.size()) {}

  absl::StatusOr<Layout> Run(uint64_t generation) {
    RETURN_IF_ERROR(RefuseQuantised());
    RETURN_IF_ERROR(FindPrefix());
    if (config_.layers() == 0 || config_.layers() > manifest_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("config.json: 'num_hidden_layers' is ",
                                                     config_.layers(), ", for a checkpoint of ",
                                                     manifest_.size(), " tensors"));
    }
    for (const auto& buffers : family_.buffers) {
      for (const BufferRule& rule : buffers) {
        if (config_.Holds(rule.when)) RunRule(rule);
      }
    }
    RunTies();
    RunIgnored();
    NoteUnplaced();
    RETURN_IF_ERROR(
        Prefixed(faults_.ToStatus(), absl::StrCat("placing '", config_.architecture(), "'")));
    return builder_.Build(generation);
  }

 private:
  // A part with what this rank has of it.
  struct Part {
    const PartRule* rule;
    uint64_t rows;  // of the tensor
    uint64_t columns;
    Share local_rows;
    Share local_columns;
    uint64_t first_row;  // in the buffer
  };

  absl::Status RefuseQuantised() const {
    GroupedFaults faults;
    for (const Manifest::Tensor& tensor : manifest_.tensors()) {
      const std::string_view name = tensor.spec.name;
      for (const std::string_view suffix : kQuantisedSuffixes) {
        if (!name.ends_with(suffix)) continue;
        faults.Add(
            "the checkpoint is quantised, and engines repack or requantise such weights when "
            "they load them, so their memory is no plain copy; it has",
            absl::StrCat("'", tensor.spec.name, "'"));
      }
    }
    return faults.ToStatus();
  }

  absl::Status FindPrefix() {
    for (const std::string_view prefix : family_.prefixes) {
      prefix_ = std::string(prefix);
      if (manifest_.Find(prefix_ + std::string(family_.probe))) return absl::OkStatus();
    }
    prefix_ = std::string(family_.prefixes.front());
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint has no tensor '", prefix_, ToAbsl(family_.probe), "', so it is no '",
        config_.architecture(), "'; place it by a layout file (docs/formats/layout.md)"));
  }

  // --- Names ---

  std::string Name(std::string_view pattern, std::string_view prefix, uint64_t layer,
                   uint64_t expert = 0) const {
    std::string name;
    name.reserve(96);
    for (size_t at = 0; at < pattern.size();) {
      const size_t open = pattern.find('{', at);
      name += pattern.substr(at, open - at);
      if (open == std::string_view::npos) break;
      const size_t close = pattern.find('}', open);
      const std::string_view token = pattern.substr(open + 1, close - open - 1);
      if (token == "expert") {
        absl::StrAppend(&name, expert);
      } else {
        name += prefix;
        if (token == "layer") {
          name += family_.layers;
          absl::StrAppend(&name, layer);
        }
      }
      at = close + 1;
    }
    return name;
  }

  // The tensor of a part; nothing, and a fault, if the checkpoint has none.
  std::optional<TensorIndex> FindTensor(const PartRule& part, uint64_t layer, uint64_t expert) {
    const std::string name = Name(part.tensor, prefix_, layer, expert);
    std::optional<TensorIndex> tensor = manifest_.Find(name);
    if (!tensor && !part.other_tensor.empty()) {
      tensor = manifest_.Find(Name(part.other_tensor, prefix_, layer, expert));
    }
    if (tensor) {
      is_known_[*tensor] = true;
    } else {
      ++missing_;
      faults_.Add("tensors that the checkpoint lacks", absl::StrCat("'", name, "'"));
    }
    return tensor;
  }

  uint64_t SizeOf(Size size) {
    const uint64_t value = config_.size(size);
    if (value == 0 && size != Size::kNone) {
      faults_.Add("config.json lacks", SizeName(size, family_));
    }
    return value;
  }

  std::vector<Part> MeasureParts(const BufferRule& rule) {
    std::vector<Part> parts;
    uint64_t first_row = 0;
    for (const PartRule& part : rule.parts) {
      if (part.tensor.empty()) break;
      const uint64_t rows = SizeOf(part.rows);
      const uint64_t columns = part.columns == Size::kNone ? 1 : SizeOf(part.columns);
      const Share local_rows = shares_.Rows(part, rule.group, rows, faults_);
      const Share local_columns = shares_.Columns(part, rule.group, columns, faults_);
      parts.push_back({&part, rows, columns, local_rows, local_columns, first_row});
      first_row += local_rows.local;
    }
    return parts;
  }

  // --- Placing ---

  void RunRule(const BufferRule& rule) {
    if (rule.scope == Scope::kInput || rule.scope == Scope::kOutput) {
      RunBuffer(rule, MeasureParts(rule), 0);
      return;
    }
    std::optional<std::vector<Part>> parts;  // measured if there is such a layer
    for (uint64_t layer = 0; layer < config_.layers() && missing_ < kMaxMissing; ++layer) {
      const bool has_experts = config_.is_expert_layer(layer);
      if (rule.scope == Scope::kDenseLayer && has_experts) continue;
      if (rule.scope == Scope::kExpertLayer && !has_experts) continue;
      if (!parts) parts = MeasureParts(rule);
      RunBuffer(rule, *parts, layer);
    }
  }

  // Places one buffer if it is this rank's; accounts for its tensors in any case.
  void RunBuffer(const BufferRule& rule, const std::vector<Part>& parts, uint64_t layer) {
    const bool is_local = shares_.Has(rule.scope, layer);
    const bool is_stacked = rule.group == Group::kExperts;
    const uint64_t experts = is_stacked ? config_.size(Size::kExperts) : 1;
    const Part& last = parts.back();
    std::optional<StridedView> view;
    Dtype dtype = Dtype::kU8;  // of the buffer, from its first tensor
    for (uint64_t expert = 0; expert < experts && missing_ < kMaxMissing; ++expert) {
      const std::optional<uint64_t> slot = is_stacked ? shares_.ExpertSlot(expert) : 0;
      for (const Part& part : parts) {
        const auto tensor = FindTensor(*part.rule, layer, expert);
        if (!tensor) continue;
        CheckShape(part, *tensor);
        if (!is_local || !faults_.empty()) continue;
        const TensorSpec& spec = manifest_.tensor(*tensor).spec;
        if (!view) {
          dtype = spec.dtype;
          Shape shape = {last.first_row + last.local_rows.local};
          if (part.rule->columns != Size::kNone) shape.push_back(part.local_columns.local);
          if (is_stacked) shape.insert(shape.begin(), shares_.LocalExperts());
          view = builder_.Buffer({Name(rule.buffer, family_.buffer_prefix, layer), dtype, shape});
        }
        if (spec.dtype != dtype) {
          faults_.Add("tensors fused into one buffer but of unlike dtypes",
                      absl::StrCat("'", spec.name, "' ", ToAbsl(DtypeName(spec.dtype)), ", not ",
                                   ToAbsl(DtypeName(dtype))));
        } else if (slot) {
          PlacePart(part, *tensor, is_stacked ? view->Select(0, *slot) : *view);
        }
      }
    }
  }

  void PlacePart(const Part& part, TensorIndex tensor, const StridedView& buffer) {
    const Share& rows = part.local_rows;
    StridedView from = builder_.Tensor(tensor).Slice(0, rows.begin, rows.begin + rows.count);
    const StridedView to = buffer.Slice(0, part.first_row, part.first_row + rows.count);
    if (part.rule->columns != Size::kNone) {
      const Share& columns = part.local_columns;
      from = from.Slice(1, columns.begin, columns.begin + columns.count);
    }
    builder_.Place(from, to);
  }

  void CheckShape(const Part& part, TensorIndex tensor) {
    const TensorSpec& spec = manifest_.tensor(tensor).spec;
    const bool is_matrix = part.rule->columns != Size::kNone;
    const bool is_right = spec.shape.size() == (is_matrix ? 2 : 1) && spec.shape[0] == part.rows &&
                          (!is_matrix || spec.shape[1] == part.columns);
    if (is_right) return;
    const Shape expected = is_matrix ? Shape{part.rows, part.columns} : Shape{part.rows};
    faults_.Add("tensors of another shape than config.json says",
                absl::StrCat("'", spec.name, "' ", ShapeString(spec.shape), ", not ",
                             ShapeString(expected)));
  }

  // --- What is left ---

  void RunTies() {
    if (!config_.is_tied()) return;
    const auto head = manifest_.Find(kHead);
    if (!head) return;
    is_known_[*head] = true;
    const std::string input = prefix_ + std::string(family_.tied_input);
    if (manifest_.Find(input)) {
      builder_.Alias(std::vector<std::string_view>{input, kHead});
    }
  }

  void RunIgnored() {
    std::vector<std::string> prefixes;
    for (const auto& rules : family_.ignored) {
      for (const IgnoreRule& rule : rules) {
        const uint64_t layers = config_.layers();
        uint64_t begin = 0;
        uint64_t end = 1;
        if (rule.scope == Scope::kLayer) end = layers;
        if (rule.scope == Scope::kPredictionLayer) {
          begin = layers;
          end = layers + std::min(config_.prediction_layers(), kMaxPredictionLayers);
        }
        for (uint64_t layer = begin; layer < end; ++layer) {
          const std::string name = Name(rule.name, prefix_, layer);
          if (rule.is_prefix) {
            prefixes.push_back(name);
          } else if (const auto tensor = manifest_.Find(name)) {
            Ignore(*tensor);
          }
        }
      }
    }
    for (TensorIndex tensor = 0; tensor < manifest_.size(); ++tensor) {
      const std::string_view name = manifest_.tensor(tensor).spec.name;
      for (const std::string& prefix : prefixes) {
        if (name.starts_with(prefix)) Ignore(tensor);
      }
    }
  }

  void Ignore(TensorIndex tensor) {
    if (is_known_[tensor]) return;
    is_known_[tensor] = true;
    builder_.Ignore(manifest_.tensor(tensor).spec.name);
  }

  void NoteUnplaced() {
    for (TensorIndex tensor = 0; tensor < manifest_.size(); ++tensor) {
      if (is_known_[tensor]) continue;
      faults_.Add("tensors that no rule places (a layout file can, see docs/formats/layout.md)",
                  absl::StrCat("'", manifest_.tensor(tensor).spec.name, "'"));
    }
  }

  const ModelConfig& config_;
  const Family& family_;
  const Manifest& manifest_;
  const RankShares shares_;
  LayoutBuilder builder_;
  std::string prefix_;
  std::vector<bool> is_known_;  // by tensor: placed by some rank, or ignored
  size_t missing_ = 0;
  GroupedFaults faults_;
};

// Whether lm_head shares the embedding's memory, unless the caller knows better. An engine that
// finds an lm_head in the checkpoint loads it as a tensor of its own, and ties the two afterwards
// if they are equal, which takes both of them on one rank.
bool SharesHead(const ModelConfig& config, const Manifest& manifest, const RankSpec& rank) {
  if (!config.is_tied()) return false;
  const bool has_both_ends = rank.pp_size == 1 || config.family().ends_on_every_stage;
  return has_both_ends || !manifest.Find(kHead);
}

}  // namespace

absl::StatusOr<Layout> MakeLayout(std::string_view config_json, const Manifest& manifest,
                                  const RankSpec& rank, uint64_t generation) {
  ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::Parse(config_json));
  RETURN_IF_ERROR(RankShares::Check(config, rank));
  if (rank.tie_word_embeddings.value_or(false) && config.family().tied_input.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tie_word_embeddings: architecture '", config.architecture(), "' has no tied embeddings"));
  }
  config.set_tied(rank.tie_word_embeddings.value_or(SharesHead(config, manifest, rank)));
  return RuleRunner(config, manifest, rank).Run(generation);
}

}  // namespace wstore
