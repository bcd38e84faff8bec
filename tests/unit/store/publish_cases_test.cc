// Publishing single elements, and everything about it that must be refused.
#include "tests/support/random.h"
#include "tests/unit/store/store_fixture.h"
#include "wstore/store.h"

namespace wstore::testing {
namespace {

// A patch of new values that keeps what it points to.
struct OwnedPatch {
  std::string name;
  Dtype dtype;
  Shape shape;
  std::vector<int64_t> indices;
  std::string values;

  TensorPatch patch() const {
    TensorPatch patch;
    patch.name = name;
    patch.dtype = dtype;
    patch.shape = shape;
    patch.indices = indices;
    patch.values =
        absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(values.data()), values.size());
    return patch;
  }
};

absl::StatusOr<CommitResult> PublishPatches(StoreFixture& fixture,
                                            const std::vector<OwnedPatch>& patches) {
  auto transaction = fixture.store().Begin({});
  if (!transaction.ok()) return transaction.status();
  std::vector<TensorPatch> views;
  for (const OwnedPatch& patch : patches) views.push_back(patch.patch());
  const absl::Status added = (*transaction)->Add(views);
  if (!added.ok()) return added;
  return (*transaction)->Commit();
}

// Nothing was journaled: as many versions as before, and every bit in place.
void RequireUntouched(StoreFixture& fixture, size_t versions) {
  REQUIRE(fixture.store().versions().size() == versions);
  fixture.Reopen();
  REQUIRE(fixture.store().versions().size() == versions);
}

std::string Bits16(std::initializer_list<uint16_t> values) {
  std::string bytes;
  for (const uint16_t value : values) {
    bytes.push_back(static_cast<char>(value));
    bytes.push_back(static_cast<char>(value >> 8));
  }
  return bytes;
}

TEST_CASE("A05 values are bits: NaN payloads, -0.0, infinities, int8 and fp8 arrive exactly") {
  StoreFixture fixture;
  // +0.0 where -0.0 will be written.
  REQUIRE_OK(
      PublishPatches(fixture, {{"layer.0.weight", Dtype::kBF16, {96, 96}, {5}, Bits16({0x0000})}}));
  REQUIRE_OK(PublishPatches(
      fixture,
      {{"layer.0.weight",
        Dtype::kBF16,
        {96, 96},
        {3, 4, 5, 6},
        Bits16({0x7fc1, 0xff81, 0x8000, 0x7f80})},
       {"layer.1.codes", Dtype::kI8, {70000}, {0, 65535, 65536, 69999}, "\x80\xff\x7f\x01"},
       {"layer.1.fp8", Dtype::kF8E4M3, {33, 3}, {98}, "\x7f"},
       {"layer.1.packed", Dtype::kF4, {6, 4}, {11}, "\x8f"},
       {"step", Dtype::kI64, {}, {0}, std::string("\0\0\0\0\0\0\0\x80", 8)}}));
  NaiveTensors expected = fixture.version(0);
  const auto set = [&expected](const std::string& name, size_t byte, const std::string& bytes) {
    expected[name].bytes.replace(byte, bytes.size(), bytes);
  };
  set("layer.0.weight", 6, Bits16({0x7fc1, 0xff81, 0x8000, 0x7f80}));
  set("layer.1.codes", 0, "\x80");
  set("layer.1.codes", 65535, "\xff\x7f");
  set("layer.1.codes", 69999, "\x01");
  set("layer.1.fp8", 98, "\x7f");
  set("layer.1.packed", 11, "\x8f");
  set("step", 0, std::string("\0\0\0\0\0\0\0\x80", 8));
  const NaiveTensors exported = fixture.Exported(2);
  for (const auto& [name, tensor] : expected) {
    INFO(name);
    REQUIRE((exported.at(name) == tensor));
  }
  const auto report = fixture.store().Verify({});
  REQUIRE_OK(report);
  REQUIRE(report->ok());
}

TEST_CASE("A06 indices out of range, repeated or miscounted are refused, unsorted ones are not") {
  StoreFixture fixture;
  const auto codes = [](std::vector<int64_t> indices, std::string values) {
    return OwnedPatch{"layer.1.codes", Dtype::kI8, {70000}, std::move(indices), std::move(values)};
  };
  const std::string one = "\x01";
  REQUIRE_ERROR(PublishPatches(fixture, {codes({70000}, one)}), absl::StatusCode::kOutOfRange,
                "70000");
  REQUIRE_ERROR(PublishPatches(fixture, {codes({-1}, one)}), absl::StatusCode::kOutOfRange, "-1");
  REQUIRE_ERROR(PublishPatches(fixture, {codes({INT64_MIN}, one)}), absl::StatusCode::kOutOfRange,
                "layer.1.codes");
  REQUIRE_ERROR(PublishPatches(fixture, {codes({1, 2}, one)}), absl::StatusCode::kInvalidArgument,
                "layer.1.codes");
  REQUIRE_ERROR(PublishPatches(fixture, {codes({7, 3, 7}, "abc")}),
                absl::StatusCode::kInvalidArgument, "7");
  REQUIRE_ERROR(PublishPatches(fixture, {{"layer.1.empty", Dtype::kF16, {0, 4}, {0}, "ab"}}),
                absl::StatusCode::kOutOfRange, "layer.1.empty");
  RequireUntouched(fixture, 1);

  const auto none = PublishPatches(fixture, {codes({}, "")});
  REQUIRE_OK(none);
  REQUIRE(none->outcome == CommitResult::Outcome::kUnchanged);
  NaiveTensors expected = fixture.version(0);
  std::string& bytes = expected["layer.1.codes"].bytes;
  const auto flipped = [&bytes](size_t i) { return static_cast<char>(bytes[i] ^ 0x55); };
  const std::string values = {flipped(69999), flipped(0), flipped(65536), flipped(2)};
  REQUIRE_OK(PublishPatches(fixture, {codes({69999, 0, 65536, 2}, values)}));
  bytes[69999] = values[0];
  bytes[0] = values[1];
  bytes[65536] = values[2];
  bytes[2] = values[3];
  REQUIRE((fixture.Exported(1) == expected));
}

TEST_CASE("A08 a set with unknown names is refused whole, and all of them are named") {
  StoreFixture fixture;
  REQUIRE_ERROR(PublishPatches(fixture, {{"layer.1.codes", Dtype::kI8, {70000}, {1}, "a"},
                                         {"model.layer.0.bias", Dtype::kF32, {96}, {0}, "abcd"},
                                         {"embed.weight ", Dtype::kBF16, {1000, 96}, {0}, "ab"}}),
                absl::StatusCode::kInvalidArgument, "embed.weight ");
  const absl::Status both =
      PublishPatches(fixture, {{"model.layer.0.bias", Dtype::kF32, {96}, {0}, "abcd"},
                               {"embed.weight ", Dtype::kBF16, {1000, 96}, {0}, "ab"}})
          .status();
  REQUIRE_ERROR(both, absl::StatusCode::kInvalidArgument, "model.layer.0.bias");
  REQUIRE_ERROR(both, absl::StatusCode::kInvalidArgument, "'layer.0.bias'");  // the near match
  REQUIRE_ERROR(both, absl::StatusCode::kInvalidArgument, "'embed.weight '");
  RequireUntouched(fixture, 1);

  NaiveTensors renamed = fixture.Changed(fixture.version(0), 0.01);
  renamed["model.step"] = renamed["step"];
  renamed.erase("step");
  const absl::Status checkpoint = fixture.Publish(renamed).status();
  REQUIRE_ERROR(checkpoint, absl::StatusCode::kInvalidArgument, "tensors missing: 'step'");
  REQUIRE_ERROR(checkpoint, absl::StatusCode::kInvalidArgument, "'model.step'");
  RequireUntouched(fixture, 1);
}

TEST_CASE("A10 another dtype is refused, whatever the sizes") {
  StoreFixture fixture;
  REQUIRE_ERROR(PublishPatches(fixture, {{"layer.0.weight", Dtype::kF32, {96, 96}, {0}, "abcd"}}),
                absl::StatusCode::kInvalidArgument, "F32");
  REQUIRE_ERROR(PublishPatches(fixture, {{"layer.0.bias", Dtype::kBF16, {96}, {0}, "ab"}}),
                absl::StatusCode::kInvalidArgument, "BF16");
  REQUIRE_ERROR(PublishPatches(fixture, {{"layer.0.weight", Dtype::kF16, {96, 96}, {0}, "ab"}}),
                absl::StatusCode::kInvalidArgument, "F16");
  NaiveTensors cast = fixture.version(0);
  cast["layer.0.weight"].dtype = "F16";
  REQUIRE_ERROR(fixture.Publish(cast), absl::StatusCode::kInvalidArgument,
                "'layer.0.weight' is F16 [96, 96], the base has BF16 [96, 96]");
  RequireUntouched(fixture, 1);
}

TEST_CASE(
    "A30 another shape is refused though the index is in range, and so is a name given twice") {
  StoreFixture fixture;
  REQUIRE_ERROR(PublishPatches(fixture, {{"embed.weight", Dtype::kBF16, {1064, 96}, {0}, "ab"}}),
                absl::StatusCode::kInvalidArgument, "[1064, 96]");
  REQUIRE_ERROR(PublishPatches(fixture, {{"layer.1.codes", Dtype::kI8, {70000}, {0}, "a"},
                                         {"layer.1.codes", Dtype::kI8, {70000}, {1}, "b"}}),
                absl::StatusCode::kInvalidArgument, "layer.1.codes");
  RequireUntouched(fixture, 1);
}

TEST_CASE("B02 scalars and empty tensors go through a publish and an export") {
  StoreFixture fixture;
  NaiveTensors next = fixture.version(0);
  next["step"].bytes = "\x01\x02\x03\x04\x05\x06\x07\x08";
  REQUIRE_OK(fixture.Publish(next));
  fixture.RequireAllVersions();
}

TEST_CASE("B13 a base that was rewritten is found, and never read as if nothing had happened") {
  StoreFixture fixture;
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(0), 0.01)));
  ExportOptions onto_base;
  onto_base.directory = fixture.path("base");
  REQUIRE_ERROR(fixture.store().Export(VersionId(1), onto_base),
                absl::StatusCode::kFailedPrecondition, "base");
  REQUIRE((NaiveRead(ReadFile(fixture.base_file())) == fixture.version(0)));

  // The same bytes in a new file: refused until verify has read them.
  const std::string bytes = ReadFile(fixture.base_file());
  std::filesystem::remove(fixture.base_file());
  WriteFile(fixture.base_file(), bytes);
  REQUIRE_ERROR(fixture.Publish(fixture.Changed(fixture.version(1), 0.01)),
                absl::StatusCode::kFailedPrecondition, "verify --base");
  VerifyOptions verify;
  verify.base = true;
  auto report = fixture.store().Verify(verify);
  REQUIRE_OK(report);
  REQUIRE(report->ok());
  fixture.Reopen();
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(1), 0.01)));
  fixture.RequireAllVersions();

  // Other bytes.
  std::string other = bytes;
  other.back() ^= 1;
  WriteFile(fixture.base_file(), other);
  report = fixture.store().Verify(verify);
  REQUIRE_OK(report);
  REQUIRE(report->problems.size() == 1);
  REQUIRE(report->problems[0].tensor == "step");
  REQUIRE_ERROR(fixture.Publish(fixture.Changed(fixture.version(2), 0.01)),
                absl::StatusCode::kFailedPrecondition, "has changed since it was recorded");
}

