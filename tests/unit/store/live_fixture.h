// A LiveStore on the small model of StoreFixture, and chunks as contributors would send them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/checkpoint/checkpoint.h"
#include "store/live.h"
#include "tests/unit/store/store_fixture.h"
#include "wstore/patch_digest.h"

namespace wstore::testing {

class LiveFixture {
 public:
  explicit LiveFixture(uint64_t seed = 1, LiveStore::Options options = {})
      : store(seed), options_(std::move(options)) {
    store.CloseStore();
    Open();
  }

  void Open() {
    live.reset();
    auto opened = LiveStore::Open(store.store_path(), options_);
    REQUIRE_OK(opened);
    live = *std::move(opened);
    versions.try_emplace(0, store.version(0));
  }

  // What contributor `contributor` of `contributors` sends of the way between two models: the
  // blocks of 256 elements whose number leaves it as the remainder.
  struct Part {
    std::vector<std::string> chunks;
    ContributorSummary summary;
  };
  Part MakePart(const NaiveTensors& from, const NaiveTensors& to, TransactionNumber transaction,
                uint16_t contributor, uint32_t contributors) {
    const Manifest& manifest = live->manifest();
    const auto old_model = wstore::Checkpoint::Open(store.Checkpoint(from));
    const auto new_model = wstore::Checkpoint::Open(store.Checkpoint(to));
    REQUIRE_OK(old_model);
    REQUIRE_OK(new_model);
    const auto old_dense = MakeDense(manifest, **old_model);
    const auto new_dense = MakeDense(manifest, **new_model);
    const auto diff = MakeDiff(manifest, *old_dense, *new_dense);
    Part part;
    std::map<TensorIndex, TouchedSums> sums;
    PatchDigester digester(manifest);
    for (uint32_t span = 0; span < manifest.spans(); ++span) {
      ChunkBuilder builder(manifest);
      uint16_t next_part = 0;
      const auto close = [&] {
        if (builder.empty()) return;
        part.chunks.push_back(
            builder.Finish({transaction, ChunkKey{contributor, span, next_part++}}));
        const auto chunk = ChunkView::Parse(part.chunks.back(), manifest);
        REQUIRE_OK(chunk);
        for (const EncodedTile& tile : chunk->tiles()) {
          digester.Add(tile.place, tile.form, tile.changed, TileDigest(tile));
        }
      };
      REQUIRE_OK(diff->ReadSpan(span, [&](const ChunkView& chunk) {
        for (const EncodedTile& tile : chunk.tiles()) {
          const TileChanges mine = Select(tile, contributor, contributors);
          if (mine.offsets.empty()) continue;
          builder.AddTile(tile.place, mine.offsets, mine.values.data());
          sums[tile.place.tensor] += SumsOf(tile, mine, from);
          close();  // small chunks: a span has several parts
        }
        return absl::OkStatus();
      }));
    }
    part.summary.sums.emplace();
    for (const auto& [tensor, touched] : sums) part.summary.sums->push_back({tensor, touched});
    part.summary.chunks = part.chunks.size();
    part.summary.digest = digester.Finish();
    return part;
  }

  void Send(const Part& part, TransactionNumber transaction, uint32_t contributor) {
    const auto content = live->FindContent(transaction);
    REQUIRE_OK(content);
    for (size_t i = 0; i < part.chunks.size(); ++i) {
      REQUIRE_OK((*content)->Put(contributor, i, part.chunks[i]));
    }
    REQUIRE_OK((*content)->Finish(contributor, part.summary));
  }

  // The numbers of the next transaction, reserved.
  LiveNumbers Reserve() {
    const auto view = live->View();
    REQUIRE_OK(view);
    const LiveNumbers now = view->next;
    REQUIRE_OK(live->ReserveNumbers({now.transaction.next(), now.version.next(), now.move.next()}));
    return now;
  }

  // The record of a publish on `parent`, as a coordinator would ask for it.
  LiveRecord RecordOf(const LiveNumbers& numbers, VersionId parent, const LiveContent& content) {
    LiveRecord record;
    record.transaction = numbers.transaction;
    record.from = parent;
    record.to = {numbers.version, content.chain_digest};
    record.move = numbers.move;
    record.caller = {"trainer", "uid 7"};
    return record;
  }

  // A whole publish on head.
  LiveRecord Publish(const NaiveTensors& to, uint32_t contributors = 1,
                     const std::string& id = "") {
    const LiveNumbers numbers = Reserve();
    const VersionId parent = live->store()->head().version;
    LivePublish publish;
    publish.parent = parent;
    publish.contributors = contributors;
    REQUIRE_OK(live->BeginContent(numbers.transaction, publish));
    for (uint16_t i = 0; i < contributors; ++i) {
      Send(MakePart(versions.at(parent.value()), to, numbers.transaction, i, contributors),
           numbers.transaction, i);
    }
    const auto content = live->CompleteContent(numbers.transaction);
    REQUIRE_OK(content);
    LiveRecord record = RecordOf(numbers, parent, *content);
    record.id = id;
    REQUIRE_OK(live->Write(record));
    versions[numbers.version.value()] = to;
    return record;
  }

  // Every version exports bit for bit, and all digests and sums hold, also after reopening.
  void RequireAllVersions() {
    live.reset();
    store.Reopen();
    for (const auto& [version, tensors] : versions) {
      INFO("v" << version);
      REQUIRE((store.Exported(version) == tensors));
    }
    VerifyOptions options;
    options.all = true;
    const auto report = store.store().Verify(options);
    REQUIRE_OK(report);
    REQUIRE(report->ok());
    REQUIRE(report->checked.size() == versions.size());
    store.CloseStore();
    Open();
  }

  StoreFixture store;
  std::unique_ptr<LiveStore> live;
  std::map<uint64_t, NaiveTensors> versions;

 private:
  static TileChanges Select(const EncodedTile& tile, uint16_t contributor, uint32_t contributors) {
    TileChanges all;
    DecodeTile(tile, &all);
    TileChanges mine;
    for (size_t i = 0; i < all.offsets.size(); ++i) {
      if (all.offsets[i] / 256 % contributors != contributor) continue;
      mine.offsets.push_back(all.offsets[i]);
      const auto value = all.values.begin() + static_cast<ptrdiff_t>(i * tile.element_bytes);
      mine.values.insert(mine.values.end(), value, value + tile.element_bytes);
    }
    return mine;
  }

  TouchedSums SumsOf(const EncodedTile& tile, const TileChanges& changes,
                     const NaiveTensors& from) const {
    const std::string& name = live->manifest().tensor(tile.place.tensor).spec.name;
    const TensorFingerprinter fingerprinter(live->fingerprint_key(), name);
    const uint64_t first = uint64_t{tile.place.tile} * kTileElements;
    const auto* const old_bytes = reinterpret_cast<const uint8_t*>(from.at(name).bytes.data());
    return fingerprinter.Touched(first, tile.element_bytes, changes.offsets,
                                 old_bytes + first * tile.element_bytes, changes.values.data());
  }

  const LiveStore::Options options_;
};

}  // namespace wstore::testing
