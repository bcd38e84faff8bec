// E01 in full size.
#include <chrono>
#include <fstream>
#include <iostream>

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

// Says how long something took.
class Stopwatch {
 public:
  double Millis() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }
  void Say(const std::string& what, int64_t times = 1) const {
    std::cout << what << ": " << Millis() / static_cast<double>(times) << " ms" << std::endl;
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

TEST_CASE("E01 a chain of 100,000 versions is published on, opened, served and listed") {
  constexpr int64_t kVersions = 100'000;
  // Four syncs a version would be most of what this measures.
  if (std::filesystem::exists("/dev/shm")) setenv("TMPDIR", "/dev/shm", 0);
  StoreFixture store;
  int64_t committed = 0;
  const auto commit = [&](int64_t count) {
    const Stopwatch watch;
    CommitManyVersions(store, count, committed);
    committed += count;
    return watch;
  };
  for (const int64_t at : {int64_t{200}, int64_t{10'000}, kVersions}) {
    commit(at - 100 - committed);
    commit(100).Say("a publish before v" + std::to_string(at), 100);
  }
  {
    const Stopwatch watch;
    store.Reopen();
    watch.Say("opening");
  }
  REQUIRE(store.store().head().version == VersionId(kVersions));
  {
    const Stopwatch watch;
    CommitManyVersions(store, 1, committed++);
    watch.Say("the first publish after it");
  }
  commit(100).Say("a publish after that", 100);
  store.CloseStore();

  const Stopwatch starting;
  auto server = service::Server::Start(QuickServer(store.store_path()));
  REQUIRE_OK(server);
  starting.Say("starting a server");
  const Deadline deadline = Deadline::After(120'000'000);
  const auto client = ServedFixture::Connect((*server)->addresses()[0]);
  NaiveTensors model = store.version(0);
  for (int64_t i = committed % 70'000; i < 70'000; ++i) model["layer.1.codes"].bytes[i] ^= 1;
  {
    const Stopwatch watch;
    auto publisher = Publisher::Start(client, {}, deadline);
    REQUIRE_OK(publisher);
    watch.Say("reading head through the chain");
    REQUIRE(ServedFixture::ShadowIs(**publisher, model));
    for (int i = 0; i < 20; ++i) {
      const Stopwatch publish;
      model["layer.1.codes"].bytes[i] ^= 2;
      REQUIRE_OK(ServedFixture::Publish(**publisher, model, "p" + std::to_string(i), deadline));
      if (i % 19 == 0) publish.Say(i == 0 ? "the first served publish" : "the twentieth");
    }
  }
  const Stopwatch listing;
  const auto versions = client->Versions(SIZE_MAX, deadline);
  REQUIRE_OK(versions);
  const auto moves = client->Moves(SIZE_MAX, deadline);
  REQUIRE_OK(moves);
  listing.Say("listing versions and moves");
  const auto all = static_cast<size_t>(committed + 20);
  REQUIRE(versions->size() == all + 1);
  for (size_t i = 0; i < versions->size(); ++i) {
    REQUIRE((*versions)[i].version.value() == all - i);
  }
  REQUIRE(moves->size() == all);
  (*server)->Shutdown(1'000'000);
  server->reset();
  store.Reopen();
  REQUIRE((store.Exported(all) == model));
}

}  // namespace
}  // namespace wstore::testing
