#include "wstore/interchange.h"

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "store/checkpoint/checkpoint.h"

namespace wstore {
namespace {

constexpr std::string_view kFormat = "wstore-patch-1";
constexpr std::string_view kIndices = "indices:";
constexpr std::string_view kValues = "values:";
constexpr size_t kMaxListed = 10;

// One tensor's two halves, as found in the file.
struct Halves {
  std::optional<TensorIndex> indices;
  std::optional<TensorIndex> values;
};

// Collects faults of one kind, so that they can be shown together.
class Faults {
 public:
  template <typename... Parts>
  void Add(const Parts&... parts) {
    if (shown_.size() < kMaxListed) shown_.push_back(absl::StrCat(parts...));
    ++count_;
  }
  absl::Status ToStatus() const {
    if (count_ == 0) return absl::OkStatus();
    std::string message = absl::StrJoin(shown_, "; ");
    if (count_ > shown_.size()) {
      absl::StrAppend(&message, "; and ", count_ - shown_.size(), " more");
    }
    return absl::InvalidArgumentError(message);
  }

 private:
  std::vector<std::string> shown_;
  size_t count_ = 0;
};

absl::StatusOr<std::optional<Digest>> DigestOf(const std::map<std::string, std::string>& metadata,
                                               const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::optional<Digest>();
  const std::optional<Digest> digest = DigestFromHex(found->second);
  if (!digest.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("metadata '", key, "' is '", found->second,
                                                   "'; it must be 64 hexadecimal digits"));
  }
  return digest;
}

// "shapes": a JSON object of arrays, by tensor name.
absl::StatusOr<std::map<std::string, Shape>> ShapesOf(
    const std::map<std::string, std::string>& metadata) {
  const auto found = metadata.find("shapes");
  if (found == metadata.end()) {
    return absl::InvalidArgumentError(
        "metadata 'shapes' is missing: it must be a JSON object of the full shape of each tensor");
  }
  const nlohmann::json json = nlohmann::json::parse(found->second, nullptr, false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("metadata 'shapes' is not a JSON object");
  }
  std::map<std::string, Shape> shapes;
  for (const auto& [name, entry] : json.items()) {
    Shape shape;
    bool is_sound = entry.is_array();
    for (size_t i = 0; is_sound && i < entry.size(); ++i) {
      is_sound = entry[i].is_number_unsigned();
      if (is_sound) shape.push_back(entry[i].get<uint64_t>());
    }
    if (!is_sound) {
      return absl::InvalidArgumentError(absl::StrCat("metadata 'shapes': the shape of '", name,
                                                     "' is not an array of whole numbers from 0"));
    }
    shapes[name] = std::move(shape);
  }
  return shapes;
}

// "dtypes": a JSON object of packed types, by tensor name; may be absent.
absl::StatusOr<std::map<std::string, Dtype>> PackedTypesOf(
    const std::map<std::string, std::string>& metadata) {
  std::map<std::string, Dtype> types;
  const auto found = metadata.find("dtypes");
  if (found == metadata.end()) return types;
  const nlohmann::json json = nlohmann::json::parse(found->second, nullptr, false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("metadata 'dtypes' is not a JSON object");
  }
  for (const auto& [name, entry] : json.items()) {
    const std::optional<Dtype> dtype =
        entry.is_string() ? ParseDtype(entry.get<std::string>()) : std::nullopt;
    if (!dtype.has_value() || DtypeBits(*dtype) >= 8) {
      return absl::InvalidArgumentError(absl::StrCat(
          "metadata 'dtypes': '", name, "' is not given a packed type (F4, F6_E2M3, F6_E3M2)"));
    }
    types[name] = *dtype;
  }
  return types;
}

absl::StatusOr<std::map<std::string, Halves>> PairUp(const Manifest& manifest) {
  std::map<std::string, Halves> pairs;
  Faults faults;
  for (TensorIndex i = 0; i < manifest.size(); ++i) {
    const TensorSpec& spec = manifest.tensor(i).spec;
    if (spec.name.starts_with(kIndices)) {
      if (spec.dtype != Dtype::kI64 || spec.shape.size() != 1) {
        faults.Add("'", spec.name, "' is ", ToAbsl(DtypeName(spec.dtype)), " ",
                   ShapeString(spec.shape), "; it must be I64 of one dimension");
      }
      pairs[spec.name.substr(kIndices.size())].indices = i;
    } else if (spec.name.starts_with(kValues)) {
      if (spec.shape.size() != 1) {
        faults.Add("'", spec.name, "' has the shape ", ShapeString(spec.shape),
                   "; it must have one dimension");
      }
      pairs[spec.name.substr(kValues.size())].values = i;
    } else {
      faults.Add("'", spec.name, "' is neither 'indices:NAME' nor 'values:NAME'");
    }
  }
  for (const auto& [name, halves] : pairs) {
    if (!halves.indices.has_value()) faults.Add("'values:", name, "' has no 'indices:", name, "'");
    if (!halves.values.has_value()) faults.Add("'indices:", name, "' has no 'values:", name, "'");
  }
  RETURN_IF_ERROR(faults.ToStatus());
  return pairs;
}

}  // namespace

