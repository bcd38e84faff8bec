// E01 in full size.
#include <fstream>

#include "tests/unit/client/served_fixture.h"

namespace wstore::testing {
namespace {

// A tensor whose bytes are computed: nothing of it lies in memory.
class Pattern final : public TensorSource {
 public:
  Pattern(uint64_t salt, uint64_t size_bytes) : salt_(salt), size_bytes_(size_bytes) {}

  absl::Status Read(TensorIndex, uint64_t offset_bytes, absl::Span<uint8_t> out) const override {
    for (uint64_t i = 0; i < out.size(); i += 8) {
      const uint64_t word = Word((offset_bytes + i) / 8);
      std::memcpy(out.data() + i, &word, std::min<uint64_t>(8, out.size() - i));
    }
    return absl::OkStatus();
  }

  // As a safetensors file of the tensor "w".
  void Write(const std::string& path) const {
    std::string header = R"({"w":{"dtype":"U8","shape":[)" + std::to_string(size_bytes_) +
                         R"(],"data_offsets":[0,)" + std::to_string(size_bytes_) + "]}}";
    while (header.size() % 8 != 0) header += ' ';
    std::ofstream file(path, std::ios::binary);
    const uint64_t header_bytes = header.size();
    file.write(reinterpret_cast<const char*>(&header_bytes), 8);
    file << header;
    std::vector<uint8_t> piece(1 << 20);
    for (uint64_t at = 0; at < size_bytes_; at += piece.size()) {
      REQUIRE_OK(Read(0, at, absl::MakeSpan(piece)));
      file.write(reinterpret_cast<const char*>(piece.data()),
                 static_cast<std::streamsize>(piece.size()));
    }
    REQUIRE(file.good());
  }

 private:
  uint64_t Word(uint64_t index) const {
    uint64_t word = (index + 1) * 0x9e3779b97f4a7c15 + salt_;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    return word ^ (word >> 31);
  }

  const uint64_t salt_;
  const uint64_t size_bytes_;  // a multiple of a MiB
};

TEST_CASE("E01 a set of 3 GB in one publish") {
  constexpr uint64_t kBytes = uint64_t{3} << 30;
  const Pattern base(1, kBytes);
  const Pattern next(2, kBytes);
  TempDir directory;
  base.Write(directory / "base.safetensors");
  REQUIRE_OK(Store::Create(directory / "store", directory / "base.safetensors", {}));
  auto server = service::Server::Start(QuickServer(directory / "store"));
  REQUIRE_OK(server);
  const auto client = ServedFixture::Connect((*server)->addresses()[0]);
  const Deadline deadline = Deadline::After(600'000'000);
  auto publisher = Publisher::Start(client, VersionId(0), base, {}, deadline);
  REQUIRE_OK(publisher);
  const auto decision = (*publisher)->Publish(next, {}, deadline);
  REQUIRE_OK(decision);
  REQUIRE(decision->version == VersionId(1));
  publisher->reset();
  const auto dense = client->ReadDense(VersionId(1), deadline);
  REQUIRE_OK(dense);
  const auto manifest = *client->ReadManifest(deadline);
  std::vector<uint8_t> tile(kTileElements);
  std::vector<uint8_t> expected(kTileElements);
  for (uint32_t span = 0; span < manifest->spans(); ++span) {
    const auto tiles = (*dense)->OpenSpan(span);
    REQUIRE_OK(tiles);
    for (const TilePlace place : manifest->SpanPlaces(span)) {
      REQUIRE_OK((*tiles)->ReadTile(place, tile.data()));
      REQUIRE_OK(next.Read(0, place.tile * kTileElements, absl::MakeSpan(expected)));
      REQUIRE((tile == expected));
    }
  }
  (*server)->Shutdown(1'000'000);
}

TEST_CASE("E01 lists of 100,000 versions") {
  StoreFixture store;
  CommitManyVersions(store, 49'000, /*candidates=*/true);
  CommitManyVersions(store, 49'000, /*candidates=*/true);
  CommitManyVersions(store, 2'000);
  store.CloseStore();
  auto server = service::Server::Start(QuickServer(store.store_path()));
  REQUIRE_OK(server);
  const auto client = ServedFixture::Connect((*server)->addresses()[0]);
  const auto versions = client->Versions(SIZE_MAX, Deadline::After(60'000'000));
  REQUIRE_OK(versions);
  REQUIRE(versions->size() == 100'001);
  for (size_t i = 0; i < versions->size(); ++i) {
    REQUIRE((*versions)[i].version.value() == 100'000 - i);
  }
  const auto moves = client->Moves(SIZE_MAX, Deadline::After(60'000'000));
  REQUIRE_OK(moves);
  REQUIRE(moves->size() == 2'000);  // two pages of the greatest size
  (*server)->Shutdown(1'000'000);
}

}  // namespace
}  // namespace wstore::testing
