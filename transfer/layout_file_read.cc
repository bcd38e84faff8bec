#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "transfer/grouped_faults.h"
#include "wstore/layout_builder.h"
#include "wstore/layout_file.h"

namespace wstore {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "wstore layout";
constexpr uint64_t kVersion = 1;

// Notes keys that an object has twice, of which the parser keeps one.
class RepeatedKeys {
 public:
  bool operator()(Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) objects_.emplace_back();
    if (event == Json::parse_event_t::object_end) objects_.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!objects_.back().insert(key).second) {
        faults_.Add("keys that an object has twice", absl::StrCat("'", key, "'"));
      }
    }
    return true;
  }

  absl::Status ToStatus() const { return faults_.ToStatus(); }

 private:
  std::vector<absl::flat_hash_set<std::string>> objects_;  // those that are open
  GroupedFaults faults_;
};

// Reads items, noting what has the wrong shape by its place in the text.
class LayoutReader {
 public:
  LayoutReader(const Json& json, const Manifest& manifest) : json_(json), builder_(manifest) {}

  absl::StatusOr<Layout> Read(uint64_t generation) {
    RETURN_IF_ERROR(CheckFormat());
    CheckKeys("the file", json_,
              {"format", "version", "buffers", "placements", "aliases", "ignored"});
    ForEach("buffers", true,
            [this](const std::string& where, const Json& item) { ReadBuffer(where, item); });
    ForEach("placements", true,
            [this](const std::string& where, const Json& item) { ReadPlacement(where, item); });
    ForEach("aliases", false,
            [this](const std::string& where, const Json& item) { ReadAlias(where, item); });
    ForEach("ignored", false, [this](const std::string& where, const Json& item) {
      if (item.is_string()) {
        builder_.Ignore(item.get<std::string>());
      } else {
        Wrong(where, "is not the name of a tensor");
      }
    });
    if (!faults_.empty()) return Prefixed(faults_.ToStatus(), "layout file");
    return builder_.Build(generation);
  }

