// A trainer whose weights are in the memory of a GPU: publishes them from there to a served fleet,
// and follows an operator who takes head back.
#include <cuda_runtime.h>

#include <iostream>
#include <string>
#include <vector>

#include "wstore/cuda_publisher.h"

template <typename T>
T Must(absl::StatusOr<T> result) {
  if (result.ok()) return *std::move(result);
  std::cerr << result.status() << "\n";
  exit(1);
}

wstore::Deadline InOneMinute() { return wstore::Deadline::After(60'000'000); }

int main(int argc, char** argv) {
  if (argc != 4) return 2;  // ADDRESS STEPS RANKS
  const wstore::ConnectOptions connect{argv[1], std::nullopt, false};
  auto client = Must(wstore::Client::Connect(connect, "trainer"));
  auto stream = Must(wstore::OwnedCudaStream::Create());
  auto memory = wstore::MakeCudaDeviceMemory();
  wstore::CudaPublisherOptions options;
  options.stream = stream.get();
  options.memory = memory.get();
  auto publisher = Must(wstore::CudaPublisher::Start(client, connect, options, InOneMinute()));
  const wstore::Manifest& manifest = publisher->manifest();

  // The trainer's own weights: here they start as head, in memory of our own.
  std::vector<const void*> weights(manifest.size());
  const auto take_head = [&] {
    for (wstore::TensorIndex i = 0; i < manifest.size(); ++i) {
      const uint64_t size = manifest.tensor(i).size_bytes();
      if (weights[i] == nullptr && size > 0) {
        weights[i] = Must(memory->Allocate(size, stream.get()));
      }
      cudaMemcpyAsync(const_cast<void*>(weights[i]), publisher->shadow()[i], size,
                      cudaMemcpyDeviceToDevice, stream.get());
    }
  };
  take_head();
  // Ranks that NCCL or this GPU's memory reaches; all others get their chunks from the server.
  if (!publisher->lead()->AwaitRanks(std::stoul(argv[3]), InOneMinute()).ok()) return 1;

  for (int step = 1; step <= std::stoi(argv[2]); ++step) {
    for (const void* tensor : weights) {
      if (tensor != nullptr) cudaMemsetAsync(const_cast<void*>(tensor), step, 1, stream.get());
    }  // train
    wstore::PublishOptions publish;
    publish.durability = wstore::PublishDurability::kAsync;
    publish.begin.message = "step " + std::to_string(step);
    auto decision = publisher->Publish(weights, publish, InOneMinute());
    if (wstore::ConflictHead(decision.status())) {
      // Head is another: go on from there, with what the trainer loads for it.
      Must(publisher->Rebase(InOneMinute()));
      take_head();
      continue;
    }
    std::cout << "step " << step << ": " << ToString(Must(decision).version) << ", "
              << publisher->times().all << " us\n";
  }
  return publisher->AwaitDurable(InOneMinute()).ok() ? 0 : 1;
}
