#include "tests/unit/journal/journal_testing.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "common/check.h"
#include "common/status_macros.h"

namespace wstore::testing {

std::string RandomBytes(uint64_t seed, size_t size) {
  // Plain arithmetic: the tests make hundreds of megabytes in unoptimized builds.
  std::vector<uint64_t> words((size + 7) / 8);
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (uint64_t& word : words) {
    state = state * 6364136223846793005 + 1442695040888963407;
    word = state ^ state >> 29;
  }
  return {reinterpret_cast<const char*>(words.data()), size};
}

Chunks MakeChunks(TransactionNumber transaction, uint32_t count, size_t chunk_bytes) {
  Chunks chunks;
  for (uint32_t i = 0; i < count; ++i) {
    const ChunkKey key = {static_cast<uint16_t>(i / 1000), i * 3, static_cast<uint16_t>(i % 7)};
    chunks.emplace_back(key, RandomBytes(transaction.value() * 1000003 + i, chunk_bytes));
  }
  return chunks;
}

absl::Status AddChunks(PayloadWriter& writer, const Chunks& chunks) {
  for (const auto& [key, chunk] : chunks) RETURN_IF_ERROR(writer.Add(key, chunk));
  return absl::OkStatus();
}

absl::Status CommitPayload(Journal& journal, const std::string& body, TransactionNumber transaction,
                           const Chunks& chunks) {
  std::vector<NewRecord> records(1);
  records[0].body = body;
  ASSIGN_OR_RETURN(records[0].payload, journal.Stage(transaction));
  RETURN_IF_ERROR(AddChunks(*records[0].payload, chunks));
  return journal.Commit(std::move(records));
}

absl::Status CommitRecord(Journal& journal, const std::string& body) {
  std::vector<NewRecord> records(1);
  records[0].body = body;
  return journal.Commit(std::move(records));
}

absl::StatusOr<Chunks> ReadChunks(const Journal& journal, TransactionNumber transaction,
                                  const ChunkKey& first) {
  Chunks chunks;
  RETURN_IF_ERROR(journal.ReadPayload(
      transaction, first, [&](const ChunkKey& key, std::string_view chunk) -> absl::StatusOr<bool> {
        chunks.emplace_back(key, std::string(chunk));
        return true;
      }));
  return chunks;
}

NewRecord Record(const std::string& body) { return NewRecord{body, nullptr}; }

std::map<std::string, std::string> ReadTree(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file() || entry.path() == directory + "/LOCK") continue;
    files[entry.path().string().substr(directory.size())] = ReadWholeFile(entry.path().string());
  }
  return files;
}

void CopyTree(const std::string& from, const std::string& to) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::string content(static_cast<size_t>(file.tellg()), '\0');
  file.seekg(0);
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  WSTORE_CHECK(file.good());
  return content;
}

void WriteWholeFile(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  WSTORE_CHECK(file.good());
}

std::string ManifestName(const std::string& directory) {
  std::string name = ReadWholeFile(directory + "/CURRENT");
  WSTORE_CHECK(!name.empty() && name.back() == '\n');
  name.pop_back();
  return name;
}

std::vector<std::string> FilesWithSuffix(const std::string& directory, const std::string& suffix) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string path = entry.path().string();
    if (path.size() >= suffix.size() &&
        path.compare(path.size() - suffix.size(), suffix.size(), suffix) == 0) {
      files.push_back(path);
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace wstore::testing
