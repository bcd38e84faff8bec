// A trainer: publishes its weights to a server, and follows an operator who takes head back.
#include <iostream>
#include <string>
#include <vector>

#include "wstore/publisher.h"

template <typename T>
T Must(absl::StatusOr<T> result) {
  if (result.ok()) return *std::move(result);
  std::cerr << result.status() << "\n";
  exit(1);
}

wstore::Deadline InOneMinute() { return wstore::Deadline::After(60'000'000); }

int main(int argc, char** argv) {
  if (argc != 4) return 2;  // ADDRESS RUN STEPS
  auto client = Must(wstore::Client::Connect({argv[1], std::nullopt, false}, "trainer"));
  auto publisher = Must(wstore::Publisher::Start(client, {}, InOneMinute()));
  const wstore::Manifest& manifest = publisher->manifest();

  // The trainer's own weights: here they start as head, in memory of our own.
  std::vector<std::vector<uint8_t>> memory;
  wstore::MemoryTensors weights(manifest);
  for (wstore::TensorIndex i = 0; i < manifest.size(); ++i) {
    const auto bits = publisher->shadow(i);
    memory.emplace_back(bits.begin(), bits.end());
    if (!weights.Set(manifest.tensor(i).spec.name, memory.back()).ok()) return 1;
  }

  for (int step = 1; step <= std::stoi(argv[3]); ++step) {
    for (auto& tensor : memory) {
      if (!tensor.empty()) tensor[step % tensor.size()] ^= 1;  // train
    }
    wstore::PublishOptions options;
    options.begin.transaction_id = argv[2] + ("/" + std::to_string(step));
    options.begin.message = "step " + std::to_string(step);
    auto decision = publisher->Publish(weights, options, InOneMinute());
    if (wstore::ConflictHead(decision.status())) {
      // Somebody moved head. The shadow goes there; the trainer takes head's weights, or stops.
      std::cerr << decision.status().message() << "\n";
      Must(publisher->Rebase(InOneMinute()));
      return 3;
    }
    if (absl::IsUnknown(decision.status())) {
      decision = publisher->Publish(weights, options, InOneMinute());  // the same id: asks first
    }
    std::cout << ToString(Must(std::move(decision)).version) << "\n";
  }
}
