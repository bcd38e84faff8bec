// Tensors beyond 2^31 elements, and very many of them.
#include <cstring>

#include "tests/conformance/replica/instance.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "wstore/layout_builder.h"

namespace wstore::testing {
namespace {

constexpr uint64_t kRows = 65538;
constexpr uint64_t kColumns = 32768;
constexpr uint64_t kElements = kRows * kColumns;  // 2^31 + 2^16

uint16_t ReadElement(TestDevice& device, const LocalBuffer& buffer, uint64_t place) {
  std::array<uint8_t, 2> bytes;
  device.Read(static_cast<uint8_t*>(buffer.data) + 2 * place, 2, bytes.data());
  return static_cast<uint16_t>(bytes[0] | bytes[1] << 8);
}

// All zeros but for what updates write, so that only pages with changes are there.
TEST_CASE("replica scale: elements beyond 2^31, in rows and in columns") {
  const bool is_transposed = GENERATE(false, true);
  CAPTURE(is_transposed);
  const Manifest manifest = MakeManifest({{"huge", Dtype::kBF16, {kRows, kColumns}}});
  const FingerprintKey key(Sha256().Update("base").Finish());
  LayoutBuilder builder(manifest);
  if (is_transposed) {
    builder.Place(builder.Tensor("huge").Permute({1, 0}),
                  builder.Buffer({"huge", Dtype::kBF16, {kColumns, kRows}}));
  } else {
    builder.Place(builder.Tensor("huge"),
                  builder.Buffer({"huge", Dtype::kBF16, {kRows, kColumns}}));
  }
  absl::StatusOr<Layout> built = builder.Build(1);
  REQUIRE_OK(built);
  const auto layout = std::make_shared<const Layout>(*std::move(built));
  const std::unique_ptr<TestDevice> device = MakeTestDevice();
  const LocalBuffer buffer{device->Allocate(2 * kElements), 2 * kElements};
  ReplicaOptions options;
  options.backend = device->MakeBackend(2);
  auto attached = Replica::Attach(manifest, key, {layout, nullptr, 0}, {&buffer, 1}, options);
  REQUIRE_OK(attached);
  Replica& replica = **attached;
  // In place of an audit, which would read 4 GiB: the sum of zeros is zero.
  AuditReport zeros;
  zeros.cells.resize(replica.regions()->cells(0).size());
  const VersionName v0{VersionId(0), {}};
  REQUIRE_OK(replica.Adopt(zeros, v0, MoveNumber(1)));

  constexpr uint64_t kTwo31 = uint64_t{1} << 31;
  Changes changes;
  uint64_t bits = 0x7fc1;
  for (const uint64_t element : {uint64_t{0}, uint64_t{70000}, kTwo31 - 1, kTwo31, kTwo31 + 1,
                                 kTwo31 + 40000, kElements - 2, kElements - 1}) {
    changes[{0, element}] = bits--;
  }
  Fingerprint expected;
  const TensorFingerprinter fingerprinter(key, "huge");
  for (const auto& [at, value] : changes) {
    std::array<uint8_t, 2> bytes;
    std::memcpy(bytes.data(), &value, 2);
    expected += fingerprinter.Sum(2 * at.second, bytes);
  }
  UpdateHeader header;
  header.transaction = TransactionNumber(7);
  header.parent_move = MoveNumber(1);
  header.move = MoveNumber(2);
  header.from = v0;
  header.to = VersionId(1);
  header.base_digest = key.base_digest();
  header.layout_generation = 1;
  UpdateSummary summary;
  TensorSums declared;
  declared.sums.after = expected;
  summary.declared = {declared};
  const auto chunks =
      EncodeChanges(manifest, changes, {.transaction = header.transaction}, &summary.contents);
  REQUIRE_OK(replica.BeginUpdate(header));
  for (const std::string& chunk : chunks) REQUIRE_OK(replica.StageChunk(chunk));
  const absl::StatusOr<StagedReport> report = replica.FinishStaging(summary);
  REQUIRE_OK(report);
  REQUIRE(report->approved);
  REQUIRE(report->elements == changes.size());
  REQUIRE(report->size_bytes < 4096);
  REQUIRE_OK(replica.Apply(header.transaction));
  const auto place_of = [&](uint64_t element) {
    return is_transposed ? element % kColumns * kRows + element / kColumns : element;
  };
  for (const auto& [at, value] : changes) {
    REQUIRE(ReadElement(*device, buffer, place_of(at.second)) == value);
    for (const uint64_t neighbour : {place_of(at.second) - 1, place_of(at.second) + 1}) {
      const uint64_t element =
          is_transposed ? neighbour % kRows * kColumns + neighbour / kRows : neighbour;
      if (neighbour >= kElements || changes.contains({0, element})) continue;
      REQUIRE(ReadElement(*device, buffer, neighbour) == 0);
    }
  }
  REQUIRE_OK(replica.Abort(header.transaction));
  for (const auto& [at, value] : changes) {
    REQUIRE(ReadElement(*device, buffer, place_of(at.second)) == 0);
  }
}

TEST_CASE("replica scale: 50,000 tiny tensors in one buffer") {
  std::mt19937_64 random(TestSeed("replica tiny tensors"));
  constexpr uint64_t kTensors = 50000;
  constexpr uint64_t kTiny = 12;
  std::vector<TensorSpec> specs;
  for (uint64_t i = 0; i < kTensors; ++i) {
    std::string number = std::to_string(i);
    number.insert(0, 5 - number.size(), '0');
    specs.push_back({"t" + number, Dtype::kBF16, {kTiny}});
  }
  const Manifest manifest = MakeManifest(std::move(specs));
  LayoutBuilder builder(manifest);
  const StridedView buffer = builder.Buffer({"all", Dtype::kBF16, {kTensors * kTiny}});
  for (TensorIndex i = 0; i < kTensors; ++i) {
    builder.Place(builder.Tensor(i), buffer.Slice(0, i * kTiny, (i + 1) * kTiny));
  }
  absl::StatusOr<Layout> layout = builder.Build(1);
  REQUIRE_OK(layout);
  Publisher publisher(manifest, RandomModel(manifest, random));
  Instance instance(manifest, publisher.key(), {*layout}, {});
  instance.Load(publisher);
  const Update update = publisher.Publish(RandomChanges(manifest, 2, random));
  REQUIRE_OK(instance.Run(update));
  publisher.Commit(update);
  REQUIRE(instance.Holds(publisher.model()));
}

}  // namespace
}  // namespace wstore::testing
