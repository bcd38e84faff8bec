// The service over gRPC: checks what comes, hands it to the core, and never blocks a gRPC thread.
// What may block (files, composing, parsing) runs in lanes: a few threads, each call in one of
// them.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "store/service/figures.h"
#include "store/service/fleet.h"
#include "store/service/rpc_messages.h"
#include "store/service/serial_executor.h"
#include "wstore/v1/service.grpc.pb.h"

namespace wstore::service {

struct RpcLimits {
  // Content streams (ReadDense, ReadDifference, ReadContent) at a time. Each may hold the changes
  // of one span, at most 32 Mi elements, and what the transport buffers.
  uint32_t max_content_streams = 16;
  uint32_t max_watches = 1024;
  uint32_t max_ranks = 65'536;
  uint32_t max_puts = 4096;
  int64_t slow_reader_micros = 60'000'000;
  size_t max_orders = 64;  // that wait for one rank
  int lanes = 4;
};

// Who is at the other end: by the name that gRPC has for a connection. Threads: any.
class PeerNames {
 public:
  void Set(const std::string& connection, std::string name);
  // The name, or what gRPC says.
  std::string Find(const std::string& connection) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::string> names_;
};

// A stream that can be too slow.
class SlowReader {
 public:
  virtual ~SlowReader() = default;
  // Cancels the call if it has taken nothing since before `since_micros`.
  virtual void CancelIfIdle(int64_t since_micros) = 0;
};

class RpcService final : public v1::Store::CallbackService {
 public:
  // All must outlive it.
  RpcService(LiveStore& live, Fleet& fleet, const PeerNames& peers, const RpcLimits& limits,
             std::function<void(const std::string&)> log);
  ~RpcService() override;

  // Ends what waits in lanes. After the server's Shutdown.
  void Stop();
  // Drops readers that take nothing. To be called every few seconds.
  void DropSlowReaders();

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;
  Unary* Begin(Context* context, const v1::BeginRequest* request,
               v1::BeginResponse* response) override;
  Unary* Commit(Context* context, const v1::CommitRequest* request,
                v1::Decision* response) override;
  Unary* Abort(Context* context, const v1::AbortRequest* request,
               v1::AbortResponse* response) override;
  Unary* Ask(Context* context, const v1::AskRequest* request, v1::Decision* response) override;
  Unary* Rollback(Context* context, const v1::RollbackRequest* request,
                  v1::Decision* response) override;
  Unary* Promote(Context* context, const v1::PromoteRequest* request,
                 v1::Decision* response) override;
  Unary* Rollout(Context* context, const v1::RolloutRequest* request,
                 v1::Decision* response) override;
  Unary* Revert(Context* context, const v1::RevertRequest* request,
                v1::Decision* response) override;
  Unary* SetHold(Context* context, const v1::SetHoldRequest* request,
                 v1::SetHoldResponse* response) override;
  Unary* Mark(Context* context, const v1::MarkRequest* request,
              v1::MarkResponse* response) override;
  Unary* Tag(Context* context, const v1::TagRequest* request, v1::TagResponse* response) override;
  Unary* Evict(Context* context, const v1::EvictRequest* request,
               v1::EvictResponse* response) override;
  Unary* VerifyWorkers(Context* context, const v1::VerifyWorkersRequest* request,
                       v1::VerifyWorkersResponse* response) override;
  Unary* GetStatus(Context* context, const v1::GetStatusRequest* request,
                   v1::Status* response) override;
  Unary* GetVersion(Context* context, const v1::GetVersionRequest* request,
                    v1::Version* response) override;
  Unary* ListVersions(Context* context, const v1::ListVersionsRequest* request,
                      v1::ListVersionsResponse* response) override;
  Unary* ListMoves(Context* context, const v1::ListMovesRequest* request,
                   v1::ListMovesResponse* response) override;
  Unary* ListTags(Context* context, const v1::ListTagsRequest* request,
                  v1::ListTagsResponse* response) override;
  Unary* ListWorkers(Context* context, const v1::ListWorkersRequest* request,
                     v1::ListWorkersResponse* response) override;
  Unary* ListTransactions(Context* context, const v1::ListTransactionsRequest* request,
                          v1::ListTransactionsResponse* response) override;

  grpc::ServerBidiReactor<v1::PutRequest, v1::PutResponse>* Put(Context* context) override;
  grpc::ServerBidiReactor<v1::FromRank, v1::ToRank>* Attach(Context* context) override;
  grpc::ServerBidiReactor<v1::FromRoot, v1::ToRoot>* Lead(Context* context) override;
  grpc::ServerWriteReactor<v1::Head>* Watch(Context* context,
                                            const v1::WatchRequest* request) override;
  grpc::ServerWriteReactor<v1::ReadManifestResponse>* ReadManifest(
      Context* context, const v1::ReadManifestRequest* request) override;
  grpc::ServerWriteReactor<v1::ReadDenseResponse>* ReadDense(
      Context* context, const v1::ReadDenseRequest* request) override;
  grpc::ServerWriteReactor<v1::ReadDifferenceResponse>* ReadDifference(
      Context* context, const v1::ReadDifferenceRequest* request) override;
  grpc::ServerWriteReactor<v1::ReadContentResponse>* ReadContent(
      Context* context, const v1::ReadContentRequest* request) override;

  // For the streams.
  LiveStore& live() { return live_; }
  Fleet& fleet() { return fleet_; }
  const RpcLimits& limits() const { return limits_; }
  SerialExecutor& NextLane();
  void Log(const std::string& line) const;
  ServerFigures figures();
  std::string PeerOf(const Context& context) const { return peers_.Find(context.peer()); }
  v1::Head HeadNow() const;
  v1::Head HeadOf(const HeadState& state) const;
  // False: that many are open. The count goes down by Release.
  static bool Take(std::atomic<uint32_t>* count, uint32_t limit);
  void AddReader(SlowReader* reader);
  void RemoveReader(SlowReader* reader);

  std::atomic<uint32_t> content_streams{0};
  std::atomic<uint32_t> watches{0};
  std::atomic<uint32_t> ranks{0};
  std::atomic<uint32_t> puts{0};

 private:
  // Ends one unary call, once, and logs it.
  class Call;

  // What may block; refused if too much is waiting.
  void InLane(const std::shared_ptr<Call>& call, std::function<void()> task);
  void MoveCandidateFor(const std::shared_ptr<Call>& call, MoveCandidate move,
                        v1::Decision* response);
  Caller CallerOf(const Context& context, const std::string& actor) const;

  LiveStore& live_;
  Fleet& fleet_;
  const PeerNames& peers_;
  const RpcLimits limits_;
  const std::function<void(const std::string&)> log_;
  const int64_t started_micros_;
  std::vector<std::unique_ptr<SerialExecutor>> lanes_;
  std::atomic<uint32_t> next_lane_{0};
  std::mutex mutex_;
  std::set<SlowReader*> readers_;
};

}  // namespace wstore::service
