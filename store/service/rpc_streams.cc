// Calls that stream.
#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/client/transfer_messages.h"
#include "store/service/reactors.h"
#include "store/service/rpc_content.h"
#include "store/service/rpc_service.h"
#include "wstore/layout_file.h"

namespace wstore::service {
namespace {

constexpr size_t kMaxLayoutBytes = 16 << 20;
constexpr size_t kSmallMessageBytes = 4 << 10;

// One contributor's chunks. One message at a time is read, and handled in a lane before the next;
// answers are gathered while one is on its way.
class PutReactor final : public grpc::ServerBidiReactor<v1::PutRequest, v1::PutResponse>,
                         public SelfOwned<PutReactor> {
 public:
  PutReactor(RpcService& service, RpcService::Context* context)
      : service_(service),
        lane_(service.NextLane()),
        peer_(service.PeerOf(*context)),
        has_deadline_(HasDeadline(*context)) {}

  void Begin() {
    counted_ = RpcService::Take(&service_.puts, service_.limits().max_puts);
    if (!counted_) return Close(TooMany("puts", service_.limits().max_puts));
    if (!has_deadline_) return Close(NoDeadline());
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Close(absl::OkStatus());
    const bool taken = lane_.Post([this, self = self_] {
      const absl::Status status = Handle();
      if (!status.ok()) return Close(status);
      Acknowledge();
      StartRead(&request_);
    });
    if (!taken) Close(absl::UnavailableError("the server is stopping"));
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    if (ok && sent_ < next_) return WriteNow();
    if (closing_) FinishNow();
  }

  void OnDone() override {
    if (counted_) service_.puts.fetch_sub(1);
    const std::shared_ptr<PutReactor> self = std::move(self_);
  }

 private:
  absl::Status Handle() {
    if (content_ == nullptr) {
      transaction_ = TransactionNumber(request_.transaction());
      contributor_ = request_.contributor();
      ASSIGN_OR_RETURN(content_, service_.live().FindContent(transaction_));
      RETURN_IF_ERROR(content_->next_sequence(contributor_).status());
    }
    RETURN_IF_ERROR(service_.live().FindContent(transaction_).status());
    if (request_.chunk().empty()) return absl::OkStatus();
    RETURN_IF_ERROR(content_->Put(contributor_, request_.sequence(), request_.chunk()));
    if (content_->is_whole(contributor_))
      service_.fleet().ContentStaged(transaction_, contributor_);
    return absl::OkStatus();
  }

  void Acknowledge() {
    const std::lock_guard<std::mutex> lock(mutex_);
    next_ = *content_->next_sequence(contributor_);
    if (!writing_ && (first_ || sent_ < next_)) WriteNow();
  }

  void WriteNow() {
    first_ = false;
    writing_ = true;
    sent_ = next_;
    response_.set_next_sequence(sent_);
    StartWrite(&response_);
  }

  void Close(const absl::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) return;
    closing_ = true;
    status_ = status;
    if (!writing_) FinishNow();
  }

  void FinishNow() {
    service_.Log(absl::StrCat("level=info event=put peer=\"", peer_, "\" transaction=",
                              transaction_.value(), " contributor=", contributor_,
                              " chunks=", next_, " code=", static_cast<int>(status_.code())));
    Finish(ToGrpc(status_));
  }

  RpcService& service_;
  SerialExecutor& lane_;
  const std::string peer_;
  const bool has_deadline_;
  bool counted_ = false;
  v1::PutRequest request_;
  TransactionNumber transaction_;
  uint32_t contributor_ = 0;
  std::shared_ptr<StagedContent> content_;