TEST_CASE("B18 a bit that flips in the base without a trace is caught by the sums") {
  StoreFixture fixture;
  REQUIRE_OK(fixture.Publish(fixture.Changed(fixture.version(0), 0.01)));
  const auto time = std::filesystem::last_write_time(fixture.base_file());
  std::string bytes = ReadFile(fixture.base_file());
  bytes.back() ^= 1;
  {
    std::fstream file(fixture.base_file(), std::ios::in | std::ios::out | std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  std::filesystem::last_write_time(fixture.base_file(), time);
  REQUIRE_ERROR(fixture.Publish(fixture.Changed(fixture.version(1), 0.01)),
                absl::StatusCode::kDataLoss, "recorded fingerprint");
  ExportOptions out;
  out.directory = fixture.path("out");
  REQUIRE_ERROR(fixture.store().Export(VersionId(1), out), absl::StatusCode::kDataLoss,
                "nothing was exported");
  REQUIRE_FALSE(std::filesystem::exists(fixture.path("out/model.safetensors")));
  const auto report = fixture.store().Verify({});
  REQUIRE_OK(report);
  REQUIRE(report->problems.size() == 1);
  REQUIRE(report->problems[0].tensor == "step");
  REQUIRE(fixture.store().versions().size() == 2);
}

TEST_CASE("B15 the same tensors are the same base, however they are kept") {
  StoreFixture fixture;
  NaiveTensors tensors = fixture.version(0);
  std::vector<std::string> names = NamesOf(tensors);
  std::reverse(names.begin(), names.end());
  WriteFile(fixture.path("reversed.safetensors"), NaiveWrite(tensors, names, {{"x", "y"}}));
  const auto other = Store::Create(fixture.path("other"), fixture.path("reversed.safetensors"), {});
  REQUIRE_OK(other);
  REQUIRE((*other)->head().base_digest == fixture.store().head().base_digest);
  REQUIRE((*other)->head().chain_digest == fixture.store().head().chain_digest);
  // The same history has the same name in both.
  const NaiveTensors next = fixture.Changed(tensors, 0.01);
  REQUIRE_OK(fixture.Publish(next));
  auto transaction = (*other)->Begin({});
  REQUIRE_OK(transaction);
  REQUIRE_OK((*transaction)->SetCheckpoint(fixture.Checkpoint(next)));
  REQUIRE_OK((*transaction)->Commit());
  REQUIRE((*other)->head().chain_digest == fixture.store().head().chain_digest);
}

TEST_CASE("patches and a whole checkpoint of the same changes make the same version") {
  StoreFixture fixture(TestSeed("patches"));
  const NaiveTensors next = fixture.Changed(fixture.version(0), 0.003);
  std::vector<OwnedPatch> patches;
  for (const auto& [name, tensor] : next) {
    OwnedPatch patch{name, *ParseDtype(tensor.dtype), tensor.shape, {}, ""};
    const uint64_t width = WidthOf(tensor);
    const std::string& before = fixture.version(0).at(name).bytes;
    for (uint64_t i = 0; i < tensor.bytes.size() / width; ++i) {
      if (tensor.bytes.compare(i * width, width, before, i * width, width) == 0) continue;
      patch.indices.push_back(static_cast<int64_t>(i));
      patch.values += tensor.bytes.substr(i * width, width);
    }
    patches.push_back(std::move(patch));
  }
  REQUIRE_OK(PublishPatches(fixture, patches));
  REQUIRE((fixture.Exported(1) == next));
  RollbackOptions rollback;
  rollback.to = VersionId(0);
  REQUIRE_OK(fixture.store().Rollback(rollback));
  REQUIRE_OK(fixture.store().Resume());
  REQUIRE_OK(fixture.Publish(next));
  const auto versions = fixture.store().versions();
  REQUIRE(versions.size() == 3);
  REQUIRE(versions[1].patch_digest == versions[2].patch_digest);
  REQUIRE(versions[1].fingerprint == versions[2].fingerprint);
  REQUIRE(versions[1].chain_digest == versions[2].chain_digest);
  fixture.RequireAllVersions();
}

}  // namespace
}  // namespace wstore::testing
