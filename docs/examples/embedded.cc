// One process that serves and is its own store: weights in memory follow publishes and rollbacks.
#include <iostream>
#include <vector>

#include "wstore/follower.h"
#include "wstore/layout_builder.h"

template <typename T>
T Must(absl::StatusOr<T> result) {
  if (result.ok()) return *std::move(result);
  std::cerr << result.status() << "\n";
  exit(1);
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;  // STORE CHECKPOINT...
  auto store = Must(wstore::Store::Open(argv[1], {}));
  const wstore::Manifest& manifest = store->manifest();

  // Where the engine keeps the weights: this one has every tensor whole, in a buffer of its own.
  wstore::LayoutBuilder builder(manifest);
  std::vector<std::vector<char>> memory;
  std::vector<wstore::LocalBuffer> buffers;
  for (const wstore::Manifest::Tensor& tensor : manifest.tensors()) {
    builder.Place(builder.Tensor(tensor.spec.name), builder.Buffer(tensor.spec));
    memory.emplace_back(tensor.size_bytes());
    buffers.push_back({memory.back().data(), memory.back().size()});
  }
  auto layout = std::make_shared<const wstore::Layout>(Must(builder.Build(/*generation=*/1)));

  wstore::ReplicaOptions options;
  options.undo_budget_bytes = 64 << 20;
  options.on_change = [](const wstore::ChangeEvent& event) {
    std::cout << ToString(event.from.version) << " -> " << ToString(event.to.version) << ": "
              << ChangeReasonName(event.reason) << ", " << event.elements << " elements\n";
  };
  const wstore::FingerprintKey key(store->head().base_digest);
  const wstore::ReplicaPlacement whole{layout, nullptr, 0};
  auto replica = Must(wstore::Replica::Attach(manifest, key, whole, buffers, options));

  wstore::Follower follower(*store, {replica.get()});
  if (!follower.Load().ok()) return 1;
  for (int i = 2; i < argc; ++i) {
    auto publish = Must(store->Begin({}));
    if (!publish->SetCheckpoint(argv[i]).ok()) return 1;
    Must(publish->Commit());
    // The engine would call Prepare while it serves, and Apply between two steps.
    Must(follower.Follow());
  }
  wstore::RollbackOptions rollback;
  rollback.to = Must(store->Resolve("v0"));
  Must(store->Rollback(rollback));
  const wstore::VersionId serving = Must(follower.Follow());
  std::cout << "serving " << ToString(serving) << "\n";
}
