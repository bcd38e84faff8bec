#include "store/client/worker/board_record.h"

#include <algorithm>
#include <cstring>

#include "common/bytes.h"
#include "wstore/instance_group.h"

namespace wstore::client {
namespace {

constexpr uint32_t kFormat = 0x31425357;  // "WSB1"

class Writer {
 public:
  void Number(uint64_t value) {
    char bytes[sizeof(value)];
    StoreLe<uint64_t>(value, bytes);
    out.append(bytes, sizeof(bytes));
  }
  void Put(const Digest& digest) { out += ToBytes(digest); }
  void Put(const std::optional<VersionName>& version) {
    Number(version ? 1 : 0);
    Number(version ? version->version.value() : 0);
    Put(version ? version->chain_digest : Digest());
  }
  std::string out;
};

// Past the end, everything is 0; the caller checks the size.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  uint64_t Number() {
    const std::string_view at = Next(sizeof(uint64_t));
    return at.empty() ? 0 : LoadLe<uint64_t>(at.data());
  }
  Digest GetDigest() { return DigestFromBytes(Next(32)).value_or(Digest()); }
  std::optional<VersionName> Version() {
    const bool is_there = Number() != 0;
    const VersionName version{VersionId(Number()), GetDigest()};
    return is_there ? std::optional(version) : std::nullopt;
  }
  bool is_at_end() const { return is_sound_ && bytes_.empty(); }

 private:
  std::string_view Next(size_t size) {
    if (bytes_.size() < size) {
      is_sound_ = false;
      return {};
    }
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  std::string_view bytes_;
  bool is_sound_ = true;
};

}  // namespace

std::string Encode(const BoardRecord& record) {
  Writer writer;
  writer.Number(kFormat);
  writer.Number(record.nonce);
  writer.Number(record.layout_generation);
  writer.Put(record.layout_digest);
  for (const uint64_t number :
       {record.gate.round, record.gate.next, record.gate.released, record.gate.done}) {
    writer.Number(number);
  }
  const protocol::ReadyKey key = record.key.value_or(protocol::ReadyKey());
  writer.Number(record.key ? 1 : 0);
  writer.Number(key.epoch.value());
  writer.Number(key.move.value());
  writer.Put(key.chain_digest);
  writer.Put(record.holds);
  writer.Put(record.claims);
  static_assert(11 * 8 + 3 * 32 + 4 * 8 + 64 <= InstanceGroup::kMaxShownBytes);
  return std::move(writer.out);
}

std::optional<BoardRecord> DecodeBoardRecord(std::string_view bytes) {
  Reader reader(bytes);
  if (reader.Number() != kFormat) return std::nullopt;
  BoardRecord record;
  record.nonce = reader.Number();
  record.layout_generation = reader.Number();
  record.layout_digest = reader.GetDigest();
  record.gate.round = reader.Number();
  record.gate.next = reader.Number();
  record.gate.released = reader.Number();
  record.gate.done = reader.Number();
  const bool has_key = reader.Number() != 0;
  protocol::ReadyKey key;
  key.epoch = protocol::Epoch(reader.Number());
  key.move = MoveNumber(reader.Number());
  key.chain_digest = reader.GetDigest();
  if (has_key) record.key = key;
  record.holds = reader.Version();
  record.claims = reader.Version();
  if (!reader.is_at_end()) return std::nullopt;
  return record;
}

}  // namespace wstore::client