  std::mutex mutex_;  // guards what follows
  v1::PutResponse response_;
  uint64_t next_ = 0;
  uint64_t sent_ = 0;
  bool first_ = true;
  bool writing_ = false;
  bool closing_ = false;
  absl::Status status_;
};

// Sends what a producer makes, as the reader takes it: one message is on its way while the next is
// made in a lane, and no more.
template <typename Response>
class ContentReactor final : public grpc::ServerWriteReactor<Response>,
                             public SelfOwned<ContentReactor<Response>>,
                             private SlowReader {
 public:
  ContentReactor(RpcService& service, RpcService::Context* context, const char* method,
                 absl::StatusOr<std::unique_ptr<Producer<Response>>> producer)
      : service_(service),
        lane_(service.NextLane()),
        context_(context),
        method_(method),
        peer_(service.PeerOf(*context)),
        producer_(std::move(producer)) {}

  void Begin() {
    service_.AddReader(this);
    counted_ = RpcService::Take(&service_.content_streams, service_.limits().max_content_streams);
    if (counted_ && producer_.ok()) (*producer_)->CallWhenReady([this] { Wake(); });
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!counted_) {
      return End(TooMany("content streams", service_.limits().max_content_streams));
    }
    if (!HasDeadline(*context_)) return End(NoDeadline());
    if (!producer_.ok()) return End(producer_.status());
    Schedule();
  }

  void OnCancel() override { Wake(); }

  void OnWriteDone(bool ok) override {
    waiting_since_ = INT64_MAX;
    const std::lock_guard<std::mutex> lock(mutex_);
    is_writing_ = false;
    if (has_ended_) return;
    if (!ok) return End(absl::CancelledError("the reader has gone"));
    if (made_as_) SendMade();
  }

  void OnDone() override {
    service_.RemoveReader(this);
    if (counted_) service_.content_streams.fetch_sub(1);
    const std::shared_ptr<ContentReactor> self = std::move(this->self_);
  }

 private:
  enum class State {
    kWorking,  // or nothing is to be made
    kWaiting,  // for the producer
    kWoken,    // while it was working
  };

  // Goes on, if it waits.
  void Wake() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (has_ended_) return;
    if (std::exchange(state_, State::kWoken) == State::kWaiting) Schedule();
  }

  void Work() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      state_ = State::kWorking;
      if (has_ended_) return;
    }
    absl::StatusOr<Next> next = absl::CancelledError("the reader has gone");
    if (!context_->IsCancelled()) next = (*producer_)->Produce(&made_);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (has_ended_) return;
    if (next.ok() && *next == Next::kWait) {
      // Woken: something has come since the producer looked.
      const bool is_woken = state_ == State::kWoken;
      state_ = is_woken ? State::kWorking : State::kWaiting;
      if (is_woken) Schedule();
      return;
    }
    made_as_ = std::move(next);
    if (!is_writing_) SendMade();
  }

  // All that follow need mutex_.
  void Schedule() {
    if (lane_.Post([this, self = this->self_] { Work(); })) return;
    made_as_ = absl::UnavailableError("the server is stopping");
    if (!is_writing_) SendMade();
  }

  void SendMade() {
    const absl::StatusOr<Next> next = *std::exchange(made_as_, std::nullopt);
    if (!next.ok() || *next == Next::kEnd) return End(next.status());
    sending_.Swap(&made_);
    is_writing_ = true;
    waiting_since_ = SystemClock().NowMonotonicMicros();
    if (*next == Next::kLast) {
      LogEnd(absl::OkStatus());
      return this->StartWriteAndFinish(&sending_, {}, grpc::Status::OK);
    }
    this->StartWrite(&sending_);
    Schedule();
  }

  void End(const absl::Status& status) {
    if (has_ended_) return;
    LogEnd(status);
    this->Finish(ToGrpc(status));
  }
  void LogEnd(const absl::Status& status) {
    has_ended_ = true;
    service_.Log(absl::StrCat("level=info event=stream method=", method_, " peer=\"", peer_,
                              "\" code=", static_cast<int>(status.code())));
  }

  void CancelIfIdle(int64_t since_micros) override {
    if (waiting_since_ < since_micros) context_->TryCancel();
  }

  RpcService& service_;
  SerialExecutor& lane_;
  RpcService::Context* const context_;
  const char* const method_;
  const std::string peer_;
  bool counted_ = false;
  absl::StatusOr<std::unique_ptr<Producer<Response>>> producer_;
  std::atomic<int64_t> waiting_since_{INT64_MAX};
  Response made_;  // the lane's, until made_as_ says what it is

  std::mutex mutex_;  // guards what follows
  State state_ = State::kWorking;
  std::optional<absl::StatusOr<Next>> made_as_;
  Response sending_;
  bool is_writing_ = false;
  bool has_ended_ = false;  // Finish was called
};

