#include "store/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/fault_list.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "store/checkpoint/json_visitor.h"

namespace wstore {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";

// Collects the entries of a header. Faults of form are collected, and the entry with one is left
// out.
class HeaderVisitor final : public JsonVisitor {
 public:
  void Key(std::string& key) override {
    if (depth_ == 1) {
      tensor_ = std::move(key);
      is_metadata_ = tensor_ == kMetadataKey;
      return;
    }
    if (is_metadata_) {
      metadata_key_ = std::move(key);
      return;
    }
    const auto known = std::find(kFieldNames.begin(), kFieldNames.end(), key);
    field_ = static_cast<size_t>(known - kFieldNames.begin());
    if (field_ == kFieldNames.size()) {
      Fault(absl::StrCat("unknown key ", Quoted(key), " (known: dtype, shape, data_offsets)"));
    } else if (std::exchange(is_present_[field_], true)) {
      Fault(absl::StrCat("key ", Quoted(key), " twice"));
      field_ = kFieldNames.size();  // the second value counts for nothing
    }
  }

  bool Open(bool is_object) override {
    const char* const what = is_object ? "an object" : "an array";
    switch (depth_) {
      case 0:
        break;
      case 1:
        if (!is_object) return Unwanted(what);
        if (!BeginEntry()) return false;
        break;
      case 2:
        if (is_metadata_ || is_object || (field_ != kShape && field_ != kOffsets)) {
          return Unwanted(what);
        }
        break;
      default:
        return Unwanted(what);
    }
    ++depth_;
    return true;
  }

  void Close() override {
    --depth_;
    if (depth_ == 1) {
      if (!is_metadata_) EndEntry();
      tensor_.clear();
    }
    if (depth_ == 2 && field_ == kOffsets && numbers_ != 2) {
      Fault(absl::StrCat("data_offsets has ", numbers_, " numbers; it must have 2: begin and end"));
    }
    if (depth_ == 2 && field_ == kShape && numbers_ > kMaxRank) {
      Fault(absl::StrCat("shape has ", numbers_, " dimensions; the limit is ", kMaxRank));
    }
    numbers_ = 0;
  }

  void Scalar(const JsonScalar& scalar) override {
    if (depth_ == 3) {
      Number(scalar);
    } else if (depth_ == 2 && scalar.kind == JsonScalar::Kind::kString && is_metadata_) {
      if (!metadata_.emplace(metadata_key_, std::move(*scalar.text)).second) {
        faults_.Add(absl::StrCat("__metadata__: key ", Quoted(metadata_key_), " twice"));
      }
    } else if (depth_ == 2 && scalar.kind == JsonScalar::Kind::kString && field_ == kDtype) {
      const std::optional<Dtype> dtype = ParseDtype(*scalar.text);
      if (dtype.has_value()) {
        entry_.spec.dtype = *dtype;
      } else {
        Fault(
            absl::StrCat("unknown dtype ", Quoted(*scalar.text), " (known: ", KnownDtypes(), ")"));
      }
    } else {
      Unwanted(scalar.Description());
    }
  }

  std::string Where() const override {
    return depth_ == 0 || tensor_.empty() ? "" : "in " + Name();
  }

  FaultList& faults() { return faults_; }
  std::vector<PlacedTensor>& tensors() { return tensors_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }

 private:
  enum Field : size_t { kDtype, kShape, kOffsets };
  static constexpr std::array<std::string_view, 3> kFieldNames = {"dtype", "shape", "data_offsets"};

  std::string Name() const { return is_metadata_ ? tensor_ : "tensor " + Quoted(tensor_); }

  void Fault(std::string_view what) {
    faults_.Add(absl::StrCat(Name(), ": ", ToAbsl(what)));
    is_faulty_ = true;
  }

  // A value of the wrong kind. Returns false: what is in it does not matter.
  bool Unwanted(std::string_view what) {
    if (depth_ == 1) {
      Fault(absl::StrCat("is ", ToAbsl(what), ", not an object"));
    } else if (depth_ == 2 && is_metadata_) {
      Fault(absl::StrCat(Quoted(metadata_key_), " is ", ToAbsl(what), ", not a string"));
    } else if (depth_ == 2 && field_ < kFieldNames.size()) {
      Fault(absl::StrCat(ToAbsl(kFieldNames[field_]), " is ", ToAbsl(what), ", not ",
                         field_ == kDtype ? "a string" : "an array"));
    } else if (depth_ == 3) {
      Fault(absl::StrCat(ToAbsl(kFieldNames[field_]), "[", numbers_, "] is ", ToAbsl(what),
                         "; it must be an integer from 0 to 18446744073709551615"));
      ++numbers_;
    }
    return false;
  }

