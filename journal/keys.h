// Keys of the database. Numbers are big-endian, so that RocksDB's order of bytes is their order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "wstore/types.h"

namespace wstore::journal {

constexpr size_t kRecordKeyBytes = 8;
constexpr size_t kChunkKeyBytes = 16;

// u64 sequence number.
std::string RecordKey(uint64_t sequence);
std::optional<uint64_t> ParseRecordKey(std::string_view key);

struct PlacedChunk {
  TransactionNumber transaction;
  ChunkKey key;
};

// u64 transaction, u16 contributor, u32 span, u16 part.
std::string ChunkKeyBytes(TransactionNumber transaction, const ChunkKey& key);
std::optional<PlacedChunk> ParseChunkKey(std::string_view bytes);

// The lowest and the highest key that a chunk of a transaction can have.
std::string FirstChunkKey(TransactionNumber transaction);
std::string LastChunkKey(TransactionNumber transaction);

}  // namespace wstore::journal