// Head, the latest. What changes while one is on its way replaces what waits.
class WatchReactor final : public grpc::ServerWriteReactor<v1::Head>,
                           public SelfOwned<WatchReactor> {
 public:
  explicit WatchReactor(RpcService& service) : service_(service) {}

  void Begin() {
    counted_ = RpcService::Take(&service_.watches, service_.limits().max_watches);
    if (!counted_) {
      finished_ = true;
      Finish(ToGrpc(TooMany("watches", service_.limits().max_watches)));
      return;
    }
    watch_ =
        service_.fleet().Watch([this, self = self_](const HeadState& state) { Changed(state); });
    Changed(service_.fleet().head());
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    if (!ok) gone_ = true;
    Continue();
  }
  void OnCancel() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    gone_ = true;
    Continue();
  }
  void OnDone() override {
    if (watch_) service_.fleet().Unwatch(*watch_);
    if (counted_) service_.watches.fetch_sub(1);
    const std::shared_ptr<WatchReactor> self = std::move(self_);
  }

 private:
  void Changed(const HeadState& state) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state == last_ && sent_) return;
    last_ = state;
    pending_ = true;
    Continue();
  }

  void Continue() {
    if (writing_ || finished_) return;
    if (gone_) {
      finished_ = true;
      Finish(ToGrpc(absl::UnavailableError("the server is stopping; watch again")));
      return;
    }
    if (!pending_) return;
    pending_ = false;
    sent_ = true;
    writing_ = true;
    response_ = service_.HeadOf(last_);
    StartWrite(&response_);
  }

  RpcService& service_;
  bool counted_ = false;
  std::optional<uint64_t> watch_;
  std::mutex mutex_;
  HeadState last_;
  v1::Head response_;
  bool sent_ = false;
  bool pending_ = false;
  bool writing_ = false;
  bool gone_ = false;
  bool finished_ = false;
};

