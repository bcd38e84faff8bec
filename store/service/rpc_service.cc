// Calls that publish or look, with one request and one response.
#include "store/service/rpc_service.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <chrono>
#include <future>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/service/rpc_call.h"

namespace wstore::service {
namespace {

constexpr size_t kLaneTasks = 4096;
// What is known by then is answered before the deadline.
constexpr auto kAnswerBefore = std::chrono::milliseconds(500);
constexpr auto kFiguresWait = std::chrono::seconds(2);

}  // namespace

void PeerNames::Set(const std::string& connection, std::string name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  names_[connection] = std::move(name);
}

std::string PeerNames::Find(const std::string& connection) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = names_.find(connection);
  return found != names_.end() ? found->second : connection;
}

RpcService::RpcService(LiveStore& live, Fleet& fleet, const PeerNames& peers,
                       const RpcLimits& limits, std::function<void(const std::string&)> log)
    : live_(live),
      fleet_(fleet),
      peers_(peers),
      limits_(limits),
      log_(std::move(log)),
      started_micros_(SystemClock().NowMonotonicMicros()) {
  for (int i = 0; i < limits.lanes; ++i) {
    lanes_.push_back(std::make_unique<SerialExecutor>(SystemClock(), kLaneTasks));
  }
}

RpcService::~RpcService() { Stop(); }

void RpcService::Stop() {
  for (const auto& lane : lanes_) lane->Stop();
}

SerialExecutor& RpcService::NextLane() { return *lanes_[next_lane_++ % lanes_.size()]; }

void RpcService::InLane(const std::shared_ptr<Call>& call, std::function<void()> task) {
  if (!NextLane().TryPost(std::move(task))) {
    call->Finish(absl::UnavailableError("too many requests are waiting; try again"));
  }
}

void RpcService::Log(const std::string& line) const {
  if (log_) log_(line);
}

bool RpcService::Take(std::atomic<uint32_t>* count, uint32_t limit) {
  if (count->fetch_add(1) < limit) return true;
  count->fetch_sub(1);
  return false;
}

void RpcService::AddReader(SlowReader* reader) {
  const std::lock_guard<std::mutex> lock(mutex_);
  readers_.insert(reader);
}

void RpcService::RemoveReader(SlowReader* reader) {
  const std::lock_guard<std::mutex> lock(mutex_);
  readers_.erase(reader);
}

void RpcService::DropSlowReaders() {
  const int64_t since = SystemClock().NowMonotonicMicros() - limits_.slow_reader_micros;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (SlowReader* const reader : readers_) reader->CancelIfIdle(since);
}

v1::Head RpcService::HeadOf(const HeadState& state) const {
  const std::string word = state.hold ? "hold" : "ok";
  return ToProto(state, live_.fingerprint_key().base_digest(), StateWord(state, word));
}

v1::Head RpcService::HeadNow() const { return HeadOf(fleet_.head()); }

Caller RpcService::CallerOf(const Context& context, const std::string& actor) const {
  const std::string peer = PeerOf(context);
  return {actor.empty() ? peer : actor.substr(0, 256), peer};
}

RpcService::Unary* RpcService::Begin(Context* context, const v1::BeginRequest* request,
                                     v1::BeginResponse* response) {
  auto call = std::make_shared<Call>(*this, context, "Begin");
  absl::StatusOr<BeginPublish> begin = FromProto(*request);
  if (!begin.ok()) call->Finish(begin.status());
  if (call->finished()) return call->reactor();
  begin->caller = CallerOf(*context, request->actor());
  fleet_.Begin(*std::move(begin), [this, call, response](const FleetAnswer& answer) {
    if (answer.kind == protocol::AnswerKind::kRepeated) {
      *response->mutable_repeated() = ToProto(answer, HeadOf(answer.head));
    } else if (answer.status.ok()) {
      response->set_transaction(answer.transaction.value());
      response->set_version(answer.to.version.value());
      response->set_move(answer.to.move.value());
      *response->mutable_parent() = ToProto(answer.parent.version, answer.parent.chain_digest);
      response->set_parent_move(answer.parent.move.value());
    }
    call->Finish(answer.status);
  });
  return call->reactor();
}

RpcService::Unary* RpcService::Commit(Context* context, const v1::CommitRequest* request,
                                      v1::Decision* response) {
  auto call = std::make_shared<Call>(*this, context, "Commit");
  if (call->finished()) return call->reactor();
  const TransactionNumber transaction(request->transaction());
  const uint32_t contributor = request->contributor();
  const auto take = [this, request, transaction, contributor]() -> absl::Status {
    ASSIGN_OR_RETURN(ContributorSummary summary, FromProto(*request));
    ASSIGN_OR_RETURN(const std::shared_ptr<StagedContent> content, live_.FindContent(transaction));
    for (int i = 0; i < request->content_size(); ++i) {
      RETURN_IF_ERROR(content->Put(contributor, static_cast<uint64_t>(i), request->content(i)));
    }
    return request->content_follows() ? content->Declare(contributor, std::move(summary))
                                      : content->Finish(contributor, std::move(summary));
  };
  const auto commit = [this, call, request, response, transaction, contributor, take] {
    const absl::Status taken = take();
    if (!taken.ok() || request->no_wait()) {
      if (taken.ok()) fleet_.ContentStaged(transaction, contributor);
      return call->Finish(taken);
    }
    // The wait begins before the content counts, so that no decision comes in between.
    fleet_.AwaitTransaction(transaction, [this, call, response](const FleetAnswer& answer) {
      if (answer.status.ok()) *response = ToProto(answer, HeadOf(answer.head));
      call->Finish(answer.status);
    });
    fleet_.ContentStaged(transaction, contributor);
  };
  // Content is written to a file.
  request->content().empty() ? commit() : InLane(call, commit);
  return call->reactor();
}

