// The documents that scripts read: names and types are a contract.
#include <regex>
#include <set>

#include "tests/cli/cli_fixture.h"

namespace wstore::testing {
namespace {

std::set<std::string> KeysOf(const Json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

bool Matches(const Json& value, const std::string& pattern) {
  return value.is_string() && std::regex_match(value.get<std::string>(), std::regex(pattern));
}

const char kDigest[] = "[0-9a-f]{64}";
const char kTime[] = "20\\d\\d-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{6}Z";

struct Published : CliFixture {
  Published() {
    Init();
    CheckpointWithChanges("one", 70);
    publish = MustJson(
        {"publish", "--from", "one", "-m", "m", "--meta", "a=1", "--meta", "b==", "--id", "i"});
  }
  Json publish;
};

TEST_CASE_METHOD(Published, "publish and rollback as JSON") {
  REQUIRE(publish["version"] == "v1");
  REQUIRE(publish["head"] == "v1");
  REQUIRE(publish["parent"] == "v0");
  REQUIRE(publish["outcome"] == "committed");
  REQUIRE(publish["tx"].is_number_unsigned());
  REQUIRE(publish["duration_ms"].is_number());
  REQUIRE(publish["duration_ms"] > 0);
  REQUIRE(publish["tensors"] == 1);
  REQUIRE(publish["elements"] == 70);
  REQUIRE(publish["bytes"].is_number_unsigned());
  REQUIRE(Matches(publish["chain_digest"], kDigest));
  REQUIRE(Matches(publish["patch_digest"], kDigest));

  const Json dry = MustJson({"rollback", "--to", "v0", "--dry-run"});
  REQUIRE(dry["outcome"] == "dry-run");
  REQUIRE(dry["tx"].is_null());
  REQUIRE(dry["elements"] == 70);
  const Json rollback = MustJson({"rollback", "--to", "v0", "--yes"});
  REQUIRE(rollback["version"] == "v0");
  REQUIRE(rollback["head"] == "v0");
  REQUIRE(rollback["from"] == "v1");
  REQUIRE(rollback["outcome"] == "committed");
  REQUIRE(rollback["tx"] > publish["tx"]);
  REQUIRE(rollback["duration_ms"].is_number());
  REQUIRE(rollback["hold"]["reason"].is_string());
}

TEST_CASE_METHOD(Published, "log and show as JSON") {
  Must({"tag", "prod", "v1"});
  const Json log = MustJson({"log"});
  REQUIRE(log.size() == 2);
  const std::set<std::string> keys = {
      "version",      "parent",       "kind",        "is_head", "tags",     "candidate", "bad",
      "chain_digest", "patch_digest", "fingerprint", "tensors", "elements", "density",   "bytes",
      "verified",     "created",      "actor",       "message", "meta",     "tx",        "id"};
  REQUIRE(KeysOf(log[0]) == keys);
  REQUIRE(KeysOf(log[1]) == keys);
  const Json& v1 = log[0];
  REQUIRE(v1["version"] == "v1");
  REQUIRE(v1["parent"] == "v0");
  REQUIRE(v1["kind"] == "publish");
  REQUIRE(v1["is_head"] == true);
  REQUIRE(v1["tags"] == Json({"prod"}));
  REQUIRE(Matches(v1["chain_digest"], kDigest));
  REQUIRE(Matches(v1["patch_digest"], kDigest));
  REQUIRE(Matches(v1["fingerprint"], "[0-9a-f]{32}"));
  REQUIRE(v1["tensors"] == 1);
  REQUIRE(v1["elements"] == 70);
  REQUIRE(v1["density"].is_number_float());
  REQUIRE(v1["density"].get<double>() == Approx(70.0 / (19200 + 64 + 70000 + 99 + 12 + 1)));
  REQUIRE(v1["bytes"].is_number_unsigned());
  REQUIRE(v1["verified"] == "materialised");
  REQUIRE(Matches(v1["created"], kTime));
  REQUIRE(v1["actor"].is_string());
  REQUIRE(v1["message"] == "m");
  REQUIRE(v1["meta"] == Json({{"a", "1"}, {"b", "="}}));
  REQUIRE(v1["id"] == "i");

  const Json& v0 = log[1];
  REQUIRE(v0["version"] == "v0");
  REQUIRE(v0["parent"].is_null());
  REQUIRE(v0["patch_digest"].is_null());
  REQUIRE(v0["kind"] == "base");
  REQUIRE(v0["is_head"] == false);

  REQUIRE(MustJson({"log", "-n", "1"}) == Json::array({v1}));
  Json shown = MustJson({"show", "prod"});
  REQUIRE(Matches(shown["base_digest"], kDigest));
  shown.erase("base_digest");
  REQUIRE(shown == v1);
}

TEST_CASE_METHOD(Published, "log --moves as JSON") {
  MustJson({"rollback", "--to", "v0", "--yes", "-m", "why", "--id", "j"});
  const Json moves = MustJson({"log", "--moves"});
  REQUIRE(moves.size() == 2);
  REQUIRE(KeysOf(moves[0]) == std::set<std::string>{"seq", "from", "to", "why", "actor", "peer",
                                                    "tx", "id", "policy", "outcome", "duration_ms",
                                                    "created", "message"});
  REQUIRE(moves[0]["seq"] == 2);
  REQUIRE(moves[0]["from"] == "v1");
  REQUIRE(moves[0]["to"] == "v0");
  REQUIRE(moves[0]["why"] == "rollback");
  REQUIRE(moves[0]["message"] == "why");
  REQUIRE(moves[0]["id"] == "j");
  REQUIRE(moves[0]["outcome"] == "committed");
  REQUIRE(moves[0]["duration_ms"].is_number());
  REQUIRE(Matches(moves[0]["created"], kTime));
  REQUIRE(moves[1]["why"] == "publish");
  REQUIRE(moves[1]["seq"] == 1);
  REQUIRE(moves[1]["tx"] == publish["tx"]);
}

TEST_CASE_METHOD(Published, "status as JSON") {
  const Json status = MustJson({"status"});
  REQUIRE(status["head"] == "v1");
  REQUIRE(status["durable"] == "v1");
  REQUIRE(status["state"] == "ok");
  REQUIRE(KeysOf(status["base"]) ==
          std::set<std::string>{"digest", "tensors", "elements", "bytes", "path"});
  REQUIRE(Matches(status["base"]["digest"], kDigest));
  REQUIRE(status["base"]["tensors"] == 7);
  REQUIRE(status["base"]["elements"] == 89376);
  REQUIRE(status["base"]["bytes"] == 108775);
  REQUIRE(status["base"]["path"].is_string());
  REQUIRE(status["journal_bytes"].is_number_unsigned());
  REQUIRE(status["workers"] == Json::array());
}

TEST_CASE_METHOD(Published, "verify, diff, tag, hold, export and completion as JSON") {
  const Json verify = MustJson({"verify", "--all"});
  REQUIRE(KeysOf(verify) == std::set<std::string>{"ok", "checked", "problems"});
  REQUIRE(verify["ok"] == true);
  REQUIRE(verify["problems"] == Json::array());
  REQUIRE(verify["checked"].size() == 2);

  const Json diff = MustJson({"diff", "v0", "v1"});
  REQUIRE(diff["elements"] == 70);
  REQUIRE(diff["tensors"] == 1);
  REQUIRE(diff["by_tensor"][0]["tensor"] == "layer.0.codes");
  REQUIRE(diff["by_tensor"][0]["dtype"] == "I8");
  REQUIRE(diff["by_tensor"][0]["shape"] == Json({70000}));
  REQUIRE(diff["by_tensor"][0]["elements"] == 70);
  REQUIRE(diff["by_tensor"][0]["of"] == 70000);
  REQUIRE(MustJson({"diff", "v1", "head"})["by_tensor"] == Json::array());

  REQUIRE(MustJson({"tag", "prod", "v1"})["version"] == "v1");
  REQUIRE(MustJson({"tag", "prod", "v0"})["previous"] == "v1");
  const Json tags = MustJson({"tag"});
  REQUIRE(tags.size() == 1);
  REQUIRE(tags[0]["name"] == "prod");
  REQUIRE(tags[0]["version"] == "v0");
  REQUIRE(Matches(tags[0]["created"], kTime));

  REQUIRE(MustJson({"hold", "-m", "x"})["hold"]["reason"] == "x");
  REQUIRE(MustJson({"resume"})["hold"].is_null());

  const Json exported = MustJson({"export", "v1", "--out", "out"});
  REQUIRE(exported["version"] == "v1");
  REQUIRE(exported["files"] == Json({"model.safetensors"}));
  REQUIRE(exported["bytes"] == 108775);

  REQUIRE(MustJson({"completion", "bash"})["script"].is_string());
}

TEST_CASE("init and --version as JSON") {
  CliFixture cli;
  std::filesystem::create_directory(cli.path("base"));
  WriteFile(cli.path("base/model.safetensors"), NaiveWrite(cli.model(), NamesOf(cli.model())));
  const Json init = Json::parse(cli.Run({"--json", "init", "store", "--base", "base"}).out);
  REQUIRE(init["version"] == "v0");
  REQUIRE(Matches(init["base"]["digest"], kDigest));
  REQUIRE(Json::parse(cli.Run({"--json", "--version"}).out)["name"] == "wstore");
}

}  // namespace
}  // namespace wstore::testing