// One rank's connection: what the core sends to. Outlives its reactor, which it then forgets.
class AttachReactor final : public grpc::ServerBidiReactor<v1::FromRank, v1::ToRank>,
                            public SelfOwned<AttachReactor> {
 public:
  AttachReactor(RpcService& service, RpcService::Context* context)
      : service_(service),
        lane_(service.NextLane()),
        peer_(service.PeerOf(*context)),
        sink_(std::make_shared<Sink>(this, service.limits().max_orders)) {}

  void Begin() {
    counted_ = RpcService::Take(&service_.ranks, service_.limits().max_ranks);
    if (!counted_) return Close(TooMany("ranks", service_.limits().max_ranks));
    sink_->outbox.Read();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Close(absl::OkStatus());
    // Small, and by far the most: not worth a change of threads.
    if (!request_.has_register_() && request_.ByteSizeLong() <= kSmallMessageBytes) {
      return HandleAndGoOn();
    }
    const bool taken = lane_.Post([this, self = self_] { HandleAndGoOn(); });
    if (!taken) Close(absl::UnavailableError("the server is stopping"));
  }
  void OnWriteDone(bool) override { sink_->outbox.Written(); }
  void OnDone() override {
    sink_->outbox.Forget();
    if (registration_) service_.fleet().Detach(registration_->process, sink_.get());
    if (counted_) service_.ranks.fetch_sub(1);
    const std::shared_ptr<AttachReactor> self = std::move(self_);
  }

  void Read() { StartRead(&request_); }
  void Write(const v1::ToRank* message) { StartWrite(message); }
  void End(const absl::Status& status) {
    service_.Log(absl::StrCat("level=info event=detach peer=\"", peer_, "\" rank=\"",
                              registration_ ? protocol::ToString(registration_->process.first) : "",
                              "\" code=", static_cast<int>(status.code()), " error=\"",
                              std::string(status.message()), "\""));
    Finish(ToGrpc(status));
  }

 private:
  // What the core sends to the rank. What is lost the next report brings again.
  class Sink final : public RankSink {
   public:
    Sink(AttachReactor* reactor, size_t max_waiting) : outbox(reactor, max_waiting) {}

    void Send(const RankOrder& order) override {
      v1::ToRank message;
      *message.mutable_order() = ToProto(order);
      outbox.Push(std::move(message));
    }
    void Send(const AuditVerdict& verdict) override {
      v1::ToRank message;
      message.mutable_verdict()->set_audit(verdict.audit);
      message.mutable_verdict()->set_ok(verdict.status.ok());
      message.mutable_verdict()->set_error(std::string(verdict.status.message()));
      message.mutable_verdict()->set_code(static_cast<uint32_t>(verdict.status.code()));
      outbox.Push(std::move(message));
    }
    void RequestAudit() override {
      v1::ToRank message;
      message.mutable_audit_request();
      outbox.Push(std::move(message));
    }
    // A frame that is lost ends the group, and the rank turns to the service.
    void Send(const TransferPlan& plan, uint32_t contributor) override {
      v1::ToRank message;
      *message.mutable_transfer() = wire::ToProto(plan, contributor);
      outbox.Push(std::move(message));
    }
    void SendTransferEnd(uint64_t epoch, const std::string& reason) override {
      v1::ToRank message;
      message.mutable_transfer_end()->set_epoch(epoch);
      message.mutable_transfer_end()->set_reason(reason);
      outbox.Push(std::move(message));
    }
    void Send(const FrameHeader& frame) override {
      v1::ToRank message;
      *message.mutable_frame() = wire::ToProto(frame);
      outbox.Push(std::move(message));
    }
    void Superseded() override {
      outbox.Close(absl::AbortedError("another connection speaks for this rank now"));
    }

    Outbox<AttachReactor, v1::ToRank> outbox;
  };

  void HandleAndGoOn() {
    const absl::Status status = Handle();
    if (!status.ok()) return Close(status);
    sink_->outbox.Read();
  }

  absl::Status Handle() {
    if (request_.kind_case() == v1::FromRank::kRegister) return Register(request_.register_());
    if (!registration_) {
      return absl::InvalidArgumentError("the first message of a rank must be 'register'");
    }
    Fleet& fleet = service_.fleet();
    switch (request_.kind_case()) {
      case v1::FromRank::kReport: {
        ASSIGN_OR_RETURN(protocol::Report report, FromProto(request_.report(), *registration_));
        fleet.Report(std::move(report),
                     {request_.report().carried_bytes(), request_.report().served_bytes()},
                     sink_.get());
        return absl::OkStatus();
      }
      case v1::FromRank::kVote: {
        ASSIGN_OR_RETURN(std::vector<CellSums> cells, CellsFromProto(request_.vote().cells()));
        fleet.Vote(registration_->process, TransactionNumber(request_.vote().transaction()),
                   std::move(cells));
        return absl::OkStatus();
      }
      case v1::FromRank::kAudit: {
        const v1::Audit& audit = request_.audit();
        ASSIGN_OR_RETURN(const VersionName version, FromProto(audit.version(), "audited version"));
        ASSIGN_OR_RETURN(std::vector<CellSums> cells, CellsFromProto(audit.cells()));
        fleet.Audit(registration_->process, audit.audit(), version, std::move(cells), audit.last());
        return absl::OkStatus();
      }
      case v1::FromRank::kTransfer: {
        ASSIGN_OR_RETURN(TransferHello hello,
                         wire::FromProto(request_.transfer(), service_.live().manifest().size()));
        fleet.TransferHello(registration_->process, sink_.get(), std::move(hello));
        return absl::OkStatus();
      }
      case v1::FromRank::kJoined:
        fleet.TransferJoined(registration_->process, request_.joined().epoch(),
                             wire::FromProto(request_.joined()));
        return absl::OkStatus();
      default:
        return absl::InvalidArgumentError("an empty message, or one of a newer program");
    }
  }

  absl::Status Register(const v1::Register& request) {
    RankRegistration registration;
    registration.process.first = {request.instance(), request.rank()};
    registration.process.second = {request.incarnation().generation(),
                                   request.incarnation().nonce()};
    registration.ranks = request.ranks();
    registration.peer = peer_;
    RETURN_IF_ERROR(protocol::CheckRank(registration.process.first, registration.ranks));
    if (registration.process.second.nonce == 0) {
      return absl::InvalidArgumentError("the incarnation's nonce is 0; take a random number");
    }
    if (registration_ && registration_->process != registration.process) {
      return absl::InvalidArgumentError("a stream speaks for one process only");
    }
    const Digest& base = service_.live().fingerprint_key().base_digest();
    if (request.base_digest() != ToBytes(base)) {
      return absl::FailedPreconditionError(
          absl::StrCat("the rank's base is another one than the store's, ", ToHex(base)));
    }
    if (request.layout().size() > kMaxLayoutBytes) {
      return absl::InvalidArgumentError(absl::StrCat("a layout of ", request.layout().size(),
                                                     " bytes; at most ", kMaxLayoutBytes,
                                                     " are allowed"));
    }
    if (!request.layout().empty()) {
      ASSIGN_OR_RETURN(Layout layout, ReadLayout(request.layout(), service_.live().manifest(),
                                                 request.layout_generation()));
      if (ToBytes(layout.digest()) != request.layout_digest()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the layout has the digest ", ToHex(layout.digest()), ", not the one that is named"));
      }
      registration.layout = std::make_shared<const Layout>(std::move(layout));
    }
    service_.Log(absl::StrCat("level=info event=attach peer=\"", peer_, "\" rank=\"",
                              protocol::ToString(registration.process.first), "\""));
    registration_ = registration;
    service_.fleet().Attach(std::move(registration), sink_);
    return absl::OkStatus();
  }

  void Close(const absl::Status& status) { sink_->outbox.Close(status); }

  RpcService& service_;
  SerialExecutor& lane_;
  const std::string peer_;
  const std::shared_ptr<Sink> sink_;
  bool counted_ = false;
  v1::FromRank request_;
  std::optional<RankRegistration> registration_;
};

}  // namespace

