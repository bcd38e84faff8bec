#include "tools/bench/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/split_mix.h"

namespace wstore::bench {
namespace {

constexpr uint64_t kBufferElements = 1 << 20;

// 65,536 bf16 numbers that are normal with sigma 0.02: drawing one of them evenly draws a weight.
std::vector<uint16_t> NormalTable() {
  std::vector<uint16_t> table(65536);
  SplitMix random(0);
  for (size_t i = 0; i < table.size(); i += 2) {
    // Box and Muller 1958.
    const double u = (static_cast<double>(random.Next() >> 11) + 0.5) / 9007199254740992.0;
    const double angle = static_cast<double>(random.Next() >> 11) / 9007199254740992.0 * 2 * M_PI;
    const double radius = 0.02 * std::sqrt(-2 * std::log(u));
    const std::array<double, 2> pair = {radius * std::cos(angle), radius * std::sin(angle)};
    for (size_t k = 0; k < pair.size(); ++k) {
      const auto number = static_cast<float>(pair[k]);
      uint32_t bits;
      std::memcpy(&bits, &number, sizeof(bits));
      table[i + k] = static_cast<uint16_t>(bits >> 16);
    }
  }
  return table;
}

std::string Header(const Workload& workload) {
  std::string json = "{";
  uint64_t at = 0;
  for (uint64_t i = 0; i < workload.tensors(); ++i) {
    const uint64_t elements = std::min(workload.tensor_elements, workload.elements - at / 2);
    absl::StrAppend(&json, i == 0 ? "" : ",",
                    absl::StrFormat("\"layer.%07d.weight\":{\"dtype\":\"BF16\",\"shape\":[%d],"
                                    "\"data_offsets\":[%d,%d]}",
                                    i, elements, at, at + 2 * elements));
    at += 2 * elements;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string header(8, '\0');
  for (int i = 0; i < 8; ++i) header[i] = static_cast<char>(json.size() >> (8 * i));
  return header + json;
}

}  // namespace

absl::Status WriteCheckpoints(const Workload& workload, const std::string& base_path,
                              const std::string& changed_path) {
  const std::vector<uint16_t> table = NormalTable();
  const std::string header = Header(workload);
  std::ofstream base(base_path.empty() ? "/dev/null" : base_path, std::ios::binary);
  std::ofstream changed(changed_path.empty() ? "/dev/null" : changed_path, std::ios::binary);
  base << header;
  changed << header;
  const auto threshold = static_cast<uint64_t>(workload.density * 4294967296.0);
  SplitMix random(workload.seed);
  std::vector<uint16_t> before(kBufferElements);
  std::vector<uint16_t> after(kBufferElements);
  for (uint64_t done = 0; done < workload.elements;) {
    const uint64_t count = std::min(kBufferElements, workload.elements - done);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t draw = random.Next();
      before[i] = table[draw & 65535];
      after[i] = before[i];
      if ((draw >> 32) < threshold) after[i] += (draw >> 16 & 1) != 0 ? 1 : UINT16_MAX;
    }
    const auto bytes = static_cast<std::streamsize>(2 * count);
    base.write(reinterpret_cast<const char*>(before.data()), bytes);
    changed.write(reinterpret_cast<const char*>(after.data()), bytes);
    done += count;
  }
  base.flush();
  changed.flush();
  if (base && changed) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot write ", base_path, " and ", changed_path));
}

std::string DensityName(double density) {
  std::string name = absl::StrFormat("%.4g", 100 * density);
  return name + "%";
}

}  // namespace wstore::bench
