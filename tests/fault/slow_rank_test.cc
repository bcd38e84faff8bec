// E03 in full size: sets of 100 MB beside a rank that stands still.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>

#include "tests/fault/fault_fixture.h"
#include "wstore/publisher.h"

namespace wstore::testing {
namespace {

constexpr uint64_t kTensorBytes = 100 << 20;
constexpr uint64_t kMostServerBytes = uint64_t{3} << 29;  // 1 GiB is gRPC's limit
constexpr int kSets = 50;

Deadline Soon() { return Deadline::After(300 * kSecond); }

// A checkpoint of one tensor of zeros, and the layout of a rank that has all of it.
void WriteModel(const std::string& directory, const std::string& layout) {
  std::filesystem::create_directory(directory);
  const std::string size = std::to_string(kTensorBytes);
  std::string header =
      R"({"w":{"dtype":"U8","shape":[)" + size + R"(],"data_offsets":[0,)" + size + "]}}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = header.size();
  {
    std::ofstream file(directory + "/model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
    file << header;
    REQUIRE(file.good());
  }
  std::filesystem::resize_file(directory + "/model.safetensors",
                               sizeof(header_bytes) + header_bytes + kTensorBytes);
  WriteFile(layout, R"({"format":"wstore layout","version":1,)"
                    R"("buffers":[{"name":"w","dtype":"U8","shape":[)" +
                        size +
                        R"(]}],)"
                        R"("placements":[{"tensor":"w","buffer":"w","from":0,"to":0,"loops":[[)" +
                        size + R"(,1,1]]}]})");
}

// Every byte changes, to what cannot be made smaller.
void Scramble(std::vector<uint8_t>& bytes, uint64_t salt) {
  for (uint64_t at = 0; at < bytes.size(); at += 8) {
    uint64_t word = (at + salt) * 0x9e3779b97f4a7c15;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    word |= 0x0101010101010101;
    uint64_t old = 0;
    std::memcpy(&old, &bytes[at], 8);
    old ^= word;
    std::memcpy(&bytes[at], &old, 8);
  }
}

TEST_CASE("E03 50 sets of 100 MB beside a stopped rank", "[.][long][large]") {
  const TempDir directory;
  WriteModel(directory / "base", directory / "layout.json");
  LocalFleet::Options options;
  options.program = WSTORE_BINARY;
  options.directory = directory.path();
  options.checkpoint = directory / "base";
  options.server_arguments = {"--lease",          "2s",  "--skew",          "500ms",
                              "--apply-deadline", "10s", "--hold-deadline", "20s"};
  auto created = LocalFleet::Create(options);
  REQUIRE_OK(created);
  LocalFleet& fleet = **created;
  REQUIRE_OK(fleet.StartServer());
  const auto start = [&](const std::string& instance) {
    auto rank = fleet.StartAs(instance,
                              {"--timeout", "60s", "worker", "--layout", directory / "layout.json",
                               "--base", directory / "base", "--instance", instance},
                              instance);
    REQUIRE_OK(rank);
    return *std::move(rank);
  };
  const auto steady = start("steady");
  const auto stopped = start("stopped");
  REQUIRE_OK(fleet.AwaitCurrent("v0", 2, 4 * kWait));
  stopped->Signal(SIGSTOP);

  ConnectOptions connect;
  connect.address = "unix:" + fleet.store_path() + "/wstore.sock";
  const auto client = Client::Connect(connect, "trainer");
  REQUIRE_OK(client);
  const auto publisher = Publisher::Start(*client, {}, Soon());
  REQUIRE_OK(publisher);
  std::vector<uint8_t> weights(kTensorBytes);
  std::vector<int64_t> times_ms;
  for (int set = 1; set <= kSets; ++set) {
    Scramble(weights, static_cast<uint64_t>(set));
    MemoryTensors now((*publisher)->manifest());
    REQUIRE_OK(now.Set("w", weights));
    PublishOptions publish;
    publish.begin.transaction_id = "set " + std::to_string(set);
    const auto decision = (*publisher)->Publish(now, publish, Soon());
    REQUIRE_OK(decision);
    REQUIRE(decision->version == VersionId(static_cast<uint64_t>(set)));
    times_ms.push_back(decision->duration_micros / 1000);
  }
  std::sort(times_ms.begin() + 1, times_ms.end());
  const uint64_t peak = PeakBytes(fleet.server().pid());
  std::cout << kSets << " sets: the first " << times_ms[0] << " ms, the others "
            << times_ms[kSets / 2] << " ms at the median, " << times_ms.back()
            << " at most; the server's memory at most " << (peak >> 20) << " MiB" << std::endl;
  REQUIRE(peak < kMostServerBytes);

  // It was left behind, and that is said; the other is where head is.
  auto workers = fleet.Must({"workers"});
  REQUIRE_OK(workers);
  INFO(workers->dump(1));
  for (const nlohmann::json& worker : *workers) {
    const bool is_steady = worker["instance"] == "steady";
    REQUIRE((worker["state"] == "current") == is_steady);
    REQUIRE((worker["version"] == "v50") == is_steady);
  }
  stopped->Signal(SIGCONT);
  REQUIRE_OK(fleet.AwaitCurrent("v50", 2, 20 * kWait));
  auto verified = fleet.Must({"verify", "--workers"});
  REQUIRE_OK(verified);
  INFO(verified->dump());
  REQUIRE((*verified)["ok"] == true);
}

}  // namespace
}  // namespace wstore::testing