RpcService::Unary* RpcService::Abort(Context* context, const v1::AbortRequest* request,
                                     v1::AbortResponse*) {
  auto call = std::make_shared<Call>(*this, context, "Abort");
  if (call->finished()) return call->reactor();
  const absl::Status text = CheckText("reason", request->reason(), kMaxTextBytes);
  if (!text.ok()) {
    call->Finish(text);
    return call->reactor();
  }
  fleet_.Abort(request->id(), request->reason(),
               [call](const absl::Status& status) { call->Finish(status); });
  return call->reactor();
}

RpcService::Unary* RpcService::Ask(Context* context, const v1::AskRequest* request,
                                   v1::Decision* response) {
  auto call = std::make_shared<Call>(*this, context, "Ask");
  if (call->finished()) return call->reactor();
  fleet_.Await(request->id(), [this, call, response](const FleetAnswer& answer) {
    if (answer.status.ok()) *response = ToProto(answer, HeadOf(answer.head));
    call->Finish(answer.status);
  });
  return call->reactor();
}

RpcService::Unary* RpcService::VerifyWorkers(Context* context, const v1::VerifyWorkersRequest*,
                                             v1::VerifyWorkersResponse* response) {
  auto call = std::make_shared<Call>(*this, context, "VerifyWorkers");
  if (call->finished()) return call->reactor();
  // The alarm goes off once, cancelled or not, before the service does: `done` is always called. An
  // alarm keeps its callback, so that must not hold the alarm.
  const auto alarm = std::make_shared<grpc::Alarm>();
  const auto number = std::make_shared<std::atomic<uint64_t>>(0);
  const auto is_late = std::make_shared<std::atomic<bool>>(false);
  alarm->Set(context->deadline() - kAnswerBefore, [this, number, is_late](bool in_time) {
    is_late->store(in_time);
    if (in_time) fleet_.EndVerification(number->load());
  });
  number->store(
      fleet_.VerifyWorkers([call, response, alarm](const std::vector<WorkerAudit>& audits) {
        for (const WorkerAudit& audit : audits) *response->add_audits() = ToProto(audit);
        alarm->Cancel();
        call->Finish(absl::OkStatus());
      }));
  if (is_late->load()) fleet_.EndVerification(number->load());
  return call->reactor();
}

RpcService::Unary* RpcService::GetStatus(Context* context, const v1::GetStatusRequest*,
                                         v1::Status* response) {
  auto call = std::make_shared<Call>(*this, context, "GetStatus");
  if (call->finished()) return call->reactor();
  InLane(call, [this, call, response] {
    const HeadState head = fleet_.head();
    const std::shared_ptr<wstore::Store> store = live_.store();
    if (store == nullptr) return call->Finish(Reopening());
    const StoreStatus status = store->status();
    const std::string word = StateWord(head, status.state);
    *response->mutable_head() = ToProto(head, status.base.digest, word);
    response->set_state(word);
    response->set_detail(status.detail);
    response->set_base_path(status.base.path);
    response->set_base_tensors(status.base.tensors);
    response->set_base_elements(status.base.elements);
    response->set_base_bytes(status.base.size_bytes);
    response->set_journal_bytes(status.journal_bytes);
    response->set_versions(status.versions);
    if (status.hold) *response->mutable_hold() = ToProto(*status.hold);
    response->set_instances(static_cast<uint32_t>(head.instances));
    response->set_uptime_micros(SystemClock().NowMonotonicMicros() - started_micros_);
    call->Finish(absl::OkStatus());
  });
  return call->reactor();
}

ServerFigures RpcService::figures() {
  ServerFigures figures;
  figures.head = fleet_.head();
  if (const std::shared_ptr<wstore::Store> store = live_.store(); store != nullptr) {
    const StoreStatus status = store->status();
    figures.state = StateWord(figures.head, status.state);
    figures.versions = status.versions;
    figures.journal_bytes = status.journal_bytes;
  } else {
    figures.state = "recovering";
  }
  figures.content_streams = content_streams;
  figures.watches = watches;
  figures.puts = puts;
  figures.ranks = ranks;
  figures.uptime_micros = SystemClock().NowMonotonicMicros() - started_micros_;
  auto rows = std::make_shared<std::promise<std::vector<WorkerRow>>>();
  std::future<std::vector<WorkerRow>> got = rows->get_future();
  fleet_.ListWorkers(
      [rows](std::vector<WorkerRow> workers) { rows->set_value(std::move(workers)); });
  // What has not come is missing: a scrape must not wait for a server that ends.
  if (got.wait_for(kFiguresWait) == std::future_status::ready) figures.workers = got.get();
  return figures;
}

