// Patch sets past what 32 bits can count. They take minutes and 20 GB of disk.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/support/catch.h"
#include "tests/support/naive_safetensors.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "wstore/store.h"

namespace wstore::testing {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr int kThreads = 2;

// Anonymous memory beside a patch that is given: up to two spans a thread, as they will be stored,
// wait for their turn to be written.
constexpr uint64_t OverheadBytes(uint64_t element_bytes) {
  return kGiB / 4 + 2 * kThreads * kSpanTiles * kTileElements * element_bytes;
}

// A number of bytes from a file of /proc: "RssAnon:    1234 kB".
uint64_t ProcBytes(const std::string& path, const std::string& field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field + ":")) return std::stoull(line.substr(field.size() + 1)) << 10;
  }
  return 0;
}

// Samples this process's anonymous memory until it is asked.
class MemoryMeter {
 public:
  MemoryMeter() : thread_([this] { Run(); }) {}
  ~MemoryMeter() { PeakBytes(); }
  uint64_t PeakBytes() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return peak_bytes_;
  }

 private:
  void Run() {
    while (!stop_) {
      peak_bytes_ = std::max(peak_bytes_, ProcBytes("/proc/self/status", "RssAnon"));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  std::atomic<bool> stop_ = false;
  uint64_t peak_bytes_ = 0;
  std::thread thread_;
};

// A whole file as memory that is not anonymous.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) : size_(std::filesystem::file_size(path)) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(file >= 0);
    data_ = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    REQUIRE(data_ != MAP_FAILED);
  }
  ~MappedFile() { munmap(data_, size_); }

  absl::Span<const uint8_t> bytes() const {
    return absl::MakeConstSpan(static_cast<const uint8_t*>(data_), size_);
  }

 private:
  const uint64_t size_;
  void* data_;
};

// A file of `tensors` tensors of one shape, without its data.
std::string HeaderOf(uint64_t tensors, const std::string& dtype, const std::string& shape,
                     uint64_t tensor_bytes) {
  std::string header;
  for (uint64_t i = 0; i < tensors; ++i) {
    absl::StrAppend(&header, i == 0 ? "{" : ",",
                    EntryOf(absl::StrCat("t", 100000 + i), dtype, shape,
                            absl::StrCat("[", i * tensor_bytes, ",", (i + 1) * tensor_bytes, "]")));
  }
  // The data begins at a multiple of eight.
  header.append((16 - (header.size() + 1) % 8) % 8, ' ');
  return FileOf(header + "}");
}

// Zeros that take no room on the disk.
void WriteSparse(const std::string& path, const std::string& header, uint64_t data_bytes) {
  WriteFile(path, header);
  std::filesystem::resize_file(path, header.size() + data_bytes);
}

void WriteRandom(const std::string& path, const std::string& header, uint64_t data_bytes) {
  std::mt19937_64 random(TestSeed("large values"));
  std::ofstream file(path, std::ios::binary);
  file << header;
  std::vector<uint64_t> words(1 << 17);
  for (uint64_t done = 0; done < data_bytes;) {
    for (uint64_t& word : words) word = random();
    const uint64_t bytes = std::min<uint64_t>(words.size() * 8, data_bytes - done);
    file.write(reinterpret_cast<const char*>(words.data()), static_cast<std::streamsize>(bytes));
    done += bytes;
  }
  REQUIRE(file.flush().good());
}

void WriteIndices(const std::string& path, uint64_t count) {
  std::ofstream file(path, std::ios::binary);
  std::vector<int64_t> indices(1 << 16);
  for (uint64_t done = 0; done < count; done += indices.size()) {
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int64_t>(done + i);
    const uint64_t bytes = 8 * std::min<uint64_t>(indices.size(), count - done);
    file.write(reinterpret_cast<const char*>(indices.data()), static_cast<std::streamsize>(bytes));
  }
  REQUIRE(file.flush().good());
}

// Tensor by tensor, each found by the header of its own file.
void RequireSameTensors(const std::string& path, const std::string& expected_path) {
  const MappedFile file(path);
  const MappedFile expected_file(expected_path);
  const auto split = [](absl::Span<const uint8_t> bytes) {
    uint64_t header_bytes;
    std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
    const uint8_t* const header = bytes.data() + sizeof(header_bytes);
    return std::pair(nlohmann::json::parse(header, header + header_bytes), header + header_bytes);
  };
  auto [header, data] = split(file.bytes());
  const auto [expected_header, expected_data] = split(expected_file.bytes());
  header.erase("__metadata__");
  REQUIRE(header.size() == expected_header.size());
  for (const auto& [name, expected] : expected_header.items()) {
    INFO(name);
    const nlohmann::json& found = header.at(name);
    REQUIRE(found["dtype"] == expected["dtype"]);
    REQUIRE(found["shape"] == expected["shape"]);
    const auto at = found["data_offsets"].get<std::array<uint64_t, 2>>();
    const auto expected_at = expected["data_offsets"].get<std::array<uint64_t, 2>>();
    REQUIRE(at[1] - at[0] == expected_at[1] - expected_at[0]);
    REQUIRE(std::memcmp(data + at[0], expected_data + expected_at[0], at[1] - at[0]) == 0);
  }
}

