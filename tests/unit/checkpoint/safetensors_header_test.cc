#include "store/checkpoint/safetensors_header.h"

#include <string>

#include "tests/support/catch.h"
#include "tests/support/naive_safetensors.h"
#include "tests/support/random.h"

namespace wstore {
namespace {

using absl::StatusCode;
using testing::EntryOf;

constexpr StatusCode kRefused = StatusCode::kInvalidArgument;

std::string Header(std::initializer_list<std::string> entries) {
  std::string json = "{";
  for (const std::string& entry : entries) json += (json.size() > 1 ? "," : "") + entry;
  return json + "}";
}

TEST_CASE("B01 a tensor name twice is refused, whether the entries differ or not") {
  const std::string at_0 = EntryOf("x", "U8", "[4]", "[0,4]");
  const std::string at_4 = EntryOf("x", "U8", "[4]", "[4,8]");
  REQUIRE_ERROR(ParseHeader(Header({at_0, at_4}), 8), kRefused, "duplicate tensor name 'x'");
  REQUIRE_ERROR(ParseHeader(Header({at_0, at_0}), 4), kRefused, "duplicate tensor name 'x'");
  REQUIRE_ERROR(ParseHeader(Header({at_0, EntryOf("\\u0078", "U8", "[4]", "[4,8]")}), 8), kRefused,
                "duplicate tensor name 'x'");
  const std::string y = EntryOf("y", "U8", "[0]", "[0,0]");
  REQUIRE_ERROR(ParseHeader(Header({y, at_0, at_4, y, at_4}), 8), kRefused,
                "duplicate tensor name 'x'; duplicate tensor name 'y'");
}

TEST_CASE("B02 scalars and empty tensors are sound wherever they do not cut another") {
  const auto header = ParseHeader(
      Header({EntryOf("scalar", "F32", "[]", "[0,4]"), EntryOf("none", "F32", "[0]", "[4,4]"),
              EntryOf("flat", "I64", "[2,0,3]", "[4,4]"), EntryOf("more", "U8", "[2]", "[4,6]"),
              EntryOf("end", "BF16", "[0]", "[6,6]"), EntryOf("begin", "BF16", "[0]", "[0,0]")}),
      6);
  REQUIRE_OK(header);
  REQUIRE(header->tensors.size() == 6);
  REQUIRE(header->tensors[0] == PlacedTensor{{"begin", Dtype::kBF16, {0}}, 0, 0});
  REQUIRE(header->tensors[2] == PlacedTensor{{"flat", Dtype::kI64, {2, 0, 3}}, 4, 4});
  REQUIRE(header->tensors[5] == PlacedTensor{{"scalar", Dtype::kF32, {}}, 0, 4});

  REQUIRE_OK(ParseHeader("{}", 0));
  const auto metadata_only = ParseHeader("{\"__metadata__\":{\"format\":\"pt\",\"\":\"\"}}", 0);
  REQUIRE_OK(metadata_only);
  REQUIRE(metadata_only->tensors.empty());
  REQUIRE(metadata_only->metadata.at("format") == "pt");

  REQUIRE_ERROR_WITH(
      ParseHeader(
          Header({EntryOf("a", "U8", "[4]", "[0,4]"), EntryOf("hole", "U8", "[0]", "[2,2]")}), 4),
      kRefused, "empty tensor 'hole' begins at byte 2", "inside tensor 'a'");
  REQUIRE_ERROR(ParseHeader(Header({EntryOf("far", "U8", "[0]", "[9,9]")}), 0), kRefused,
                "after a hole of 9 bytes");
  REQUIRE_ERROR(ParseHeader(Header({EntryOf("a", "U8", "[0]", "[0,1]")}), 1), kRefused,
                "tensor 'a': U8 [0] needs 0 bytes, data_offsets [0, 1] hold 1");
}

TEST_CASE("B03 sizes and numbers that do not fit are refused with the tensor's name") {
  const auto shape = [](const std::string& text) {
    return ParseHeader(Header({EntryOf("big", "F32", text, "[0,0]")}), 0);
  };
  REQUIRE_ERROR_WITH(shape("[4294967296,4294967296]"), kRefused, "tensor 'big'",
                     "[4294967296, 4294967296]", "does not fit in 2^60 bytes");
  // A zero anywhere makes the tensor empty.
  REQUIRE_OK(shape("[0,9223372036854775808,9223372036854775808]"));
  REQUIRE_OK(shape("[9223372036854775808,9223372036854775808,0]"));
  REQUIRE_OK(shape("[18446744073709551615,0]"));
  for (const char* bad : {"-1", "-0", "1.5", "1.0", "1e3", "1E3", "18446744073709551616",
                          "-9223372036854775809", "null", "true", "\"1\"", "[1]", "{}"}) {
    INFO(bad);
    REQUIRE_ERROR_WITH(shape("[0," + std::string(bad) + "]"), kRefused, "tensor 'big': shape[1] is",
                       "an integer from 0 to 18446744073709551615");
  }
  REQUIRE_ERROR(shape("[0,-3]"), kRefused, "shape[1] is the number -3;");
  REQUIRE_ERROR(shape("[1e3]"), kRefused, "shape[0] is the number 1e3;");
  REQUIRE_ERROR(shape("[18446744073709551616]"), kRefused, "number 18446744073709551616;");
  REQUIRE_ERROR(shape("[0," + std::string(5000, '9') + ".5]"), kRefused, "tensor 'big'");
  for (const char* bad : {"1e999", "01", "+1", "0x10", "NaN", ".5", "1.", "1e", "-"}) {
    INFO(bad);
    REQUIRE_ERROR_WITH(shape(std::string("[") + bad + "]"), kRefused, "invalid JSON at byte",
                       "in tensor 'big'");
  }
  REQUIRE_ERROR(ParseHeader(Header({EntryOf("a", "U8", "[1]", "[0,1.0]")}), 1), kRefused,
                "tensor 'a': data_offsets[1] is the number 1.0;");
  REQUIRE_ERROR_WITH(ParseHeader(Header({EntryOf("odd", "F4", "[3]", "[0,2]")}), 2), kRefused,
                     "tensor 'odd'", "12 bits");
}

TEST_CASE("B04 offsets that disagree with the shape, or leave or share bytes, are refused") {
  const auto offsets = [](const std::string& text, uint64_t data_size) {
    return ParseHeader(Header({EntryOf("w", "F32", "[32,8]", text)}), data_size);
  };
  REQUIRE_ERROR(offsets("[0,65536]", 65536), kRefused,
                "tensor 'w': F32 [32, 8] needs 1024 bytes, data_offsets [0, 65536] hold 65536");
  REQUIRE_ERROR(offsets("[0,4]", 4), kRefused, "needs 1024 bytes, data_offsets [0, 4] hold 4");
  REQUIRE_ERROR(offsets("[1024,0]", 1024), kRefused,
                "tensor 'w': data_offsets [1024, 0] begin after they end");
  REQUIRE_ERROR(offsets("[0,1024,1024]", 1024), kRefused,
                "tensor 'w': data_offsets has 3 numbers; it must have 2");
  REQUIRE_ERROR(offsets("[0]", 1024), kRefused, "data_offsets has 1 numbers");
  REQUIRE_ERROR(offsets("[]", 1024), kRefused, "data_offsets has 0 numbers");
  REQUIRE_ERROR(offsets("[8,1032]", 1032), kRefused,
                "tensor 'w' begins at byte 8 of the data, after a hole of 8 bytes");
  // An offset near 2^64 must not wrap.
  REQUIRE_ERROR(offsets("[18446744073709550591,18446744073709551615]", 1024), kRefused,
                "after a hole of 18446744073709550591 bytes");

  const auto two = [](const std::string& second, uint64_t data_size) {
    return ParseHeader(
        Header({EntryOf("a", "U8", "[16]", "[0,16]"), EntryOf("b", "U8", "[16]", second)}),
        data_size);
  };
  REQUIRE_OK(two("[16,32]", 32));
  REQUIRE_ERROR(two("[24,40]", 40), kRefused,
                "tensor 'b' begins at byte 24 of the data, after a hole of 8 bytes");
  REQUIRE_ERROR(two("[15,31]", 31), kRefused,
                "tensor 'b' begins at byte 15 of the data, inside tensor 'a', which ends at 16: an "
                "overlap of 1 byte");
  REQUIRE_ERROR(two("[0,16]", 16), kRefused, "an overlap of 16 bytes");
  REQUIRE_ERROR(two("[16,32]", 31), kRefused, "short by 1 byte");
  REQUIRE_ERROR(two("[16,32]", 36), kRefused, "4 extra bytes");
}

TEST_CASE("B05 the header's length is checked before anything is read") {
  const auto length = [](uint64_t stated, uint64_t file_size) {
    const std::string prefix = testing::LengthPrefix(stated);
    return ParseHeaderLength(
        absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(prefix.data()), 8), file_size);
  };
  REQUIRE(*length(2, 10) == 2);
  REQUIRE(*length(100'000'000, 100'000'008) == 100'000'000);
  REQUIRE_ERROR_WITH(length(100'000'001, 200'000'000), kRefused, "100000001",
                     "the limit is 100000000");
  REQUIRE_ERROR_WITH(length(UINT64_MAX, 100), kRefused, "18446744073709551615",
                     "the limit is 100000000");
  REQUIRE_ERROR(length(93, 100), kRefused,
                "the header ends at byte 101, the file has 100: short by 1 byte");
  REQUIRE_ERROR(length(100'000'000, 9), kRefused, "short by 99999999 bytes");
  REQUIRE_OK(ParseHeader("{}" + std::string(100'000'000 - 2, ' '), 0));
  REQUIRE_ERROR(ParseHeader("", 0), kRefused, "it is empty");
  REQUIRE_ERROR(ParseHeader("{", 0), kRefused, "invalid JSON");
  REQUIRE_ERROR(ParseHeader("{\"a\":1", 0), kRefused, "invalid JSON");
}

TEST_CASE("a header is one UTF-8 JSON object with nothing but white space behind") {
  const std::string sound = Header({EntryOf("a", "U8", "[1]", "[0,1]")});
  REQUIRE_OK(ParseHeader(sound, 1));
  REQUIRE_OK(ParseHeader(sound + "   \n\t\r ", 1));
  REQUIRE_ERROR(ParseHeader(" " + sound, 1), kRefused, "does not begin with '{'");
  REQUIRE_ERROR(ParseHeader("\xEF\xBB\xBF" + sound, 1), kRefused, "does not begin with '{'");
  REQUIRE_ERROR(ParseHeader("[]", 0), kRefused, "does not begin with '{'");
  REQUIRE_ERROR(ParseHeader(sound + std::string(2, '\0'), 1), kRefused, "a zero byte");
  REQUIRE_ERROR(ParseHeader(sound + "{}", 1), kRefused, "invalid JSON");
  REQUIRE_ERROR(ParseHeader("{\"\xFF\":1}", 0), kRefused, "invalid JSON");
  REQUIRE_ERROR(ParseHeader("{\"\\ud800\":1}", 0), kRefused, "invalid JSON");
  REQUIRE_ERROR(ParseHeader("{/* */}", 0), kRefused, "invalid JSON");
  REQUIRE_ERROR(ParseHeader("{\"a\":{},}", 0), kRefused, "invalid JSON");
  REQUIRE_ERROR(ParseHeader("{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}", 0),
                kRefused, "nested deeper than the limit of 32");
}

TEST_CASE("an entry has exactly dtype, shape and data_offsets") {
  const auto entry = [](const std::string& text) { return ParseHeader("{\"t\":" + text + "}", 1); };
  REQUIRE_ERROR(entry("{}"), kRefused, "tensor 't': lacks dtype, shape, data_offsets");
  REQUIRE_ERROR(entry("{\"shape\":[1],\"data_offsets\":[0,1]}"), kRefused,
                "tensor 't': lacks dtype");
  REQUIRE_ERROR(entry("{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":{\"y\":[]}}"),
                kRefused, "tensor 't': unknown key 'x' (known: dtype, shape, data_offsets)");
  REQUIRE_ERROR(entry("{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]}"),
                kRefused, "tensor 't': key 'shape' twice");
  REQUIRE_ERROR_WITH(entry("{\"dtype\":\"F7\",\"shape\":[1],\"data_offsets\":[0,1]}"), kRefused,
                     "tensor 't': unknown dtype 'F7' (known: BOOL, U8,", "C64, F8_E4M3FNUZ");
  REQUIRE_ERROR(entry("{\"dtype\":\"bf16\",\"shape\":[1],\"data_offsets\":[0,1]}"), kRefused,
                "unknown dtype 'bf16'");
  REQUIRE_ERROR(entry("{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,1]}"), kRefused,
                "tensor 't': dtype is the number 3, not a string");
  REQUIRE_ERROR(entry("{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}"), kRefused,
                "tensor 't': shape is the number 1, not an array");
  REQUIRE_ERROR(entry("{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":{}}"), kRefused,
                "tensor 't': data_offsets is an object, not an array");
  REQUIRE_ERROR(entry("[\"U8\",[1],[0,1]]"), kRefused, "tensor 't': is an array, not an object");
  REQUIRE_ERROR(entry("null"), kRefused, "tensor 't': is null, not an object");
  std::string ones = "[1";
  for (int i = 1; i < 64; ++i) ones += ",1";
  REQUIRE_OK(ParseHeader(Header({EntryOf("t", "U8", ones + "]", "[0,1]")}), 1));
  REQUIRE_ERROR(ParseHeader(Header({EntryOf("t", "U8", ones + ",1]", "[0,1]")}), 1), kRefused,
                "shape has 65 dimensions; the limit is 64");
}

TEST_CASE("metadata maps strings to strings") {
  REQUIRE_ERROR(ParseHeader("{\"__metadata__\":{\"n\":1}}", 0), kRefused,
                "__metadata__: 'n' is the number 1, not a string");
  REQUIRE_ERROR(ParseHeader("{\"__metadata__\":{\"n\":{\"a\":\"b\"}}}", 0), kRefused,
                "__metadata__: 'n' is an object, not a string");
  REQUIRE_ERROR(ParseHeader("{\"__metadata__\":{\"n\":\"1\",\"n\":\"1\"}}", 0), kRefused,
                "__metadata__: key 'n' twice");
  REQUIRE_ERROR(ParseHeader("{\"__metadata__\":{},\"__metadata__\":{}}", 0), kRefused,
                "__metadata__ twice");
  REQUIRE_ERROR(ParseHeader("{\"__metadata__\":null}", 0), kRefused,
                "__metadata__: is null, not an object");
}

TEST_CASE("faults of one kind are told together, up to a limit, with names made harmless") {
  std::string json = "{";
  for (int i = 0; i < 115; ++i) {
    json += (i == 0 ? "" : ",") + EntryOf("t" + std::to_string(i), "F7", "[1]", "[0,1]");
  }
  const absl::Status many = ParseHeader(json + "}", 1).status();
  REQUIRE_ERROR_WITH(many, kRefused, "tensor 't0'", "tensor 't99'", "; and 15 more");
  REQUIRE(many.message().find("'t100'") == absl::string_view::npos);

  REQUIRE_ERROR(ParseHeader("{\"a\\n\\u0000z\":1}", 0), kRefused, "tensor 'a\\n\\x00z': is");
  std::string wide = "x";
  for (int i = 0; i < 150; ++i) wide += "\xC3\xA9";  // 301 bytes; byte 200 is inside a character
  const absl::Status cut = ParseHeader("{\"" + wide + "\":1}", 0).status();
  REQUIRE_ERROR(cut, kRefused, "'" + wide.substr(0, 199) + "...'");
  REQUIRE_ERROR(ParseHeader(Header({EntryOf(std::string(4097, 'n'), "U8", "[1]", "[0,1]")}), 1),
                kRefused, "its name has 4097 bytes; the limit is 4096");
  REQUIRE_OK(ParseHeader(Header({EntryOf(std::string(4096, 'n'), "U8", "[1]", "[0,1]")}), 1));
}

TEST_CASE("a written header is compact, aligned and read back") {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}, {"a \"quote\"", "line\nbreak \\ \x7F \xC3\xA9"}};
  header.tensors = {{{"b", Dtype::kBF16, {2, 3}}, 0, 12}, {{"\x01", Dtype::kU8, {}}, 12, 13}};
  const std::string bytes = FormatHeader(header);
  REQUIRE(bytes.size() % 8 == 0);
  REQUIRE(bytes.substr(8, 106) ==
          "{\"__metadata__\":{\"a \\\"quote\\\"\":\"line\\u000abreak \\\\ \x7F \xC3\xA9\","
          "\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],");
  const auto parsed = ParseHeader(std::string_view(bytes).substr(8), 13);
  REQUIRE_OK(parsed);
  REQUIRE(parsed->metadata == header.metadata);
  REQUIRE(parsed->tensors[0] == header.tensors[1]);
  REQUIRE(parsed->tensors[1] == header.tensors[0]);
  REQUIRE(FormatHeader({}) == std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
}

TEST_CASE("damaged headers are refused or mean what an independent reader takes them for") {
  std::mt19937_64 random(testing::TestSeed("damaged headers"));
  const testing::NaiveTensors tensors = testing::RandomTensors(random, 6);
  const std::string sound =
      testing::NaiveWrite(tensors, testing::NamesOf(tensors), {{"format", "pt"}});
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(sound[i]);
  const uint64_t data_size = sound.size() - 8 - length;
  constexpr std::string_view kLikely = "{}[],:\"0123456789-.eE\\ ax";
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string json = sound.substr(8, length);
    for (uint64_t changes = random() % 3; changes > 0; --changes) {
      const size_t at = random() % json.size();
      const char byte =
          random() % 8 == 0 ? static_cast<char>(random()) : kLikely[random() % kLikely.size()];
      const uint64_t how = random() % 3;
      if (how == 0) json[at] = byte;
      if (how == 1) json.insert(at, 1, byte);
      if (how == 2) json.erase(at, 1);
    }
    const auto header = ParseHeader(json, data_size);
    if (!header.ok()) continue;
    ++accepted;
    std::map<std::string, std::string> metadata;
    const testing::NaiveTensors naive =
        testing::NaiveRead(testing::FileOf(json, sound.substr(8 + length)), &metadata);
    REQUIRE(header->metadata == metadata);
    REQUIRE(header->tensors.size() == naive.size());
    for (const PlacedTensor& tensor : header->tensors) {
      const testing::NaiveTensor& other = naive.at(tensor.spec.name);
      REQUIRE(DtypeName(tensor.spec.dtype) == other.dtype);
      REQUIRE(tensor.spec.shape == other.shape);
      REQUIRE(sound.substr(8 + length + tensor.begin, tensor.end - tensor.begin) == other.bytes);
    }
  }
  REQUIRE(accepted > 300);  // a third of the rounds change nothing
}

}  // namespace
}  // namespace wstore
