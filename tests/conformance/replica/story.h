// A story of one instance: updates that go well or fail, rollbacks, aborts and sleep, in any order,
// each step compared with the dense reference.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "tests/conformance/replica/faulty_backend.h"
#include "tests/conformance/replica/instance.h"

namespace wstore::testing {

class Story {
 public:
  // `manifest` and `random` must outlive it. Tensors that the layouts alias change alike.
  Story(std::mt19937_64& random, const Manifest& manifest, std::vector<Layout> layouts);

  // An update of head, or a move to another version, which may fail or be taken back.
  void Step();
  // The weights leave and come back as they were.
  void Sleep();

  Instance& instance() { return *instance_; }
  const Publisher& publisher() const { return publisher_; }

 private:
  Update NextUpdate();
  bool StageBack(const Update& update);

  std::mt19937_64& random_;
  const Manifest& manifest_;
  const std::vector<AliasGroup> aliases_;
  Publisher publisher_;
  std::vector<std::shared_ptr<FaultyBackend>> backends_;
  std::unique_ptr<Instance> instance_;
};

}  // namespace wstore::testing
