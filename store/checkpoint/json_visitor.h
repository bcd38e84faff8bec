// JSON from outside, read strictly and without a tree: repeated keys and the exact text of numbers
// are seen, and memory does not grow with what is skipped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace wstore {

struct JsonScalar {
  enum class Kind {
    kNull,
    kBool,
    kUnsigned,  // written as an integer from 0 to 2^64 - 1
    kNumber,    // any other number: negative, with a fraction or an exponent, or too large
    kString,
  };
  Kind kind = Kind::kNull;
  uint64_t number = 0;          // kUnsigned
  std::string* text = nullptr;  // kString: the value, which may be moved from; kNumber: as written

  // "a string", "the number -1": for messages.
  std::string Description() const;
};

// Told what a document holds, in order.
class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;

  // A key of the innermost open object; its value comes next. `key` may be moved from.
  virtual void Key(std::string& key) = 0;
  // An object or an array begins. If this returns false, all of it is passed over, its end too.
  virtual bool Open(bool is_object) = 0;
  virtual void Close() = 0;
  virtual void Scalar(const JsonScalar& scalar) = 0;
  // Where the document is being read, such as "in tensor 'x'", for syntax errors. May be empty.
  virtual std::string Where() const = 0;
};

// Visits a document that is one object. `visitor` may have been told a part of it on failure.
//   kInvalidArgument: the text does not begin with '{'; is not UTF-8 or not JSON (the position is
//   given); has more after the object than white space; is nested more than 32 deep
absl::Status VisitJsonObject(std::string_view text, JsonVisitor& visitor);

// Appends a JSON string literal. `text` is UTF-8; only what must be is escaped.
void AppendJsonString(std::string_view text, std::string* out);

}  // namespace wstore
