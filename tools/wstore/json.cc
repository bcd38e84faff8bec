#include "tools/wstore/json.h"

#include "absl/strings/str_cat.h"
#include "common/clock.h"

namespace wstore::cli {

std::string Dump(const Json& document) {
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json JsonOf(VersionId version) { return ToString(version); }

Json JsonOf(const std::optional<VersionId>& version) {
  return version.has_value() ? JsonOf(*version) : Json(nullptr);
}

Json MsOf(int64_t micros) { return static_cast<double>(micros) / 1000; }

double Density(uint64_t changed, uint64_t elements) {
  return elements == 0 ? 0 : static_cast<double>(changed) / static_cast<double>(elements);
}

Json JsonOf(const VersionInfo& version, const VersionContext& context) {
  const bool is_base = !version.parent.has_value();
  return {
      {"version", JsonOf(version.version)},
      {"parent", JsonOf(version.parent)},
      {"kind", is_base ? "base" : "publish"},
      {"is_head", context.head == version.version},
      {"tags", context.TagsOf(version.version)},
      {"candidate", version.candidate},
      {"bad", version.bad.has_value() ? Json(*version.bad) : Json(nullptr)},
      {"chain_digest", ToHex(version.chain_digest)},
      {"patch_digest", is_base ? Json(nullptr) : Json(ToHex(version.patch_digest))},
      {"fingerprint", ToHex(version.fingerprint)},
      {"tensors", version.tensors},
      {"elements", version.elements},
      {"density", Density(version.elements, context.base.elements)},
      {"bytes", version.payload_bytes},
      {"verified", VerifiedName(version.verified)},
      {"created", FormatRfc3339(version.created_unix_micros)},
      {"actor", version.actor},
      {"message", version.message},
      {"meta", version.meta},
      {"tx", version.transaction.value()},
      {"id", version.transaction_id},
  };
}

Json JsonOf(const MoveInfo& move) {
  return {
      {"seq", IsRefused(move) ? Json(nullptr) : Json(move.move.value())},
      {"from", JsonOf(move.from)},
      {"to", JsonOf(move.to)},
      {"why", move.why},
      {"actor", move.actor},
      {"peer", move.peer},
      {"tx", move.transaction.value()},
      {"id", move.transaction_id},
      {"policy", move.policy},
      {"outcome", move.outcome},
      {"duration_ms", MsOf(move.duration_micros)},
      {"created", FormatRfc3339(move.created_unix_micros)},
      {"message", move.message},
  };
}

Json JsonOf(const TagInfo& tag) {
  return {
      {"name", tag.name},
      {"version", JsonOf(tag.version)},
      {"created", FormatRfc3339(tag.created_unix_micros)},
      {"actor", tag.actor},
  };
}

Json JsonOf(const BaseInfo& base) {
  return {
      {"digest", ToHex(base.digest)}, {"tensors", base.tensors}, {"elements", base.elements},
      {"bytes", base.size_bytes},     {"path", base.path},
  };
}

Json JsonOf(const WorkerInfo& worker) {
  return {
      {"name", absl::StrCat(worker.instance, "/", worker.rank)},
      {"instance", worker.instance},
      {"rank", worker.rank},
      {"ranks", worker.ranks},
      {"version", JsonOf(worker.version)},
      {"state", worker.state},
      {"lag", worker.lag},
      {"error", worker.error.empty() ? Json(nullptr) : Json(worker.error)},
      {"peer", worker.peer},
      {"heard_ms", MsOf(worker.heard_micros_ago)},
      {"may_serve_when_lost", worker.may_serve_when_lost},
      {"carried_bytes", worker.carried_bytes},
      {"served_bytes", worker.served_bytes},
  };
}

Json JsonOf(const std::optional<HoldInfo>& hold) {
  if (!hold.has_value()) return nullptr;
  return {
      {"reason", hold->reason},
      {"actor", hold->actor},
      {"created", FormatRfc3339(hold->created_unix_micros)},
  };
}

Json JsonOf(const DifferenceCount& difference, const Manifest& manifest) {
  Json by_tensor = Json::array();
  for (const auto& [index, changed] : difference.by_tensor) {
    const Manifest::Tensor& tensor = manifest.tensor(index);
    by_tensor.push_back({
        {"tensor", tensor.spec.name},
        {"dtype", DtypeName(tensor.spec.dtype)},
        {"shape", tensor.spec.shape},
        {"elements", changed},
        {"of", tensor.elements},
        {"density", Density(changed, tensor.elements)},
    });
  }
  return {
      {"tensors", difference.by_tensor.size()},
      {"elements", difference.changed},
      {"density", Density(difference.changed, manifest.elements())},
      {"by_tensor", std::move(by_tensor)},
  };
}

}  // namespace wstore::cli
