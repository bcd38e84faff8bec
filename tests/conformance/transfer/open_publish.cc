#include "tests/conformance/transfer/open_publish.h"

#include <cstring>
#include <thread>
#include <utility>

#include "tests/support/catch.h"
#include "wstore/chunk_header.h"
#include "wstore/fingerprint.h"
#include "wstore/patch_digest.h"

namespace wstore::testing {

OpenPublish::OpenPublish(ServedModel& model, uint64_t from, NaiveTensors to, const Options& options)
    : served(model), id(options.id), next(std::move(to)) {
  v1::BeginRequest begin;
  begin.set_id(id);
  begin.set_contributors(options.contributors);
  begin.set_durability(options.durability);
  begin.set_carried(options.is_carried);
  v1::BeginResponse begun;
  grpc::Status status;
  // After a decision the instances may still be on their way to it.
  REQUIRE(WaitUntil([&] {
    status = served.stub->Begin(ServedModel::Context().get(), begin, &begun);
    return status.error_code() != grpc::UNAVAILABLE;
  }));
  INFO(status.error_message());
  REQUIRE(status.ok());
  REQUIRE(begun.parent().version() == from);
  transaction = TransactionNumber(begun.transaction());
  const NaiveTensors& before = served.versions.at(from);
  for (uint32_t i = 0; i < options.contributors; ++i) {
    const NaiveTensors share = ShareOf(before, i, options.contributors);
    PatchDigester digester(served.manifest());
    chunks.push_back(served.Chunks(before, share, begun.transaction(), &digester));
    for (std::string& chunk : chunks.back()) {
      ReplaceHeader(transaction, static_cast<uint16_t>(i), &chunk);
    }
    commits.emplace_back();
    commits.back().set_transaction(begun.transaction());
    commits.back().set_contributor(i);
    commits.back().set_chunks(chunks.back().size());
    commits.back().set_digest(ToBytes(digester.Finish()));
    if (options.is_declared) Declare(before, share, &commits.back());
  }
}

// What a contributor changes: some tensors whole, and of others its turn of their blocks, so that
// contributors have tiles in part.
NaiveTensors OpenPublish::ShareOf(const NaiveTensors& before, uint32_t contributor,
                                  uint32_t contributors) const {
  constexpr size_t kBlockBytes = 256 * 2;
  NaiveTensors share = before;
  uint32_t number = 0;
  for (auto& [name, tensor] : share) {
    const std::string& after = next.at(name).bytes;
    if (number % 3 != 2) {
      if (number % contributors == contributor) tensor.bytes = after;
    } else {
      for (size_t at = contributor * kBlockBytes; at < after.size();
           at += contributors * kBlockBytes) {
        tensor.bytes.replace(at, kBlockBytes, after, at, kBlockBytes);
      }
    }
    ++number;
  }
  return share;
}

// Element by element.
void OpenPublish::Declare(const NaiveTensors& before, const NaiveTensors& after,
                          v1::CommitRequest* declaration) {
  v1::Status status;
  REQUIRE(served.stub->GetStatus(ServedModel::Context().get(), {}, &status).ok());
  Digest digest;
  const std::string& base_digest = status.head().base_digest();
  std::memcpy(digest.bytes.data(), base_digest.data(), digest.bytes.size());
  const FingerprintKey key(digest);
  const auto at = [](const std::string& bytes, size_t offset) {
    return absl::Span<const uint8_t>(reinterpret_cast<const uint8_t*>(&bytes[offset]), 2);
  };
  v1::CommitRequest& commit = *declaration;
  commit.set_content_follows(true);
  commit.mutable_sums();
  for (TensorIndex i = 0; i < served.manifest().size(); ++i) {
    const std::string& name = served.manifest().tensor(i).spec.name;
    const std::string& old = before.at(name).bytes;
    const std::string& now = after.at(name).bytes;
    const TensorFingerprinter fingerprinter(key, name);
    TouchedSums sums;
    for (size_t offset = 0; offset < old.size(); offset += 2) {
      if (std::memcmp(&old[offset], &now[offset], 2) == 0) continue;
      sums.before += fingerprinter.Sum(offset, at(old, offset));
      sums.after += fingerprinter.Sum(offset, at(now, offset));
      commit.set_elements(commit.elements() + 1);
    }
    if (old == now) continue;
    commit.mutable_sums()->add_of(i);
    for (const Fingerprint& sum : {sums.before, sums.after}) {
      for (const uint64_t lane : sum.lanes) commit.mutable_sums()->add_lanes(lane);
    }
  }
}

grpc::Status OpenPublish::Put(uint32_t contributor, const std::vector<std::string>& what) {
  auto context = ServedModel::Context();
  const auto stream = served.stub->Put(context.get());
  v1::PutRequest request;
  request.set_transaction(transaction.value());
  request.set_contributor(contributor);
  stream->Write(request);
  for (size_t i = 0; i < what.size(); ++i) {
    request.set_sequence(i);
    request.set_chunk(what[i]);
    stream->Write(request);
  }
  stream->WritesDone();
  v1::PutResponse response;
  while (stream->Read(&response)) {
  }
  return stream->Finish();
}

grpc::Status OpenPublish::Commit(v1::Decision* decision, uint32_t contributor) {
  const grpc::Status status =
      served.stub->Commit(ServedModel::Context().get(), commits[contributor], decision);
  if (status.ok() && decision->outcome() == v1::OUTCOME_COMMITTED) {
    served.versions[decision->version().version()] = next;
  }
  return status;
}

grpc::Status OpenPublish::CommitAll(v1::Decision* decision) {
  std::vector<std::thread> threads;
  std::vector<grpc::Status> statuses(commits.size());
  for (uint32_t i = 1; i < commits.size(); ++i) {
    threads.emplace_back([this, i, &statuses] {
      v1::Decision same;
      statuses[i] = served.stub->Commit(ServedModel::Context().get(), commits[i], &same);
    });
  }
  statuses[0] = Commit(decision);
  for (std::thread& thread : threads) thread.join();
  for (const grpc::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return grpc::Status::OK;
}

grpc::Status OpenPublish::Abort() {
  v1::AbortRequest request;
  request.set_id(id);
  request.set_reason("taken back");
  v1::AbortResponse response;
  return served.stub->Abort(ServedModel::Context().get(), request, &response);
}

uint64_t OpenPublish::size_bytes() const {
  uint64_t size = 0;
  for (const auto& part : chunks) {
    for (const std::string& chunk : part) size += chunk.size();
  }
  return size;
}

}  // namespace wstore::testing