std::unique_ptr<Store> CreateStore(const TempDir& directory, const std::string& base) {
  CreateOptions options;
  options.threads = kThreads;
  auto store = Store::Create(directory / "store", base, options);
  REQUIRE_OK(store);
  return *std::move(store);
}

// v1 is one version of `elements` changes and has the bits of `target`, after a reopening too.
void RequireVersion(const TempDir& directory, uint64_t elements, const std::string& target) {
  OpenOptions open_options;
  open_options.threads = kThreads;
  const auto store = Store::Open(directory / "store", open_options);
  REQUIRE_OK(store);
  REQUIRE((*store)->head().version == VersionId(1));
  REQUIRE((*store)->versions().size() == 2);
  const auto version = (*store)->version(VersionId(1));
  REQUIRE_OK(version);
  REQUIRE(version->elements == elements);
  REQUIRE(version->payload_bytes > 4 * kGiB);
  VerifyOptions all;
  all.all = true;
  const auto report = (*store)->Verify(all);
  REQUIRE_OK(report);
  for (const VerifyProblem& problem : report->problems) FAIL(problem.what);
  ExportOptions options;
  options.directory = directory / "export";
  REQUIRE_OK((*store)->Export(VersionId(1), options));
  RequireSameTensors(directory / "export/model.safetensors", target);
}

bool HasRoom(uint64_t memory_bytes) {
  return std::filesystem::space(std::filesystem::temp_directory_path()).available > 22 * kGiB &&
         ProcBytes("/proc/meminfo", "MemAvailable") > memory_bytes;
}

TEST_CASE("C10 one patch of more than 4 GiB of values") {
  constexpr uint64_t kRows = 131328;
  constexpr uint64_t kElements = kRows * 4096;
  static_assert(kElements * 8 > 4 * kGiB);
  // What the transaction keeps of a patch: two bytes and the value for each change.
  constexpr uint64_t kPatchBytes = kElements * 10;
  if (!HasRoom(kPatchBytes + 2 * kGiB)) SKIP_TEST("needs 22 GiB of disk and 7 GiB of memory");
  const TempDir directory;
  const std::string header = HeaderOf(1, "I64", absl::StrCat("[", kRows, ",4096]"), kElements * 8);
  const std::string base = directory / "base.safetensors";
  const std::string target = directory / "target.safetensors";
  WriteSparse(base, header, kElements * 8);
  WriteRandom(target, header, kElements * 8);
  WriteIndices(directory / "indices", kElements);

  MemoryMeter meter;
  {
    const auto store = CreateStore(directory, base);
    const auto transaction = store->Begin({});
    REQUIRE_OK(transaction);
    {
      const MappedFile indices(directory / "indices");
      const MappedFile values(target);
      TensorPatch patch;
      patch.name = "t100000";
      patch.dtype = Dtype::kI64;
      patch.shape = {kRows, 4096};
      patch.indices =
          absl::MakeConstSpan(reinterpret_cast<const int64_t*>(indices.bytes().data()), kElements);
      patch.values = values.bytes().subspan(header.size());
      patch.form = TensorPatch::Form::kXor;
      REQUIRE_OK((*transaction)->Add({&patch, 1}));
    }
    std::filesystem::remove(directory / "indices");
    REQUIRE_OK((*transaction)->Commit());
  }
  RequireVersion(directory, kElements, target);
  const uint64_t peak_bytes = meter.PeakBytes();
  std::cout << "peak of anonymous memory: " << (peak_bytes >> 20) << " MiB" << std::endl;
  CHECK(peak_bytes < kPatchBytes + OverheadBytes(8));
}

TEST_CASE("C10 a set of small tensors with more than 4 GiB in all") {
  constexpr uint64_t kTensors = 16448;
  constexpr uint64_t kTensorElements = 512 * 256;
  constexpr uint64_t kBytes = kTensors * kTensorElements * 2;
  static_assert(kBytes > 4 * kGiB);
  if (!HasRoom(2 * kGiB)) SKIP_TEST("needs 22 GiB of disk and 2 GiB of memory");
  const TempDir directory;
  const std::string header = HeaderOf(kTensors, "BF16", "[512,256]", kTensorElements * 2);
  const std::string base = directory / "base.safetensors";
  const std::string target = directory / "target.safetensors";
  WriteSparse(base, header, kBytes);
  WriteRandom(target, header, kBytes);
  uint64_t elements = 0;
  {
    const MappedFile file(target);
    const uint8_t* const data = file.bytes().data() + header.size();
    for (uint64_t i = 0; i < kBytes; i += 2) elements += (data[i] | data[i + 1]) != 0;
  }

  MemoryMeter meter;
  {
    const auto store = CreateStore(directory, base);
    const auto transaction = store->Begin({});
    REQUIRE_OK(transaction);
    REQUIRE_OK((*transaction)->SetCheckpoint(target));
    REQUIRE_OK((*transaction)->Commit());
  }
  RequireVersion(directory, elements, target);
  const uint64_t peak_bytes = meter.PeakBytes();
  std::cout << "peak of anonymous memory: " << (peak_bytes >> 20) << " MiB" << std::endl;
  CHECK(peak_bytes < OverheadBytes(2));
}

}  // namespace
}  // namespace wstore::testing