grpc::ServerBidiReactor<v1::PutRequest, v1::PutResponse>* RpcService::Put(Context* context) {
  return Launch<PutReactor>(*this, context);
}

grpc::ServerBidiReactor<v1::FromRank, v1::ToRank>* RpcService::Attach(Context* context) {
  return Launch<AttachReactor>(*this, context);
}

grpc::ServerWriteReactor<v1::Head>* RpcService::Watch(Context*, const v1::WatchRequest*) {
  return Launch<WatchReactor>(*this);
}

grpc::ServerWriteReactor<v1::ReadManifestResponse>* RpcService::ReadManifest(
    Context* context, const v1::ReadManifestRequest*) {
  return Launch<ContentReactor<v1::ReadManifestResponse>>(*this, context, "ReadManifest",
                                                          MakeManifestProducer(live_));
}

grpc::ServerWriteReactor<v1::ReadDenseResponse>* RpcService::ReadDense(
    Context* context, const v1::ReadDenseRequest* request) {
  return Launch<ContentReactor<v1::ReadDenseResponse>>(*this, context, "ReadDense",
                                                       MakeDenseProducer(live_, *request));
}

grpc::ServerWriteReactor<v1::ReadDifferenceResponse>* RpcService::ReadDifference(
    Context* context, const v1::ReadDifferenceRequest* request) {
  return Launch<ContentReactor<v1::ReadDifferenceResponse>>(
      *this, context, "ReadDifference", MakeDifferenceProducer(live_, fleet_, *request));
}

grpc::ServerWriteReactor<v1::ReadContentResponse>* RpcService::ReadContent(
    Context* context, const v1::ReadContentRequest* request) {
  return Launch<ContentReactor<v1::ReadContentResponse>>(
      *this, context, "ReadContent", MakeContentProducer(live_, fleet_, *request));
}

}  // namespace wstore::service