absl::StatusOr<InterchangeFile> InterchangeFile::Read(const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> source, Checkpoint::Open(path));
  const std::map<std::string, std::string>& metadata = source->metadata();
  const auto format = metadata.find("format");
  if (format == metadata.end() || format->second != kFormat) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": metadata 'format' is ",
        format == metadata.end() ? "missing" : absl::StrCat("'", format->second, "'"),
        "; a patch file has '", ToAbsl(kFormat), "' (to publish a checkpoint, use --from)"));
  }
  InterchangeFile file;
  const auto in_file = [&path](const absl::Status& status) { return Prefixed(status, path); };
  if (const auto bits = metadata.find("bits"); bits != metadata.end()) {
    if (bits->second != "new" && bits->second != "xor") {
      return absl::InvalidArgumentError(absl::StrCat(path, ": metadata 'bits' is '", bits->second,
                                                     "'; it must be 'new' or 'xor'"));
    }
    if (bits->second == "xor") file.form_ = TensorPatch::Form::kXor;
  }
  if (const auto parent = metadata.find("parent"); parent != metadata.end()) {
    file.parent_ = ParseVersionId(parent->second);
    if (!file.parent_.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": metadata 'parent' is '",
                                                     parent->second, "'; it must be as in 'v42'"));
    }
  }
  absl::StatusOr<std::optional<Digest>> digest = DigestOf(metadata, "parent_chain_digest");
  RETURN_IF_ERROR(in_file(digest.status()));
  file.parent_chain_digest_ = *digest;
  digest = DigestOf(metadata, "base_digest");
  RETURN_IF_ERROR(in_file(digest.status()));
  file.base_digest_ = *digest;

  const absl::StatusOr<std::map<std::string, Shape>> shapes = ShapesOf(metadata);
  RETURN_IF_ERROR(in_file(shapes.status()));
  const absl::StatusOr<std::map<std::string, Dtype>> packed = PackedTypesOf(metadata);
  RETURN_IF_ERROR(in_file(packed.status()));
  const Manifest& manifest = source->manifest();
  const absl::StatusOr<std::map<std::string, Halves>> pairs = PairUp(manifest);
  RETURN_IF_ERROR(in_file(pairs.status()));
  Faults faults;
  for (const auto& [name, halves] : *pairs) {
    const Manifest::Tensor& indices = manifest.tensor(*halves.indices);
    const Manifest::Tensor& values = manifest.tensor(*halves.values);
    const auto shape = shapes->find(name);
    if (shape == shapes->end()) {
      faults.Add("metadata 'shapes' has no shape of '", name, "'");
      continue;
    }
    Patch patch{name, values.spec.dtype, shape->second, {}, {}};
    if (const auto type = packed->find(name); type != packed->end()) {
      if (patch.dtype != Dtype::kU8) {
        faults.Add("'values:", name, "' is ", ToAbsl(DtypeName(patch.dtype)),
                   "; values of a packed type are given as U8");
      }
      patch.dtype = type->second;
    }
    patch.indices.resize(indices.elements);
    patch.values.resize(values.size_bytes());
    RETURN_IF_ERROR(source->Read(
        *halves.indices, 0,
        absl::MakeSpan(reinterpret_cast<uint8_t*>(patch.indices.data()), indices.size_bytes())));
    RETURN_IF_ERROR(source->Read(*halves.values, 0, absl::MakeSpan(patch.values)));
    file.patches_.push_back(std::move(patch));
  }
  RETURN_IF_ERROR(in_file(faults.ToStatus()));
  RETURN_IF_ERROR(source->CheckUnchanged());
  return file;
}

std::vector<TensorPatch> InterchangeFile::patches() const {
  std::vector<TensorPatch> views;
  views.reserve(patches_.size());
  for (const Patch& patch : patches_) {
    TensorPatch view;
    view.name = patch.name;
    view.dtype = patch.dtype;
    view.shape = patch.shape;
    view.indices = patch.indices;
    view.values = patch.values;
    view.form = form_;
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace wstore
