#include "store/checkpoint/json_visitor.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace wstore {
namespace {

constexpr uint64_t kMaxDepth = 32;

// Turns the parser's events into the visitor's.
class SaxAdapter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit SaxAdapter(JsonVisitor& visitor) : visitor_(visitor) {}

  const std::string& error() const { return error_; }

  bool null() override { return Scalar({JsonScalar::Kind::kNull}); }
  bool boolean(bool) override { return Scalar({JsonScalar::Kind::kBool}); }
  bool number_unsigned(uint64_t value) override {
    return Scalar({JsonScalar::Kind::kUnsigned, value});
  }
  bool number_integer(int64_t value) override {
    // The parser calls this for numbers with a minus sign only, -0 among them.
    std::string text = value == 0 ? "-0" : absl::StrCat(value);
    return Scalar({JsonScalar::Kind::kNumber, 0, &text});
  }
  bool number_float(double, const std::string& raw) override {
    std::string text = raw;
    return Scalar({JsonScalar::Kind::kNumber, 0, &text});
  }
  bool string(std::string& value) override {
    return Scalar({JsonScalar::Kind::kString, 0, &value});
  }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // not in JSON

  bool start_object(size_t) override { return Open(true); }
  bool start_array(size_t) override { return Open(false); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& key) override {
    if (skipped_depth_ == 0) visitor_.Key(key);
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& exception) override {
    constexpr size_t kMaxShown = 200;
    std::string_view what = exception.what();
    // Behind the parser's own name for the error.
    if (const size_t bracket = what.find("] "); bracket != what.npos)
      what.remove_prefix(bracket + 2);
    std::string shown(what.substr(0, kMaxShown));
    // It quotes the document, which may not be UTF-8.
    for (char& c : shown) {
      if (c < 0x20 || c > 0x7E) c = '?';
    }
    error_ = absl::StrCat("invalid JSON at byte ", position, ": ", shown);
    return false;
  }

 private:
  bool Scalar(const JsonScalar& scalar) {
    if (skipped_depth_ == 0) visitor_.Scalar(scalar);
    return true;
  }

  bool Open(bool is_object) {
    if (depth_ == kMaxDepth) {
      error_ = absl::StrCat("nested deeper than the limit of ", kMaxDepth);
      return false;
    }
    ++depth_;
    if (skipped_depth_ != 0 || !visitor_.Open(is_object)) ++skipped_depth_;
    return true;
  }

  bool Close() {
    --depth_;
    if (skipped_depth_ != 0) {
      --skipped_depth_;
    } else {
      visitor_.Close();
    }
    return true;
  }

  JsonVisitor& visitor_;
  std::string error_;
  uint64_t depth_ = 0;
  uint64_t skipped_depth_ = 0;  // of these, so many inside what the visitor does not want
};

}  // namespace

std::string JsonScalar::Description() const {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "a boolean";
    case Kind::kUnsigned:
      return absl::StrCat("the number ", number);
    case Kind::kNumber:
      return absl::StrCat("the number ", text->substr(0, 40), text->size() > 40 ? "..." : "");
    case Kind::kString:
      return "a string";
  }
  return "";
}

absl::Status VisitJsonObject(std::string_view text, JsonVisitor& visitor) {
  if (text.empty()) return absl::InvalidArgumentError("no JSON: it is empty");
  if (text.front() != '{') return absl::InvalidArgumentError("the JSON does not begin with '{'");
  // The parser would take a zero byte for the end of its input.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    return absl::InvalidArgumentError(absl::StrCat("invalid JSON at byte ", zero, ": a zero byte"));
  }
  // Headers are padded; scanning the padding as JSON is slow.
  text = text.substr(0, text.find_last_not_of(" \t\n\r") + 1);
  SaxAdapter adapter(visitor);
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &adapter)) return absl::OkStatus();
  const std::string where = visitor.Where();
  return absl::InvalidArgumentError(
      absl::StrCat(adapter.error(), where.empty() ? "" : ", ", where));
}

void AppendJsonString(std::string_view text, std::string* out) {
  out->push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(out, "\\u%04x", c);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

}  // namespace wstore
