#include "tools/demo/trainer.h"

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/demo/model.h"
#include "wstore/publisher.h"

namespace wstore::demo {
namespace {

constexpr int64_t kPublishMicros = 30'000'000;

class ModelWeights final : public TensorSource {
 public:
  explicit ModelWeights(const Model& model) : model_(model) {}

  absl::Status Read(TensorIndex tensor, uint64_t offset_bytes,
                    absl::Span<uint8_t> out) const override {
    model_.bytes(tensor).copy(reinterpret_cast<char*>(out.data()), out.size(), offset_bytes);
    return absl::OkStatus();
  }

 private:
  const Model& model_;
};

}  // namespace

absl::Status RunTrainer(const std::string& address, std::istream& in, std::ostream& out) {
  Model model;
  const ModelWeights weights(model);
  ConnectOptions connect;
  connect.address = address;
  ASSIGN_OR_RETURN(const std::shared_ptr<Client> client, Client::Connect(connect, "trainer"));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Publisher> publisher,
      Publisher::Start(client, VersionId(0), weights, {}, Deadline::After(kPublishMicros)));
  for (std::string line; std::getline(in, line);) {
    if (line != "step") {
      return absl::InvalidArgumentError(absl::StrCat("'", line, "': only 'step' is known"));
    }
    model.TrainStep();
    PublishOptions options;
    options.begin.message = absl::StrCat("step ", model.steps());
    options.begin.meta["step"] = absl::StrCat(model.steps());
    ASSIGN_OR_RETURN(const Decision decision,
                     publisher->Publish(weights, options, Deadline::After(kPublishMicros)));
    const nlohmann::json said = {{"event", "published"},
                                 {"version", ToString(decision.version)},
                                 {"duration_ms", decision.duration_micros / 1000}};
    out << said.dump() << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace wstore::demo
