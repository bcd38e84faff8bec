#include "journal/keys.h"

#include <limits>

namespace wstore::journal {
namespace {

void AppendBigEndian(std::string& out, uint64_t value, int bytes) {
  for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t ReadBigEndian(std::string_view data) {
  uint64_t value = 0;
  for (const char c : data) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

}  // namespace

std::string RecordKey(uint64_t sequence) {
  std::string key;
  AppendBigEndian(key, sequence, 8);
  return key;
}

std::optional<uint64_t> ParseRecordKey(std::string_view key) {
  if (key.size() != kRecordKeyBytes) return std::nullopt;
  return ReadBigEndian(key);
}

std::string ChunkKeyBytes(TransactionNumber transaction, const ChunkKey& key) {
  std::string bytes;
  AppendBigEndian(bytes, transaction.value(), 8);
  AppendBigEndian(bytes, key.contributor, 2);
  AppendBigEndian(bytes, key.span, 4);
  AppendBigEndian(bytes, key.part, 2);
  return bytes;
}

std::optional<PlacedChunk> ParseChunkKey(std::string_view bytes) {
  if (bytes.size() != kChunkKeyBytes) return std::nullopt;
  PlacedChunk chunk;
  chunk.transaction = TransactionNumber(ReadBigEndian(bytes.substr(0, 8)));
  chunk.key.contributor = static_cast<uint16_t>(ReadBigEndian(bytes.substr(8, 2)));
  chunk.key.span = static_cast<uint32_t>(ReadBigEndian(bytes.substr(10, 4)));
  chunk.key.part = static_cast<uint16_t>(ReadBigEndian(bytes.substr(14, 2)));
  return chunk;
}

std::string FirstChunkKey(TransactionNumber transaction) {
  return ChunkKeyBytes(transaction, ChunkKey());
}

std::string LastChunkKey(TransactionNumber transaction) {
  return ChunkKeyBytes(transaction,
                       {std::numeric_limits<uint16_t>::max(), std::numeric_limits<uint32_t>::max(),
                        std::numeric_limits<uint16_t>::max()});
}

}  // namespace wstore::journal
