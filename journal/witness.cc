#include "journal/witness.h"

#include <xxhash.h>

#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "journal/status.h"

namespace wstore::journal {
namespace {

constexpr char kMagic[8] = {'W', 'S', 'T', 'W', 'I', 'T', 'N', 'S'};
constexpr uint32_t kFormat = 1;
constexpr size_t kCheckedBytes = 88;  // what the checksum covers
constexpr size_t kEncodedBytes = kCheckedBytes + 8;

void AppendLittleEndian(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t ReadLittleEndian(std::string_view data, size_t offset, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(data[offset + i])) << (8 * i);
  }
  return value;
}

uint64_t Checksum(std::string_view checked) { return XXH3_64bits(checked.data(), checked.size()); }

uint64_t SlotOffset(uint64_t generation) { return generation % 2 * (2 * kWitnessBlockBytes); }

bool IsIntact(std::string_view block) {
  return block.size() >= kEncodedBytes &&
         block.substr(0, sizeof(kMagic)) == std::string_view(kMagic, sizeof(kMagic)) &&
         ReadLittleEndian(block, kCheckedBytes, 8) == Checksum(block.substr(0, kCheckedBytes));
}

WitnessReading Decode(std::string_view block) {
  WitnessReading reading;
  reading.generation = ReadLittleEndian(block, 16, 8);
  reading.state.records = ReadLittleEndian(block, 24, 8);
  std::memcpy(reading.state.last_digest.bytes.data(), block.data() + 32, 32);
  reading.state.marks.transaction = ReadLittleEndian(block, 64, 8);
  reading.state.marks.version = ReadLittleEndian(block, 72, 8);
  reading.state.marks.move = ReadLittleEndian(block, 80, 8);
  return reading;
}

// Both copies of a slot, as they are written.
std::string EncodeSlot(const WitnessReading& reading) {
  std::string block = EncodeWitness(reading);
  block.resize(kWitnessBlockBytes);
  return block + block;
}

}  // namespace

std::string EncodeWitness(const WitnessReading& reading) {
  std::string out(kMagic, sizeof(kMagic));
  AppendLittleEndian(out, kFormat, 4);
  AppendLittleEndian(out, 0, 4);
  AppendLittleEndian(out, reading.generation, 8);
  AppendLittleEndian(out, reading.state.records, 8);
  out += ToBytes(reading.state.last_digest);
  AppendLittleEndian(out, reading.state.marks.transaction, 8);
  AppendLittleEndian(out, reading.state.marks.version, 8);
  AppendLittleEndian(out, reading.state.marks.move, 8);
  AppendLittleEndian(out, Checksum(out), 8);
  return out;
}

absl::StatusOr<WitnessReading> ReadWitness(rocksdb::FileSystem& fs, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string content, ReadFile(fs, path, kWitnessBytes));
  std::optional<WitnessReading> best;
  for (size_t offset = 0; offset < kWitnessBytes; offset += kWitnessBlockBytes) {
    if (offset >= content.size()) break;
    const std::string_view block = std::string_view(content).substr(offset, kWitnessBlockBytes);
    if (!IsIntact(block)) continue;
    const uint64_t format = ReadLittleEndian(block, 8, 4);
    if (format != kFormat) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " has format ", format, "; this program knows format ", kFormat,
                       ". Use the program that wrote it, or a newer one."));
    }
    const WitnessReading reading = Decode(block);
    if (SlotOffset(reading.generation) !=
        offset / (2 * kWitnessBlockBytes) * (2 * kWitnessBlockBytes)) {
      continue;
    }
    if (!best.has_value() || reading.generation > best->generation) best = reading;
  }
  if (!best.has_value()) {
    return absl::DataLossError(absl::StrCat(
        path, " is damaged: none of its blocks is valid (", content.size(), " bytes, expected ",
        kWitnessBytes, "), so it cannot be told whether acknowledged records are missing"));
  }
  return *best;
}

Witness::Witness(std::shared_ptr<rocksdb::FileSystem> fs, const Paths& paths)
    : fs_(std::move(fs)), paths_(paths) {}

absl::StatusOr<std::unique_ptr<Witness>> Witness::Replace(std::shared_ptr<rocksdb::FileSystem> fs,
                                                          const Paths& paths,
                                                          const WitnessReading& reading) {
  std::unique_ptr<Witness> witness(new Witness(std::move(fs), paths));
  witness->generation_ = reading.generation;
  RETURN_IF_ERROR(witness->Write(reading.state));
  return witness;
}

absl::Status Witness::Write(const WitnessState& state) {
  ++generation_;
  const absl::Status status = file_ == nullptr ? WriteNewFile(state) : WriteSlot(state);
  if (!status.ok()) file_.reset();
  return status;
}

absl::Status Witness::WriteSlot(const WitnessState& state) {
  const std::string slot = EncodeSlot({generation_, state});
  RETURN_IF_ERROR(
      ToStatus(file_->Write(SlotOffset(generation_), slot, rocksdb::IOOptions(), nullptr),
               absl::StrCat("writing ", paths_.witness)));
  return ToStatus(file_->Sync(rocksdb::IOOptions(), nullptr),
                  absl::StrCat("syncing ", paths_.witness));
}

absl::Status Witness::WriteNewFile(const WitnessState& state) {
  // Both slots hold the state: an update must always find an intact older slot beside its own.
  const std::string slot = EncodeSlot({generation_, state});
  const std::string other = EncodeSlot({generation_ + 1, state});
  ++generation_;
  RETURN_IF_ERROR(WriteFile(*fs_, paths_.new_witness,
                            SlotOffset(generation_) == 0 ? other + slot : slot + other));
  RETURN_IF_ERROR(
      ToStatus(fs_->RenameFile(paths_.new_witness, paths_.witness, rocksdb::IOOptions(), nullptr),
               absl::StrCat("renaming ", paths_.new_witness, " to ", paths_.witness)));
  RETURN_IF_ERROR(SyncDirectory(*fs_, paths_.directory));
  return ToStatus(fs_->NewRandomRWFile(paths_.witness, rocksdb::FileOptions(), &file_, nullptr),
                  absl::StrCat("opening ", paths_.witness));
}

}  // namespace wstore::journal
