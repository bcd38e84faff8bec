// A publish in steps, each of them as right or as wrong as a test wants it.
#pragma once

#include <string>
#include <vector>

#include "tests/unit/worker/served_model.h"

namespace wstore::testing {

class OpenPublish {
 public:
  struct Options {
    std::string id = "open";
    uint32_t contributors = 1;
    bool is_carried = true;
    v1::Durability durability = v1::DURABILITY_SYNC;
    bool is_declared = false;  // what the chunks will be is committed, whether they are put or not
  };
  // Begins it. `model` must outlive it.
  OpenPublish(ServedModel& model, uint64_t from, NaiveTensors to, const Options& options);

  grpc::Status Put(uint32_t contributor = 0) { return Put(contributor, chunks[contributor]); }
  grpc::Status Put(uint32_t contributor, const std::vector<std::string>& what);
  grpc::Status Commit(v1::Decision* decision, uint32_t contributor = 0);
  // Of all contributors, at once.
  grpc::Status CommitAll(v1::Decision* decision);
  grpc::Status Abort();
  uint64_t size_bytes() const;  // of all chunks

  ServedModel& served;
  const std::string id;
  const NaiveTensors next;
  TransactionNumber transaction;
  std::vector<std::vector<std::string>> chunks;  // by contributor
  std::vector<v1::CommitRequest> commits;

 private:
  NaiveTensors ShareOf(const NaiveTensors& before, uint32_t contributor,
                       uint32_t contributors) const;
  void Declare(const NaiveTensors& before, const NaiveTensors& after,
               v1::CommitRequest* declaration);
};

}  // namespace wstore::testing