RpcService::Unary* RpcService::GetVersion(Context* context, const v1::GetVersionRequest* request,
                                          v1::Version* response) {
  auto call = std::make_shared<Call>(*this, context, "GetVersion");
  if (call->finished()) return call->reactor();
  const auto get = [&]() -> absl::Status {
    const std::shared_ptr<wstore::Store> store = live_.store();
    if (store == nullptr) return Reopening();
    ASSIGN_OR_RETURN(const VersionId version, store->Resolve(request->version()));
    ASSIGN_OR_RETURN(const VersionInfo info, store->version(version));
    *response = ToProto(info, store->head().version);
    return absl::OkStatus();
  };
  call->Finish(get());
  return call->reactor();
}

RpcService::Unary* RpcService::ListVersions(Context* context,
                                            const v1::ListVersionsRequest* request,
                                            v1::ListVersionsResponse* response) {
  auto call = std::make_shared<Call>(*this, context, "ListVersions");
  if (call->finished()) return call->reactor();
  InLane(call, [this, call, request, response] {
    const auto list = [&]() -> absl::Status {
      const std::shared_ptr<wstore::Store> store = live_.store();
      if (store == nullptr) return Reopening();
      const size_t all = live_.CountVersions();
      ASSIGN_OR_RETURN(const Page page, PageOf(all, request->page_size(), request->page_token()));
      const VersionId head = store->head().version;
      for (const VersionInfo& version : live_.LatestVersions(all, page.begin, page.end)) {
        *response->add_versions() = ToProto(version, head);
      }
      response->set_next_page_token(page.next_token);
      return absl::OkStatus();
    };
    call->Finish(list());
  });
  return call->reactor();
}

RpcService::Unary* RpcService::ListMoves(Context* context, const v1::ListMovesRequest* request,
                                         v1::ListMovesResponse* response) {
  auto call = std::make_shared<Call>(*this, context, "ListMoves");
  if (call->finished()) return call->reactor();
  InLane(call, [this, call, request, response] {
    const auto list = [&]() -> absl::Status {
      const std::shared_ptr<wstore::Store> store = live_.store();
      if (store == nullptr) return Reopening();
      const size_t all = live_.CountMoves();
      ASSIGN_OR_RETURN(const Page page, PageOf(all, request->page_size(), request->page_token()));
      for (const MoveInfo& move : live_.LatestMoves(all, page.begin, page.end)) {
        *response->add_moves() = ToProto(move);
      }
      response->set_next_page_token(page.next_token);
      return absl::OkStatus();
    };
    call->Finish(list());
  });
  return call->reactor();
}

RpcService::Unary* RpcService::ListTags(Context* context, const v1::ListTagsRequest*,
                                        v1::ListTagsResponse* response) {
  auto call = std::make_shared<Call>(*this, context, "ListTags");
  if (call->finished()) return call->reactor();
  const std::shared_ptr<wstore::Store> store = live_.store();
  if (store != nullptr) {
    for (const TagInfo& tag : store->tags()) {
      v1::TagEntry* const entry = response->add_tags();
      entry->set_name(tag.name);
      entry->set_version(tag.version.value());
      entry->set_actor(tag.actor);
      entry->set_created_unix_micros(tag.created_unix_micros);
    }
  }
  call->Finish(store != nullptr ? absl::OkStatus() : Reopening());
  return call->reactor();
}

RpcService::Unary* RpcService::ListWorkers(Context* context, const v1::ListWorkersRequest* request,
                                           v1::ListWorkersResponse* response) {
  auto call = std::make_shared<Call>(*this, context, "ListWorkers");
  if (call->finished()) return call->reactor();
  fleet_.ListWorkers([this, call, request, response](const std::vector<WorkerRow>& rows) {
    const absl::StatusOr<Page> page =
        PageOf(rows.size(), request->page_size(), request->page_token());
    if (page.ok()) {
      const MoveNumber head = fleet_.head().head.move;
      for (size_t i = page->begin; i < page->end; ++i) {
        *response->add_workers() = ToProto(rows[i], head);
      }
      response->set_next_page_token(page->next_token);
    }
    call->Finish(page.status());
  });
  return call->reactor();
}

RpcService::Unary* RpcService::ListTransactions(Context* context,
                                                const v1::ListTransactionsRequest*,
                                                v1::ListTransactionsResponse* response) {
  auto call = std::make_shared<Call>(*this, context, "ListTransactions");
  if (call->finished()) return call->reactor();
  fleet_.ListTransactions([this, call, response](const std::vector<TransactionRow>& rows) {
    for (const TransactionRow& row : rows) {
      v1::TransactionEntry* const entry = response->add_transactions();
      *entry = ToProto(row);
      const auto content = live_.FindContent(row.transaction);
      if (content.ok()) entry->set_staged_bytes((*content)->size_bytes());
    }
    call->Finish(absl::OkStatus());
  });
  return call->reactor();
}

}  // namespace wstore::service
