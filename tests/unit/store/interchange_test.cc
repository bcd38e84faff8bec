#include "wstore/interchange.h"

#include "tests/unit/store/store_fixture.h"
#include "wstore/store.h"

namespace wstore::testing {
namespace {

using Metadata = std::map<std::string, std::string>;

std::string Indices(std::initializer_list<int64_t> indices) {
  std::string bytes;
  for (const int64_t index : indices) {
    bytes.append(reinterpret_cast<const char*>(&index), sizeof(index));
  }
  return bytes;
}

NaiveTensors Patch(const std::string& name, const std::string& dtype, const std::string& indices,
                   const std::string& values, uint64_t width) {
  return {{"indices:" + name, {"I64", {indices.size() / 8}, indices}},
          {"values:" + name, {dtype, {values.size() / width}, values}}};
}

Metadata Described(const std::string& shapes) {
  return {{"format", "wstore-patch-1"}, {"shapes", shapes}};
}

class InterchangeFixture : public StoreFixture {
 public:
  std::string Write(const NaiveTensors& tensors, const Metadata& metadata) {
    WriteFile(path("patch.safetensors"), NaiveWrite(tensors, NamesOf(tensors), metadata));
    return path("patch.safetensors");
  }
  absl::StatusOr<CommitResult> PublishFile(const std::string& file_path) {
    const auto file = InterchangeFile::Read(file_path);
    if (!file.ok()) return file.status();
    BeginOptions options;
    options.parent = file->parent();
    options.parent_chain_digest = file->parent_chain_digest();
    options.base_digest = file->base_digest();
    auto transaction = store().Begin(options);
    if (!transaction.ok()) return transaction.status();
    const absl::Status added = (*transaction)->Add(file->patches());
    if (!added.ok()) return added;
    return (*transaction)->Commit();
  }
};

TEST_CASE("an interchange file publishes new values and XOR bits, of packed types too") {
  InterchangeFixture fixture;
  NaiveTensors expected = fixture.version(0);
  NaiveTensors tensors = Patch("layer.1.codes", "I8", Indices({69999, 3}), "xy", 1);
  tensors.merge(Patch("layer.1.packed", "U8", Indices({2}), "z", 1));
  Metadata metadata = Described(R"({"layer.1.codes": [70000], "layer.1.packed": [6, 4]})");
  metadata["dtypes"] = R"({"layer.1.packed": "F4"})";
  metadata["parent"] = "v0";
  metadata["base_digest"] = ToHex(fixture.store().head().base_digest);
  REQUIRE_OK(fixture.PublishFile(fixture.Write(tensors, metadata)));
  expected["layer.1.codes"].bytes[69999] = 'x';
  expected["layer.1.codes"].bytes[3] = 'y';
  expected["layer.1.packed"].bytes[2] = 'z';
  REQUIRE((fixture.Exported(1) == expected));

  metadata = Described(R"({"layer.0.weight": [96, 96]})");
  metadata["bits"] = "xor";
  REQUIRE_OK(fixture.PublishFile(
      fixture.Write(Patch("layer.0.weight", "BF16", Indices({9}), "\x01\x80", 2), metadata)));
  expected["layer.0.weight"].bytes[18] ^= 1;
  expected["layer.0.weight"].bytes[19] ^= static_cast<char>(0x80);
  REQUIRE((fixture.Exported(2) == expected));

  // Made for another parent.
  metadata["parent"] = "v0";
  REQUIRE_ERROR(fixture.PublishFile(fixture.Write(
                    Patch("layer.0.weight", "BF16", Indices({9}), "\x01\x80", 2), metadata)),
                absl::StatusCode::kFailedPrecondition, "made for v0");
}

TEST_CASE("what is no interchange file is refused with what is wrong") {
  InterchangeFixture fixture;
  const NaiveTensors good = Patch("step", "I64", Indices({0}), "12345678", 8);
  const Metadata described = Described(R"({"step": []})");
  const auto refused = [&](const NaiveTensors& tensors, const Metadata& metadata,
                           const char* message) {
    REQUIRE_ERROR(InterchangeFile::Read(fixture.Write(tensors, metadata)),
                  absl::StatusCode::kInvalidArgument, message);
  };
  REQUIRE_OK(InterchangeFile::Read(fixture.Write(good, described)));
  refused(good, {}, "'format' is missing");
  refused(good, {{"format", "pt"}}, "use --from");
  refused(good, {{"format", "wstore-patch-1"}}, "'shapes' is missing");
  refused(good, Described("[1"), "not a JSON object");
  refused(good, Described(R"({"step": [-1]})"), "the shape of 'step'");
  refused(good, Described(R"({"stop": []})"), "no shape of 'step'");
  Metadata metadata = described;
  metadata["bits"] = "old";
  refused(good, metadata, "'new' or 'xor'");
  metadata = described;
  metadata["parent"] = "42";
  refused(good, metadata, "as in 'v42'");
  metadata = described;
  metadata["base_digest"] = "abc";
  refused(good, metadata, "64 hexadecimal digits");
  metadata = described;
  metadata["dtypes"] = R"({"step": "F32"})";
  refused(good, metadata, "packed type");

  NaiveTensors half = good;
  half.erase("values:step");
  refused(half, described, "'indices:step' has no 'values:step'");
  half = good;
  half.erase("indices:step");
  refused(half, described, "'values:step' has no 'indices:step'");
  NaiveTensors stray = good;
  stray["step"] = {"I64", {1}, "12345678"};
  refused(stray, described, "'step' is neither");
  NaiveTensors narrow = good;
  narrow["indices:step"] = {"I32", {1}, "1234"};
  refused(narrow, described, "must be I64");
  REQUIRE_ERROR(InterchangeFile::Read(fixture.path("none")), absl::StatusCode::kNotFound, "none");
}

}  // namespace
}  // namespace wstore::testing