  bool BeginEntry() {
    if (is_metadata_) {
      if (!std::exchange(has_metadata_, true)) return true;
      faults_.Add("__metadata__ twice");
      return false;
    }
    entry_ = {};
    is_present_ = {};
    is_faulty_ = false;
    if (tensor_.size() > kMaxTensorNameBytes) {
      Fault(absl::StrCat("its name has ", tensor_.size(), " bytes; the limit is ",
                         kMaxTensorNameBytes));
    }
    return true;
  }

  void EndEntry() {
    std::vector<absl::string_view> missing;
    for (size_t i = 0; i < kFieldNames.size(); ++i) {
      if (!is_present_[i]) missing.push_back(ToAbsl(kFieldNames[i]));
    }
    if (!missing.empty()) Fault("lacks " + absl::StrJoin(missing, ", "));
    if (is_faulty_) return;
    entry_.spec.name = std::move(tensor_);
    tensors_.push_back(std::move(entry_));
  }

  void Number(const JsonScalar& scalar) {
    if (scalar.kind != JsonScalar::Kind::kUnsigned) {
      Unwanted(scalar.Description());
      return;
    }
    if (field_ == kShape) {
      if (numbers_ < kMaxRank) entry_.spec.shape.push_back(scalar.number);
    } else if (numbers_ < 2) {
      (numbers_ == 0 ? entry_.begin : entry_.end) = scalar.number;
    }
    ++numbers_;
  }

  FaultList faults_;
  std::vector<PlacedTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  bool has_metadata_ = false;

  // Where in the document: the header is depth 1, an entry 2, the arrays in it 3.
  int depth_ = 0;
  bool is_metadata_ = false;
  std::string tensor_;
  std::string metadata_key_;
  size_t field_ = 0;  // a Field, or one past the last: its value is ignored
  uint64_t numbers_ = 0;

  PlacedTensor entry_;
  std::array<bool, 3> is_present_{};
  bool is_faulty_ = false;
};

void FindDuplicates(const std::vector<PlacedTensor>& sorted, FaultList& faults) {
  for (size_t i = 1; i < sorted.size(); ++i) {
    const std::string& name = sorted[i].spec.name;
    const bool is_second = name == sorted[i - 1].spec.name;
    if (is_second && (i < 2 || name != sorted[i - 2].spec.name)) {
      faults.Add(absl::StrCat("duplicate tensor name ", Quoted(name)));
    }
  }
}

// Stated against needed bytes.
void CheckSizes(const std::vector<PlacedTensor>& tensors, FaultList& faults) {
  for (const PlacedTensor& tensor : tensors) {
    const absl::StatusOr<uint64_t> needed = TensorBytes(tensor.spec);
    if (!needed.ok()) {
      TensorSpec shown = tensor.spec;
      shown.name = Shown(shown.name);
      faults.Add(std::string(TensorBytes(shown).status().message()));
    } else if (tensor.begin > tensor.end) {
      faults.Add(absl::StrCat("tensor ", Quoted(tensor.spec.name), ": data_offsets [", tensor.begin,
                              ", ", tensor.end, "] begin after they end"));
    } else if (tensor.end - tensor.begin != *needed) {
      faults.Add(absl::StrCat(
          "tensor ", Quoted(tensor.spec.name), ": ", ToAbsl(DtypeName(tensor.spec.dtype)), " ",
          ShapeString(tensor.spec.shape), " needs ", Bytes(*needed), ", data_offsets [",
          tensor.begin, ", ", tensor.end, "] hold ", tensor.end - tensor.begin));
    }
  }
}

// The tensors must cover the data exactly. An empty one may stand between two others, not inside
// one.
void CheckCoverage(const std::vector<PlacedTensor>& tensors, uint64_t data_size_bytes,
                   FaultList& faults) {
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&tensors](uint32_t a, uint32_t b) {
    return std::pair(tensors[a].begin, tensors[a].end) <
           std::pair(tensors[b].begin, tensors[b].end);
  });
  uint64_t covered = 0;
  const PlacedTensor* last = nullptr;  // the one that covers up to there
  for (const uint32_t i : order) {
    const PlacedTensor& tensor = tensors[i];
    if (tensor.begin > covered) {
      faults.Add(absl::StrCat("tensor ", Quoted(tensor.spec.name), " begins at byte ", tensor.begin,
                              " of the data, after a hole of ", Bytes(tensor.begin - covered)));
    } else if (tensor.begin < covered) {
      const uint64_t overlap = std::min(covered, tensor.end) - tensor.begin;
      faults.Add(absl::StrCat(overlap == 0 ? "empty tensor " : "tensor ", Quoted(tensor.spec.name),
                              " begins at byte ", tensor.begin, " of the data, inside tensor ",
                              Quoted(last->spec.name), ", which ends at ", covered,
                              ": an overlap of ", Bytes(overlap)));
    }
    if (tensor.end > covered) {
      covered = tensor.end;
      last = &tensor;
    }
  }
  if (covered > data_size_bytes) {
    faults.Add(absl::StrCat("the tensors take ", Bytes(covered), " of data, the file has ",
                            data_size_bytes, ": short by ", Bytes(covered - data_size_bytes)));
  } else if (covered < data_size_bytes) {
    const uint64_t extra = data_size_bytes - covered;
    faults.Add(absl::StrCat("the tensors take ", Bytes(covered), " of data, the file has ",
                            data_size_bytes, ": ", extra, " extra byte", extra == 1 ? "" : "s"));
  }
}

}  // namespace

