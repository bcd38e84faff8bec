// An independent reading and writing of the safetensors format, as plain as can be, for comparison.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/support/catch.h"

namespace wstore::testing {

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Name and content of every regular file of a directory; other names with "".
inline std::map<std::string, std::string> ReadDirectory(const std::string& path) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    files[entry.path().filename().string()] =
        entry.is_regular_file() ? ReadFile(entry.path().string()) : "";
  }
  return files;
}

inline std::string LengthPrefix(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  return bytes;
}

// A file with this header and data, right or wrong.
inline std::string FileOf(const std::string& header, const std::string& data = "") {
  return LengthPrefix(header.size()) + header + data;
}

// "name":{...} of a header.
inline std::string EntryOf(const std::string& name, const std::string& dtype,
                           const std::string& shape, const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

struct NaiveTensor {
  std::string dtype;
  std::vector<uint64_t> shape;
  std::string bytes;

  friend bool operator==(const NaiveTensor&, const NaiveTensor&) = default;
};
using NaiveTensors = std::map<std::string, NaiveTensor>;

// A file with the tensors in the order of `names`.
inline std::string NaiveWrite(const NaiveTensors& tensors, const std::vector<std::string>& names,
                              const std::map<std::string, std::string>& metadata = {}) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::string data;
  for (const std::string& name : names) {
    const NaiveTensor& tensor = tensors.at(name);
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  return FileOf(header.dump(), data);
}

inline std::vector<std::string> NamesOf(const NaiveTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

// Reads a sound file.
inline NaiveTensors NaiveRead(const std::string& file,
                              std::map<std::string, std::string>* metadata = nullptr) {
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(file.at(i));
  const nlohmann::json header = nlohmann::json::parse(file.substr(8, length));
  NaiveTensors tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (metadata != nullptr) *metadata = entry;
      continue;
    }
    const uint64_t begin = entry["data_offsets"][0];
    const uint64_t end = entry["data_offsets"][1];
    tensors[name] = {entry["dtype"], entry["shape"], file.substr(8 + length + begin, end - begin)};
  }
  return tensors;
}

inline std::string RandomBytes(std::mt19937_64& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Tensors of many types and shapes, some scalar, some empty.
inline NaiveTensors RandomTensors(std::mt19937_64& random, int count) {
  struct Type {
    const char* name;
    uint64_t bits;
  };
  constexpr Type kTypes[] = {{"BF16", 16}, {"F32", 32}, {"F64", 64},       {"BOOL", 8},
                             {"I64", 64},  {"F4", 4},   {"F6_E2M3", 6},    {"F8_E4M3", 8},
                             {"C64", 64},  {"U16", 16}, {"F8_E5M2FNUZ", 8}};
  NaiveTensors tensors;
  for (int i = 0; i < count; ++i) {
    const Type& type = kTypes[random() % std::size(kTypes)];
    NaiveTensor tensor{type.name, {}, ""};
    uint64_t elements = 1;
    for (uint64_t rank = random() % 4; rank > 0; --rank) {
      tensor.shape.push_back(random() % 7);
      elements *= tensor.shape.back();
    }
    if (elements * type.bits % 8 != 0) {
      tensor.shape.push_back(8);
      elements *= 8;
    }
    tensor.bytes = RandomBytes(random, elements * type.bits / 8);
    tensors["layer." + std::to_string(random() % 1000) + "." + std::to_string(i)] = tensor;
  }
  return tensors;
}

}  // namespace wstore::testing

// An error of this code that mentions all of these texts.
#define REQUIRE_ERROR_WITH(expression, expected_code, ...)                                         \
  do {                                                                                             \
    const absl::Status wstore_error = ::wstore::testing::StatusOf(expression);                     \
    INFO(wstore_error.ToString());                                                                 \
    REQUIRE(wstore_error.code() == (expected_code));                                               \
    for (const std::string& wstore_text : std::initializer_list<std::string>{__VA_ARGS__}) {       \
      REQUIRE_THAT(std::string(wstore_error.message()), ::Catch::Matchers::Contains(wstore_text)); \
    }                                                                                              \
  } while (false)
