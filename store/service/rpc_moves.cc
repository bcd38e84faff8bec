// Calls that move head, mark versions, or take instances out.
#include <memory>
#include <utility>

#include "common/status_macros.h"
#include "store/service/rpc_call.h"

namespace wstore::service {

RpcService::Unary* RpcService::Rollback(Context* context, const v1::RollbackRequest* request,
                                        v1::Decision* response) {
  auto call = std::make_shared<Call>(*this, context, "Rollback");
  if (call->finished()) return call->reactor();
  if (const absl::Status text = CheckText("message", request->message(), kMaxTextBytes);
      !text.ok()) {
    call->Finish(text);
    return call->reactor();
  }
  if (request->dry_run()) {
    const std::shared_ptr<wstore::Store> store = live_.store();
    absl::StatusOr<VersionId> to = Reopening();
    if (store != nullptr) to = store->Resolve(request->version());
    if (to.ok()) {
      FleetAnswer answer;
      answer.kind = protocol::AnswerKind::kUnchanged;
      answer.to.version = *to;
      answer.to.chain_digest = store->version(*to)->chain_digest;
      *response = ToProto(answer, HeadNow());
    }
    call->Finish(to.status());
    return call->reactor();
  }
  fleet_.Rollback({request->id(), request->version(), request->message(), request->force(),
                   CallerOf(*context, request->actor())},
                  [this, call, response](const FleetAnswer& answer) {
                    if (answer.status.ok()) *response = ToProto(answer, HeadOf(answer.head));
                    call->Finish(answer.status);
                  });
  return call->reactor();
}

void RpcService::MoveCandidateFor(const std::shared_ptr<Call>& call, MoveCandidate move,
                                  v1::Decision* response) {
  const absl::Status text = CheckText("message", move.message, kMaxTextBytes);
  if (!text.ok()) call->Finish(text);
  if (call->finished()) return;
  fleet_.Move(std::move(move), [this, call, response](const FleetAnswer& answer) {
    if (answer.status.ok()) *response = ToProto(answer, HeadOf(answer.head));
    call->Finish(answer.status);
  });
}

RpcService::Unary* RpcService::Promote(Context* context, const v1::PromoteRequest* request,
                                       v1::Decision* response) {
  auto call = std::make_shared<Call>(*this, context, "Promote");
  MoveCandidateFor(call,
                   {protocol::TransactionKind::kPromote,
                    request->id(),
                    request->version(),
                    {},
                    "",
                    CallerOf(*context, request->actor())},
                   response);
  return call->reactor();
}

RpcService::Unary* RpcService::Rollout(Context* context, const v1::RolloutRequest* request,
                                       v1::Decision* response) {
  auto call = std::make_shared<Call>(*this, context, "Rollout");
  MoveCandidateFor(call,
                   {protocol::TransactionKind::kRollout,
                    request->id(),
                    request->version(),
                    {request->instances().begin(), request->instances().end()},
                    request->message(),
                    CallerOf(*context, request->actor())},
                   response);
  return call->reactor();
}

RpcService::Unary* RpcService::Revert(Context* context, const v1::RevertRequest* request,
                                      v1::Decision* response) {
  auto call = std::make_shared<Call>(*this, context, "Revert");
  MoveCandidateFor(call,
                   {protocol::TransactionKind::kRevert,
                    request->id(),
                    "",
                    {},
                    request->message(),
                    CallerOf(*context, request->actor())},
                   response);
  return call->reactor();
}

RpcService::Unary* RpcService::SetHold(Context* context, const v1::SetHoldRequest* request,
                                       v1::SetHoldResponse* response) {
  auto call = std::make_shared<Call>(*this, context, "SetHold");
  if (call->finished()) return call->reactor();
  if (const absl::Status text = CheckText("reason", request->reason(), kMaxTextBytes); !text.ok()) {
    call->Finish(text);
    return call->reactor();
  }
  fleet_.SetHold(request->hold(), request->reason(), CallerOf(*context, request->actor()),
                 [this, call, response](const absl::Status& status) {
                   *response->mutable_head() = HeadNow();
                   call->Finish(status);
                 });
  return call->reactor();
}

RpcService::Unary* RpcService::Mark(Context* context, const v1::MarkRequest* request,
                                    v1::MarkResponse*) {
  auto call = std::make_shared<Call>(*this, context, "Mark");
  if (call->finished()) return call->reactor();
  const Caller caller = CallerOf(*context, request->actor());
  InLane(call, [this, call, request, caller] {
    const auto mark = [&]() -> absl::Status {
      RETURN_IF_ERROR(CheckText("reason", request->reason(), kMaxTextBytes));
      const std::shared_ptr<wstore::Store> store = live_.store();
      if (store == nullptr) return Reopening();
      ASSIGN_OR_RETURN(const VersionId version, store->Resolve(request->version()));
      return live_.SetMark(version, request->bad(), request->reason(), caller);
    };
    const absl::Status status = mark();
    if (absl::IsUnknown(status)) fleet_.CheckJournal();
    call->Finish(status);
  });
  return call->reactor();
}

RpcService::Unary* RpcService::Tag(Context* context, const v1::TagRequest* request,
                                   v1::TagResponse*) {
  auto call = std::make_shared<Call>(*this, context, "Tag");
  if (call->finished()) return call->reactor();
  const Caller caller = CallerOf(*context, request->actor());
  InLane(call, [this, call, request, caller] {
    const auto tag = [&]() -> absl::Status {
      const std::shared_ptr<wstore::Store> store = live_.store();
      if (store == nullptr) return Reopening();
      ASSIGN_OR_RETURN(const VersionId version, store->Resolve(request->version()));
      return live_.SetTag(request->name(), version, caller);
    };
    const absl::Status status = tag();
    if (absl::IsUnknown(status)) fleet_.CheckJournal();
    call->Finish(status);
  });
  return call->reactor();
}

RpcService::Unary* RpcService::Evict(Context* context, const v1::EvictRequest* request,
                                     v1::EvictResponse*) {
  auto call = std::make_shared<Call>(*this, context, "Evict");
  if (call->finished()) return call->reactor();
  fleet_.Evict(request->instance(), [call](const absl::Status& status) { call->Finish(status); });
  return call->reactor();
}

}  // namespace wstore::service
