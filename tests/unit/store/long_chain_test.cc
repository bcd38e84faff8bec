// What a publish reads of its parent's chain, counted.
#include <atomic>
#include <set>

#include "store/chain_map.h"
#include "store/store_impl.h"
#include "tests/support/random.h"
#include "tests/unit/store/live_fixture.h"
#include "tests/unit/store/store_fixture.h"

namespace wstore::testing {
namespace {

// The payloads that are opened, and the chunks that are read of them.
struct Reads {
  std::multiset<TransactionNumber> payloads;
  uint64_t chunks = 0;
};

class CountingJournal final : public Journal {
 public:
  CountingJournal(std::unique_ptr<Journal> journal, Reads* reads)
      : journal_(std::move(journal)), reads_(*reads) {}

  const std::vector<StoredRecord>& records() const override { return journal_->records(); }
  HighWaterMarks high_water_marks() const override { return journal_->high_water_marks(); }
  absl::Status RaiseHighWaterMarks(const HighWaterMarks& marks) override {
    return journal_->RaiseHighWaterMarks(marks);
  }
  absl::StatusOr<std::unique_ptr<PayloadWriter>> Stage(TransactionNumber number) override {
    return journal_->Stage(number);
  }
  absl::Status Commit(std::vector<NewRecord> records) override {
    return journal_->Commit(std::move(records));
  }
  absl::Status Append(std::vector<NewRecord> records) override {
    return journal_->Append(std::move(records));
  }
  absl::Status Sync() override { return journal_->Sync(); }
  absl::Status ReadPayload(
      TransactionNumber transaction, const ChunkKey& first,
      const std::function<absl::StatusOr<bool>(const ChunkKey&, std::string_view)>& visit)
      const override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      reads_.payloads.insert(transaction);
    }
    return journal_->ReadPayload(
        transaction, first,
        [&](const ChunkKey& key, std::string_view chunk) -> absl::StatusOr<bool> {
          {
            const std::lock_guard<std::mutex> lock(mutex_);
            ++reads_.chunks;
          }
          return visit(key, chunk);
        });
  }
  bool failed() const override { return journal_->failed(); }
  uint64_t size_bytes() const override { return journal_->size_bytes(); }

 private:
  const std::unique_ptr<Journal> journal_;
  mutable std::mutex mutex_;
  Reads& reads_;
};

std::unique_ptr<StoreImpl> OpenCounting(const std::string& directory, Reads* reads) {
  auto journal = Journal::Open(directory, {});
  REQUIRE_OK(journal);
  auto store = StoreImpl::Make(std::make_unique<CountingJournal>(*std::move(journal), reads), {});
  REQUIRE_OK(store);
  return *std::move(store);
}

// Changes one byte of a tensor, XOR or by its new value, in the store and in `model`.
CommitResult ChangeByte(Store& store, NaiveTensors* model, const std::string& tensor,
                        int64_t element, TensorPatch::Form form = TensorPatch::Form::kXor,
                        bool candidate = false) {
  NaiveTensor& naive = model->at(tensor);
  const uint64_t width = WidthOf(naive);
  char& byte = naive.bytes[static_cast<size_t>(element) * width];
  byte = static_cast<char>(byte ^ 0x41);
  std::vector<uint8_t> value(width);
  if (form == TensorPatch::Form::kNew) {
    std::memcpy(value.data(), &byte, width);
  } else {
    value[0] = 0x41;
  }
  TensorPatch patch;
  patch.name = tensor;
  patch.dtype = *ParseDtype(naive.dtype);
  patch.shape = naive.shape;
  patch.indices = {&element, 1};
  patch.values = value;
  patch.form = form;
  BeginOptions options;
  options.candidate = candidate;
  auto transaction = store.Begin(options);
  REQUIRE_OK(transaction);
  REQUIRE_OK((*transaction)->Add({patch}));
  const auto result = (*transaction)->Commit();
  REQUIRE_OK(result);
  REQUIRE(result->outcome == CommitResult::Outcome::kCommitted);
  return *result;
}