absl::StatusOr<uint64_t> ParseHeaderLength(absl::Span<const uint8_t> first_bytes,
                                           uint64_t file_size_bytes) {
  constexpr uint64_t kLengthBytes = 8;
  if (file_size_bytes < kLengthBytes || first_bytes.size() < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file has ", Bytes(file_size_bytes), "; the length of its header takes ",
                     kLengthBytes, ": short by ", Bytes(kLengthBytes - file_size_bytes)));
  }
  uint64_t length = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{first_bytes[i]} << (8 * i);
  if (length > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header's length is given as ", length,
                                                   " bytes; the limit is ", kMaxHeaderBytes));
  }
  if (length > file_size_bytes - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the header ends at byte ", kLengthBytes + length, ", the file has ", file_size_bytes,
        ": short by ", Bytes(kLengthBytes + length - file_size_bytes)));
  }
  return length;
}

absl::StatusOr<SafetensorsHeader> ParseHeader(std::string_view json, uint64_t data_size_bytes) {
  HeaderVisitor visitor;
  RETURN_IF_ERROR(Prefixed(VisitJsonObject(json, visitor), "header"));
  std::vector<PlacedTensor>& tensors = visitor.tensors();
  std::sort(tensors.begin(), tensors.end(),
            [](const PlacedTensor& a, const PlacedTensor& b) { return a.spec.name < b.spec.name; });
  FindDuplicates(tensors, visitor.faults());
  RETURN_IF_ERROR(visitor.faults().ToStatus());
  // Each check presumes the ones before it, and would only repeat their faults in other words.
  FaultList sizes;
  CheckSizes(tensors, sizes);
  RETURN_IF_ERROR(sizes.ToStatus());
  FaultList coverage;
  CheckCoverage(tensors, data_size_bytes, coverage);
  RETURN_IF_ERROR(coverage.ToStatus());
  return SafetensorsHeader{std::move(tensors), std::move(visitor.metadata())};
}

std::string FormatHeader(const SafetensorsHeader& header) {
  constexpr size_t kAlignment = 8;
  std::string json = "{";
  const auto append_key = [&json](std::string_view key) {
    if (json.back() != '{') json.push_back(',');
    AppendJsonString(key, &json);
    json.push_back(':');
  };
  if (!header.metadata.empty()) {
    append_key(kMetadataKey);
    json.push_back('{');
    for (const auto& [key, value] : header.metadata) {
      append_key(key);
      AppendJsonString(value, &json);
    }
    json.push_back('}');
  }
  for (const PlacedTensor& tensor : header.tensors) {
    append_key(tensor.spec.name);
    absl::StrAppend(&json, "{\"dtype\":\"", ToAbsl(DtypeName(tensor.spec.dtype)), "\",\"shape\":[",
                    absl::StrJoin(tensor.spec.shape, ","), "],\"data_offsets\":[", tensor.begin,
                    ",", tensor.end, "]}");
  }
  json.push_back('}');
  json.append((kAlignment - json.size() % kAlignment) % kAlignment, ' ');
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(json.size() >> (8 * i)));
  return bytes + json;
}

}  // namespace wstore