 private:
  absl::Status CheckFormat() const {
    if (!json_.is_object()) return absl::InvalidArgumentError("layout file: not a JSON object");
    const auto format = json_.find("format");
    if (format == json_.end() || *format != std::string(kFormat)) {
      return absl::InvalidArgumentError("layout file: \"format\" is not \"wstore layout\"");
    }
    const auto version = json_.find("version");
    if (version == json_.end() || !version->is_number_unsigned() || *version != kVersion) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout file: \"version\" is not ", kVersion, ", the one that is known"));
    }
    return absl::OkStatus();
  }

  void Wrong(const std::string& where, std::string_view what) {
    faults_.Add("wrong entries", absl::StrCat(where, " ", ToAbsl(what)));
  }

  void CheckKeys(const std::string& where, const Json& item,
                 std::initializer_list<std::string_view> known) {
    for (const auto& [key, value] : item.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        Wrong(where, absl::StrCat("has an unknown key '", key, "'"));
      }
    }
  }

  template <typename Visit>
  void ForEach(const char* key, bool is_required, Visit visit) {
    const auto list = json_.find(key);
    if (list == json_.end() && !is_required) return;
    if (list == json_.end() || !list->is_array()) {
      Wrong("the file", absl::StrCat("has no list '", key, "'"));
      return;
    }
    for (size_t i = 0; i < list->size(); ++i) visit(absl::StrCat(key, "[", i, "]"), (*list)[i]);
  }

  // --- Entries of an item; nothing, and a fault, if one is missing or of the wrong kind. ---

  std::optional<std::string> ReadText(const std::string& where, const Json& item, const char* key) {
    const auto it = item.find(key);
    if (it != item.end() && it->is_string()) return it->get<std::string>();
    Wrong(where, absl::StrCat("has no text '", key, "'"));
    return std::nullopt;
  }

  std::optional<uint64_t> ReadNumber(const std::string& where, const Json& item, const char* key) {
    const auto it = item.find(key);
    if (it != item.end() && it->is_number_unsigned()) return it->get<uint64_t>();
    Wrong(where, absl::StrCat("has no whole number '", key, "'"));
    return std::nullopt;
  }

  std::optional<std::vector<uint64_t>> ToNumbers(const Json& list) {
    std::vector<uint64_t> numbers;
    if (!list.is_array()) return std::nullopt;
    for (const Json& number : list) {
      if (!number.is_number_unsigned()) return std::nullopt;
      numbers.push_back(number.get<uint64_t>());
    }
    return numbers;
  }

  std::optional<std::vector<uint64_t>> ReadNumbers(const std::string& where, const Json& item,
                                                   const char* key) {
    const auto it = item.find(key);
    auto numbers = it == item.end() ? std::nullopt : ToNumbers(*it);
    if (!numbers) Wrong(where, absl::StrCat("has no list of whole numbers '", key, "'"));
    return numbers;
  }

  // A list of lists of `least` to `most` numbers.
  std::optional<std::vector<std::vector<uint64_t>>> ReadTuples(const std::string& where,
                                                               const Json& item, const char* key,
                                                               size_t least, size_t most) {
    std::vector<std::vector<uint64_t>> tuples;
    const auto it = item.find(key);
    bool is_right = it != item.end() && it->is_array();
    for (size_t i = 0; is_right && i < it->size(); ++i) {
      auto tuple = ToNumbers((*it)[i]);
      is_right = tuple && tuple->size() >= least && tuple->size() <= most;
      if (is_right) tuples.push_back(*std::move(tuple));
    }
    if (is_right) return tuples;
    Wrong(where,
          absl::StrCat("has no '", key, "', a list of lists of ",
                       least == most ? absl::StrCat(least) : absl::StrCat(least, " or ", most),
                       " whole numbers"));
    return std::nullopt;
  }

  // --- Items ---

  void ReadBuffer(const std::string& where, const Json& item) {
    if (!item.is_object()) return Wrong(where, "is not an object");
    CheckKeys(where, item, {"name", "dtype", "shape"});
    const auto name = ReadText(where, item, "name");
    const auto dtype_name = ReadText(where, item, "dtype");
    const auto shape = ReadNumbers(where, item, "shape");
    if (!name || !dtype_name || !shape) return;
    const auto dtype = ParseDtype(*dtype_name);
    if (!dtype) return Wrong(where, absl::StrCat("has an unknown dtype '", *dtype_name, "'"));
    buffers_.insert_or_assign(*name, builder_.Buffer({*name, *dtype, *shape}));
  }

  void ReadPlacement(const std::string& where, const Json& item) {
    if (!item.is_object()) return Wrong(where, "is not an object");
    const auto tensor_name = ReadText(where, item, "tensor");
    const auto buffer_name = ReadText(where, item, "buffer");
    if (!tensor_name || !buffer_name) return;
    const auto buffer = buffers_.find(*buffer_name);
    if (buffer == buffers_.end()) {
      faults_.Add("unknown buffers", absl::StrCat("'", *buffer_name, "'"));
      return;
    }
    const StridedView tensor = builder_.Tensor(*tensor_name);
    if (item.contains("loops")) {
      CheckKeys(where, item, {"tensor", "buffer", "from", "to", "loops"});
      ReadLoops(where, item, tensor, buffer->second);
    } else if (item.contains("slice")) {
      CheckKeys(where, item, {"tensor", "buffer", "box", "slice"});
      const auto from = ReadRanges(where, item, "box", tensor);
      const auto to = ReadRanges(where, item, "slice", buffer->second);
      if (from && to) builder_.Place(*from, *to);
    } else {
      CheckKeys(where, item, {"tensor", "buffer", "box", "offset", "strides"});
      const auto from = ReadRanges(where, item, "box", tensor);
      const auto offset = ReadNumber(where, item, "offset");
      const auto strides = ReadNumbers(where, item, "strides");
      if (from && offset && strides) {
        builder_.PlaceStrided(*from, buffer->second, *offset, *strides);
      }
    }
  }

  // The part of a view that a list of ranges, one for each dimension, gives.
  std::optional<StridedView> ReadRanges(const std::string& where, const Json& item, const char* key,
                                        StridedView view) {
    const auto ranges = ReadTuples(where, item, key, 2, 3);
    if (!ranges) return std::nullopt;
    // A view of an unknown tensor has no dimensions to compare with; the name is reported.
    if (view.is_valid() && ranges->size() != view.dims()) {
      Wrong(where, absl::StrCat("has a '", key, "' of ", ranges->size(), " dimensions, not ",
                                view.dims()));
      return std::nullopt;
    }
    for (size_t dim = 0; dim < ranges->size(); ++dim) {
      const std::vector<uint64_t>& range = (*ranges)[dim];
      view = view.Slice(dim, range[0], range[1], range.size() == 3 ? range[2] : 1);
    }
    return view;
  }

  void ReadLoops(const std::string& where, const Json& item, const StridedView& tensor,
                 const StridedView& buffer) {
    const auto from = ReadNumber(where, item, "from");
    const auto to = ReadNumber(where, item, "to");
    const auto loops = ReadTuples(where, item, "loops", 3, 3);
    if (!from || !to || !loops) return;
    Placement placement{0, *from, 0, *to, {}};
    for (const std::vector<uint64_t>& loop : *loops) {
      placement.dims.push_back({loop[0], loop[1], loop[2]});
    }
    builder_.PlaceNest(std::move(placement), tensor, buffer);
  }

  void ReadAlias(const std::string& where, const Json& item) {
    std::vector<std::string> names;
    bool is_right = item.is_array();
    for (size_t i = 0; is_right && i < item.size(); ++i) {
      is_right = item[i].is_string();
      if (is_right) names.push_back(item[i].get<std::string>());
    }
    if (!is_right) return Wrong(where, "is not a list of names of tensors");
    builder_.Alias(std::vector<std::string_view>(names.begin(), names.end()));
  }

  const Json& json_;
  LayoutBuilder builder_;
  absl::flat_hash_map<std::string, StridedView> buffers_;
  GroupedFaults faults_;
};

}  // namespace

absl::StatusOr<Layout> ReadLayout(std::string_view text, const Manifest& manifest,
                                  uint64_t generation) {
  RepeatedKeys repeated;
  const auto watch = [&repeated](int, Json::parse_event_t event, const Json& parsed) {
    return repeated(event, parsed);
  };
  const Json json = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError("layout file: not JSON");
  RETURN_IF_ERROR(Prefixed(repeated.ToStatus(), "layout file"));
  return LayoutReader(json, manifest).Read(generation);
}

}  // namespace wstore