TEST_CASE("E01 a publish onto a long chain opens no more patch sets than onto a short one") {
  StoreFixture fixture;
  fixture.CloseStore();
  Reads reads;
  auto store = OpenCounting(fixture.store_path(), &reads);
  NaiveTensors model = fixture.version(0);
  // What the publishes of the last round opened and read: two tiles in turn, old values needed.
  const auto round = [&] {
    reads = {};
    for (int64_t i = 0; i < 4; ++i) {
      ChangeByte(*store, &model, "layer.1.codes", i % 2 == 0 ? i : 69'000 + i,
                 i < 2 ? TensorPatch::Form::kXor : TensorPatch::Form::kNew);
    }
    return reads;
  };
  const Reads at_start = round();
  while (store->head().version < VersionId(300)) round();
  const Reads at_300 = round();
  REQUIRE(at_start.payloads.empty());
  REQUIRE(at_300.payloads.empty());

  // Of a chain from before the opening, each set is gone through once; no later publish opens any.
  store.reset();
  store = OpenCounting(fixture.store_path(), &reads);
  const Reads first = round();
  const uint64_t versions = store->versions().size() - 5;  // but for v0 and those of the round
  REQUIRE(std::set(first.payloads.begin(), first.payloads.end()).size() == versions);
  REQUIRE(first.payloads.size() == 2 * versions);  // what it touches, and then, once, its changes
  REQUIRE(round().payloads.empty());

  // A tile that few sets touch: these are opened, and no others.
  ChangeByte(*store, &model, "step", 0);
  store.reset();
  store = OpenCounting(fixture.store_path(), &reads);
  ChangeByte(*store, &model, "layer.0.bias", 7);  // goes through all
  reads = {};
  ChangeByte(*store, &model, "step", 0);
  REQUIRE(reads.payloads.size() == 1);

  store.reset();
  fixture.Reopen();
  REQUIRE((fixture.Exported(fixture.store().head().version.value()) == model));
  fixture.RequireAllVersions();
}

TEST_CASE("a served store knows its parents, whoever declares sums") {
  LiveFixture fixture(TestSeed("live-chain"));
  std::mt19937_64& random = fixture.store.random();
  NaiveTensors model = fixture.versions.at(0);
  for (int i = 0; i < 40; ++i) {
    const VersionId head = fixture.live->store()->head().version;
    NaiveTensors next = model;
    auto& bytes =
        std::next(next.begin(), static_cast<ptrdiff_t>(random() % next.size()))->second.bytes;
    if (bytes.empty()) continue;
    bytes[random() % bytes.size()] ^= 0x10;
    const LiveNumbers numbers = fixture.Reserve();
    LivePublish publish;
    publish.parent = head;
    publish.check_sums = random() % 2 == 0;
    REQUIRE_OK(fixture.live->BeginContent(numbers.transaction, publish));
    LiveFixture::Part part = fixture.MakePart(model, next, numbers.transaction, 0, 1);
    const TouchedByTensor sums = *part.summary.sums;
    if (random() % 2 == 0) part.summary.sums.reset();
    fixture.Send(part, numbers.transaction, 0);
    const auto content = fixture.live->CompleteContent(numbers.transaction);
    REQUIRE_OK(content);
    REQUIRE(*content->touched == sums);
    REQUIRE_OK(fixture.live->Write(fixture.RecordOf(numbers, head, *content)));
    fixture.versions[numbers.version.value()] = model = next;
    if (random() % 10 == 0) REQUIRE_OK(fixture.live->Reopen());
  }
  fixture.RequireAllVersions();
}

TEST_CASE("publishes know their parents after rollbacks, promotions and large sets") {
  const uint64_t seed = TestSeed("parents");
  StoreFixture fixture(seed);
  fixture.CloseStore();
  Reads reads;
  auto store = OpenCounting(fixture.store_path(), &reads);
  std::map<uint64_t, NaiveTensors> models = {{0, fixture.version(0)}};
  const std::vector<std::string> tensors = {"embed.weight", "layer.0.bias", "layer.1.codes",
                                            "step"};
  std::mt19937_64& random = fixture.random();
  for (int i = 0; i < 120; ++i) {
    const uint64_t head = store->head().version.value();
    const uint64_t what = random() % 20;
    if (what == 0) {
      RollbackOptions to;
      to.to =
          std::next(models.begin(), static_cast<ptrdiff_t>(random() % models.size()))->first == head
              ? VersionId(0)
              : VersionId(
                    std::next(models.begin(), static_cast<ptrdiff_t>(random() % models.size()))
                        ->first);
      REQUIRE_OK(store->Rollback(to));
      REQUIRE_OK(store->Resume());
    } else if (what == 1) {
      store.reset();
      store = OpenCounting(fixture.store_path(), &reads);
    } else if (what == 2) {
      // All of it: larger than what is listed.
      const NaiveTensors next = fixture.Changed(models.at(head), 0.9);
      auto transaction = store->Begin({});
      REQUIRE_OK(transaction);
      REQUIRE_OK((*transaction)->SetCheckpoint(fixture.Checkpoint(next)));
      const auto result = (*transaction)->Commit();
      REQUIRE_OK(result);
      REQUIRE(store->version(result->version)->payload_bytes > (256 << 10));
      models[result->version.value()] = next;
    } else {
      NaiveTensors model = models.at(head);
      const std::string& tensor = tensors[random() % tensors.size()];
      const int64_t elements =
          static_cast<int64_t>(model.at(tensor).bytes.size() / WidthOf(model.at(tensor)));
      const CommitResult result = ChangeByte(
          *store, &model, tensor, static_cast<int64_t>(random() % elements),
          random() % 2 == 0 ? TensorPatch::Form::kXor : TensorPatch::Form::kNew, what < 6);
      models[result.version.value()] = model;
      if (what == 3) REQUIRE_OK(store->Promote(result.version));
    }
  }
  store.reset();
  fixture.Reopen();
  for (const auto& [version, model] : models) {
    INFO("v" << version);
    REQUIRE((fixture.Exported(version) == model));
  }
  VerifyOptions all;
  all.all = true;
  const auto report = fixture.store().Verify(all);
  REQUIRE_OK(report);
  for (const VerifyProblem& problem : report->problems) INFO(problem.what);
  REQUIRE(report->ok());
  // The sums of tensors too, which a verification of many versions does not compare one by one.
  for (const auto& [version, model] : models) {
    VerifyOptions one;
    one.versions = {VersionId(version)};
    REQUIRE(fixture.store().Verify(one)->ok());
    const auto sums = fixture.store().TensorFingerprints(VersionId(version));
    REQUIRE_OK(sums);
    const FingerprintKey key(fixture.store().head().base_digest);
    for (const auto& [name, tensor] : model) {
      const TensorFingerprinter fingerprinter(key, name);
      const auto* const bytes = reinterpret_cast<const uint8_t*>(tensor.bytes.data());
      REQUIRE((*sums)[*fixture.store().manifest().Find(name)] ==
              fingerprinter.Sum(0, absl::MakeConstSpan(bytes, tensor.bytes.size())));
    }
  }
}

