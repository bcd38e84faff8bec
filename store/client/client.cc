#include "wstore/client.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/parallel.h"
#include "common/status_macros.h"
#include "store/client/connection.h"
#include "store/client/difference.h"
#include "store/client/messages.h"
#include "store/client/sending.h"
#include "store/version/actor.h"

namespace wstore {
namespace {

using client::Connection;
using client::FromProto;
using client::Repeatable;
using Stub = v1::Store::Stub;

constexpr uint32_t kPageSize = 1000;

// A call that changes nothing, or the same when it is done twice.
template <typename Request, typename Response>
absl::Status CallUntilAnswered(const Connection& connection,
                               grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                            Response*),
                               const Request& request, Response* response, Deadline deadline) {
  return client::Retry(connection, deadline, [&] {
    return Repeatable(connection.Call(method, request, response, deadline));
  });
}

// All pages of a list, up to `limit` entries. `take` gets each page.
template <typename Request, typename Response, typename Take>
absl::Status ReadPages(const Connection& connection,
                       grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                    Response*),
                       size_t limit, Deadline deadline, const Take& take) {
  Request request;
  size_t count = 0;
  while (count < limit) {
    request.set_page_size(static_cast<uint32_t>(std::min<size_t>(kPageSize, limit - count)));
    Response response;
    RETURN_IF_ERROR(CallUntilAnswered(connection, method, request, &response, deadline));
    ASSIGN_OR_RETURN(const size_t taken, take(response));
    count += taken;
    if (response.next_page_token().empty()) break;
    if (taken == 0) return absl::DataLossError("the server sent an empty page of a list");
    request.set_page_token(response.next_page_token());
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<ServedHead> ConflictHead(const absl::Status& status) {
  const std::optional<v1::Head> head = client::HeadIn(status);
  if (!head) return std::nullopt;
  absl::StatusOr<ServedHead> served = FromProto(*head);
  return served.ok() ? std::optional<ServedHead>(*std::move(served)) : std::nullopt;
}

struct Client::Kept {
  // What the base is, read once.
  absl::StatusOr<client::ServedManifest> Read(const Connection& connection, Deadline deadline) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (base.manifest == nullptr) {
      ASSIGN_OR_RETURN(base, client::ReadManifest(connection, deadline));
    }
    return base;
  }

  std::mutex mutex;
  client::ServedManifest base;
};

Client::Client(std::shared_ptr<Connection> connection, std::string actor)
    : connection_(std::move(connection)),
      actor_(std::move(actor)),
      kept_(std::make_unique<Kept>()) {}
Client::~Client() = default;

absl::StatusOr<std::shared_ptr<Client>> Client::Connect(const ConnectOptions& options,
                                                        const std::string& actor) {
  ASSIGN_OR_RETURN(std::shared_ptr<Connection> connection, Connection::Open(options));
  return std::shared_ptr<Client>(
      new Client(std::move(connection), actor.empty() ? DefaultActor() : actor));
}

const std::string& Client::address() const { return connection_->address(); }

absl::Status Client::WaitUntilConnected(Deadline deadline) const {
  return connection_->WaitUntilConnected(deadline);
}

absl::StatusOr<ServerStatus> Client::Status(Deadline deadline) const {
  v1::Status status;
  RETURN_IF_ERROR(
      CallUntilAnswered(*connection_, &Stub::GetStatus, v1::GetStatusRequest(), &status, deadline));
  return FromProto(status);
}

absl::StatusOr<ServedHead> Client::Head(Deadline deadline) const {
  ASSIGN_OR_RETURN(ServerStatus status, Status(deadline));
  return std::move(status.head);
}

absl::StatusOr<VersionInfo> Client::Version(const std::string& name, Deadline deadline) const {
  return client::GetVersion(*connection_, name, deadline);
}

absl::StatusOr<std::vector<VersionInfo>> Client::Versions(size_t limit, Deadline deadline) const {
  std::vector<VersionInfo> versions;
  const auto take = [&](const v1::ListVersionsResponse& page) -> absl::StatusOr<size_t> {
    for (const v1::Version& version : page.versions()) {
      ASSIGN_OR_RETURN(VersionInfo info, FromProto(version));
      versions.push_back(std::move(info));
    }
    return page.versions_size();
  };
  RETURN_IF_ERROR((ReadPages<v1::ListVersionsRequest, v1::ListVersionsResponse>(
      *connection_, &Stub::ListVersions, limit, deadline, take)));
  return versions;
}

absl::StatusOr<std::vector<MoveInfo>> Client::Moves(size_t limit, Deadline deadline) const {
  std::vector<MoveInfo> moves;
  const auto take = [&](const v1::ListMovesResponse& page) -> absl::StatusOr<size_t> {
    for (const v1::MoveEntry& move : page.moves()) moves.push_back(FromProto(move));
    return page.moves_size();
  };
  RETURN_IF_ERROR((ReadPages<v1::ListMovesRequest, v1::ListMovesResponse>(
      *connection_, &Stub::ListMoves, limit, deadline, take)));
  return moves;
}

absl::StatusOr<std::vector<TagInfo>> Client::Tags(Deadline deadline) const {
  v1::ListTagsResponse response;
  RETURN_IF_ERROR(
      CallUntilAnswered(*connection_, &Stub::ListTags, v1::ListTagsRequest(), &response, deadline));
  std::vector<TagInfo> tags;
  for (const v1::TagEntry& tag : response.tags()) tags.push_back(FromProto(tag));
  return tags;
}

absl::StatusOr<std::vector<WorkerInfo>> Client::Workers(Deadline deadline) const {
  std::vector<WorkerInfo> workers;
  const auto take = [&](const v1::ListWorkersResponse& page) -> absl::StatusOr<size_t> {
    for (const v1::Worker& worker : page.workers()) workers.push_back(FromProto(worker));
    return page.workers_size();
  };
  RETURN_IF_ERROR((ReadPages<v1::ListWorkersRequest, v1::ListWorkersResponse>(
      *connection_, &Stub::ListWorkers, SIZE_MAX, deadline, take)));
  return workers;
}

absl::StatusOr<std::vector<OpenTransaction>> Client::Transactions(Deadline deadline) const {
  v1::ListTransactionsResponse response;
  RETURN_IF_ERROR(CallUntilAnswered(*connection_, &Stub::ListTransactions,
                                    v1::ListTransactionsRequest(), &response, deadline));
  std::vector<OpenTransaction> transactions;
  for (const v1::TransactionEntry& entry : response.transactions()) {
    transactions.push_back(FromProto(entry));
  }
  return transactions;
}

absl::StatusOr<std::vector<WorkerCheck>> Client::VerifyWorkers(Deadline deadline) const {
  v1::VerifyWorkersResponse response;
  RETURN_IF_ERROR(CallUntilAnswered(*connection_, &Stub::VerifyWorkers, v1::VerifyWorkersRequest(),
                                    &response, deadline));
  std::vector<WorkerCheck> checks;
  for (const v1::WorkerAudit& audit : response.audits()) checks.push_back(FromProto(audit));
  return checks;
}

absl::StatusOr<Decision> Client::Ask(const std::string& id, Deadline deadline) const {
  v1::AskRequest request;
  request.set_id(id);
  v1::Decision decision;
  RETURN_IF_ERROR(CallUntilAnswered(*connection_, &Stub::Ask, request, &decision, deadline));
  return FromProto(decision, id);
}

absl::Status Client::Follow(const std::function<bool(const ServedHead&)>& changed,
                            Deadline deadline) const {
  return client::Retry(*connection_, deadline, [&]() -> absl::Status {
    RETURN_IF_ERROR(connection_->CheckProcess());
    grpc::ClientContext context;
    Connection::SetDeadline(&context, deadline);
    const auto stream = connection_->stub().Watch(&context, v1::WatchRequest());
    v1::Head message;
    while (stream->Read(&message)) {
      const absl::StatusOr<ServedHead> head = FromProto(message);
      if (head.ok() && changed(*head)) continue;
      context.TryCancel();
      static_cast<void>(stream->Finish());
      return head.status();
    }
    const absl::Status ended = connection_->FromGrpc(stream->Finish());
    return ended.ok() ? absl::UnavailableError("the server ended the watch") : Repeatable(ended);
  });
}

absl::StatusOr<ServedHead> Client::WaitForHead(VersionId version, Deadline deadline) const {
  ServedHead last;
  const auto is_other = [&](const ServedHead& head) {
    last = head;
    return head.head.version != version;
  };
  const absl::Status status = Follow(is_other, deadline);
  if (status.ok()) return last;
  return Prefixed(status, absl::StrCat("waiting for ", ToString(version), " to be head, which was ",
                                       ToString(last.head.version), " when last heard of"));
}

absl::StatusOr<Decision> Client::Rollback(const MoveOptions& options, Deadline deadline) {
  v1::RollbackRequest request;
  request.set_id(client::IdOrRandom(options.transaction_id));
  request.set_version(options.version);
  request.set_message(options.message);
  request.set_force(options.force);
  request.set_actor(actor_);
  request.set_dry_run(options.dry_run);
  if (options.dry_run) {
    v1::Decision decision;
    RETURN_IF_ERROR(CallUntilAnswered(*connection_, &Stub::Rollback, request, &decision, deadline));
    return FromProto(decision, "");
  }
  return client::Decide(*connection_, request.id(), deadline, [&](v1::Decision* decision) {
    return connection_->Call(&Stub::Rollback, request, decision, deadline);
  });
}

absl::StatusOr<Decision> Client::Promote(const MoveOptions& options, Deadline deadline) {
  v1::PromoteRequest request;
  request.set_id(client::IdOrRandom(options.transaction_id));
  request.set_version(options.version);
  request.set_actor(actor_);
  return client::Decide(*connection_, request.id(), deadline, [&](v1::Decision* decision) {
    return connection_->Call(&Stub::Promote, request, decision, deadline);
  });
}

absl::StatusOr<Decision> Client::Rollout(const MoveOptions& options,
                                         const std::vector<std::string>& instances,
                                         Deadline deadline) {
  v1::RolloutRequest request;
  request.set_id(client::IdOrRandom(options.transaction_id));
  request.set_version(options.version);
  request.mutable_instances()->Assign(instances.begin(), instances.end());
  request.set_message(options.message);
  request.set_actor(actor_);
  return client::Decide(*connection_, request.id(), deadline, [&](v1::Decision* decision) {
    return connection_->Call(&Stub::Rollout, request, decision, deadline);
  });
}

absl::StatusOr<Decision> Client::Revert(const MoveOptions& options, Deadline deadline) {
  v1::RevertRequest request;
  request.set_id(client::IdOrRandom(options.transaction_id));
  request.set_message(options.message);
  request.set_actor(actor_);
  return client::Decide(*connection_, request.id(), deadline, [&](v1::Decision* decision) {
    return connection_->Call(&Stub::Revert, request, decision, deadline);
  });
}

absl::StatusOr<ServedHead> Client::SetHold(bool hold, const std::string& reason,
                                           Deadline deadline) {
  v1::SetHoldRequest request;
  request.set_hold(hold);
  request.set_reason(reason);
  request.set_actor(actor_);
  v1::SetHoldResponse response;
  RETURN_IF_ERROR(CallUntilAnswered(*connection_, &Stub::SetHold, request, &response, deadline));
  return FromProto(response.head());
}

absl::Status Client::Mark(const std::string& version, bool bad, const std::string& reason,
                          Deadline deadline) {
  v1::MarkRequest request;
  request.set_version(version);
  request.set_bad(bad);
  request.set_reason(reason);
  request.set_actor(actor_);
  v1::MarkResponse response;
  return CallUntilAnswered(*connection_, &Stub::Mark, request, &response, deadline);
}

absl::Status Client::Tag(const std::string& name, const std::string& version, Deadline deadline) {
  v1::TagRequest request;
  request.set_name(name);
  request.set_version(version);
  request.set_actor(actor_);
  v1::TagResponse response;
  return CallUntilAnswered(*connection_, &Stub::Tag, request, &response, deadline);
}

absl::Status Client::Evict(const std::string& instance, Deadline deadline) {
  v1::EvictRequest request;
  request.set_instance(instance);
  request.set_actor(actor_);
  v1::EvictResponse response;
  return CallUntilAnswered(*connection_, &Stub::Evict, request, &response, deadline);
}

absl::Status Client::Abort(const std::string& id, const std::string& reason, Deadline deadline) {
  v1::AbortRequest request;
  request.set_id(id);
  request.set_reason(reason);
  v1::AbortResponse response;
  return CallUntilAnswered(*connection_, &Stub::Abort, request, &response, deadline);
}

absl::StatusOr<std::shared_ptr<const Manifest>> Client::ReadManifest(Deadline deadline) const {
  ASSIGN_OR_RETURN(client::ServedManifest base, kept_->Read(*connection_, deadline));
  return std::move(base.manifest);
}

absl::StatusOr<Digest> Client::BaseDigest(Deadline deadline) const {
  ASSIGN_OR_RETURN(const client::ServedManifest base, kept_->Read(*connection_, deadline));
  return base.base_digest;
}

absl::StatusOr<std::unique_ptr<DenseSource>> Client::ReadDense(VersionId version,
                                                               Deadline deadline) const {
  ASSIGN_OR_RETURN(std::shared_ptr<const Manifest> manifest, ReadManifest(deadline));
  ASSIGN_OR_RETURN(const VersionInfo info, Version(ToString(version), deadline));
  return client::MakeServedDense(*connection_, std::move(manifest), info, deadline);
}

absl::StatusOr<ServedDifference> Client::ReadDifference(VersionId from, VersionId to,
                                                        Deadline deadline) const {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> manifest, ReadManifest(deadline));
  ASSIGN_OR_RETURN(const VersionInfo from_info, Version(ToString(from), deadline));
  ASSIGN_OR_RETURN(const VersionInfo to_info, Version(ToString(to), deadline));
  ASSIGN_OR_RETURN(client::EncodedSet set,
                   client::ReadDifference(*connection_, *manifest, from_info, to_info, deadline));
  ServedDifference difference;
  difference.info.patch_digest = set.digest;
  difference.info.elements = set.elements;
  difference.info.touched = *std::exchange(set.touched, std::nullopt);
  difference.patches = std::make_unique<client::EncodedSource>(*manifest, std::move(set));
  return difference;
}

}  // namespace wstore
