// What the journal's tests share: payloads that can be computed again, and directories to compare.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "journal/open.h"
#include "wstore/journal.h"

namespace wstore::testing {

// `size` bytes that do not compress and differ for every seed.
std::string RandomBytes(uint64_t seed, size_t size);

using Chunks = std::vector<std::pair<ChunkKey, std::string>>;

// The chunks of a test transaction: `count` of `chunk_bytes` each. A function of its arguments.
Chunks MakeChunks(TransactionNumber transaction, uint32_t count, size_t chunk_bytes);

absl::Status AddChunks(PayloadWriter& writer, const Chunks& chunks);

// Commits one record with a payload.
absl::Status CommitPayload(Journal& journal, const std::string& body, TransactionNumber transaction,
                           const Chunks& chunks);
absl::Status CommitRecord(Journal& journal, const std::string& body);

absl::StatusOr<Chunks> ReadChunks(const Journal& journal, TransactionNumber transaction,
                                  const ChunkKey& first = {});

NewRecord Record(const std::string& body);

// Content of every file below `directory` but the lock file, by path.
std::map<std::string, std::string> ReadTree(const std::string& directory);

void CopyTree(const std::string& from, const std::string& to);

std::string ReadWholeFile(const std::string& path);
void WriteWholeFile(const std::string& path, const std::string& content);

// The name of the manifest that counts in the database `directory`.
std::string ManifestName(const std::string& directory);

// Paths of the files in `directory` whose names end in `suffix`, oldest number first.
std::vector<std::string> FilesWithSuffix(const std::string& directory, const std::string& suffix);

}  // namespace wstore::testing