v1::TouchedTable TableOf(TensorIndex tensor, uint64_t before, uint64_t after) {
  v1::TouchedTable table;
  v1::TouchedTensor* const entry = table.add_tensors();
  entry->set_tensor(tensor);
  entry->mutable_fingerprint()->set_lane0(after);
  entry->mutable_touched_before()->set_lane0(before);
  entry->mutable_touched_after()->set_lane0(after);
  return table;
}

TEST_CASE("a chain's map lists what it has room for, and is asked about the rest each time") {
  const auto manifest = Manifest::Create(
      {{"a", Dtype::kU8, {4 * kTileElements}}, {"b", Dtype::kU8, {kTileElements}}});
  REQUIRE_OK(manifest);
  ChainMap map(*manifest, {.pairs = 3, .tiles_of_set = 2});
  REQUIRE_FALSE(map.has_version());
  map.Reset({Fingerprint{{10, 0}}, Fingerprint{{20, 0}}});
  const TilePlace a0{0, 0};
  const TilePlace a1{0, 1};
  const TilePlace a2{0, 2};
  const TilePlace b0{1, 0};
  const TileList two = {a0, a1};
  const TileList three = {a0, a1, a2};
  const TileList one = {b0};
  using Versions = std::vector<VersionId>;
  map.Append(VersionId(1), TableOf(0, 10, 11), &two);
  map.Append(VersionId(2), TableOf(0, 11, 12), &three);  // too many of one set
  map.Append(VersionId(4), TableOf(1, 20, 21), &one);
  map.Append(VersionId(5), TableOf(1, 21, 22), &one);  // too many in all
  map.Append(VersionId(6), TableOf(0, 12, 13), nullptr);
  REQUIRE(map.version() == VersionId(6));
  REQUIRE(map.Touching({a0}) == Versions{VersionId(1), VersionId(2), VersionId(5), VersionId(6)});
  REQUIRE(map.Touching({a2}) == Versions{VersionId(2), VersionId(5), VersionId(6)});
  REQUIRE(map.Touching({a0, b0}).size() == 5);
  REQUIRE(map.fingerprint(0).lanes[0] == 13);
  REQUIRE(map.fingerprint(1).lanes[0] == 22);
  // Back, and another way.
  map.Remove(VersionId(5), TableOf(0, 12, 13));
  map.Remove(VersionId(4), TableOf(1, 21, 22));
  map.Remove(VersionId(2), TableOf(1, 20, 21));
  REQUIRE(map.Touching({a0, b0}) == Versions{VersionId(1), VersionId(2)});
  REQUIRE(map.fingerprint(0).lanes[0] == 12);
  REQUIRE(map.fingerprint(1).lanes[0] == 20);
  map.Append(VersionId(7), TableOf(1, 20, 25), &one);  // there is room again
  map.Remove(VersionId(2), TableOf(1, 20, 25));
  map.Append(VersionId(8), TableOf(1, 20, 26), &one);
  REQUIRE(map.Touching({b0}) == Versions{VersionId(2), VersionId(8)});
  REQUIRE(map.fingerprint(1).lanes[0] == 26);
  map.Clear();
  REQUIRE_FALSE(map.has_version());
}

}  // namespace
}  // namespace wstore::testing
