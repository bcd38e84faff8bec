// A publisher that leads a transfer group.
#include <optional>
#include <utility>

#include "common/status_macros.h"
#include "store/client/transfer_messages.h"
#include "store/service/reactors.h"

namespace wstore::service {
namespace {

constexpr size_t kMaxWaiting = 1024;

class LeadReactor final : public grpc::ServerBidiReactor<v1::FromRoot, v1::ToRoot>,
                          public SelfOwned<LeadReactor> {
 public:
  LeadReactor(RpcService& service, RpcService::Context* context)
      : service_(service),
        lane_(service.NextLane()),
        peer_(service.PeerOf(*context)),
        sink_(std::make_shared<Sink>(this)) {}

  void Begin() {
    counted_ = RpcService::Take(&service_.puts, service_.limits().max_puts);
    if (!counted_) return Close(TooMany("puts", service_.limits().max_puts));
    sink_->outbox.Read();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Close(absl::OkStatus());
    const bool taken = lane_.Post([this, self = self_] {
      const absl::Status status = Handle();
      if (!status.ok()) return Close(status);
      sink_->outbox.Read();
    });
    if (!taken) Close(absl::UnavailableError("the server is stopping"));
  }
  void OnWriteDone(bool) override { sink_->outbox.Written(); }
  void OnDone() override {
    sink_->outbox.Forget();
    if (has_hello_) service_.fleet().RootGone(sink_);
    if (counted_) service_.puts.fetch_sub(1);
    const std::shared_ptr<LeadReactor> self = std::move(self_);
  }

  // For the outbox.
  void Read() { StartRead(&request_); }
  void Write(const v1::ToRoot* message) { StartWrite(message); }
  void End(const absl::Status& status) {
    service_.Log(absl::StrCat("level=info event=led peer=\"", peer_,
                              "\" code=", static_cast<int>(status.code()), " error=\"",
                              std::string(status.message()), "\""));
    Finish(ToGrpc(status));
  }

 private:
  class Sink final : public RootSink {
   public:
    explicit Sink(LeadReactor* reactor) : outbox(reactor, kMaxWaiting) {}

    void Send(const RootPlan& plan) override {
      v1::ToRoot message;
      v1::ToRoot::Plan& out = *message.mutable_plan();
      out.set_epoch(plan.epoch);
      out.set_size(plan.size);
      out.set_frame_bytes(plan.frame_bytes);
      for (const RootPlan::Member& member : plan.members) {
        v1::ToRoot::Member& added = *out.add_members();
        added.set_instance(member.rank.instance);
        added.set_rank(member.rank.rank);
        added.set_route(wire::ToProto(member.choice.route));
        added.set_why(member.choice.why);
        added.set_index(member.index);
        if (!member.tensors.is_all()) *added.mutable_tensors() = wire::ToProto(member.tensors);
      }
      outbox.Push(std::move(message));
    }
    void SendNamed(uint64_t epoch) override {
      v1::ToRoot message;
      message.set_named(epoch);
      outbox.Push(std::move(message));
    }
    void SendReady(uint64_t epoch) override {
      v1::ToRoot message;
      message.set_ready(epoch);
      outbox.Push(std::move(message));
    }
    void SendEnd(uint64_t epoch, const std::string& reason) override {
      v1::ToRoot message;
      message.mutable_end()->set_epoch(epoch);
      message.mutable_end()->set_reason(reason);
      outbox.Push(std::move(message));
    }

    Outbox<LeadReactor, v1::ToRoot> outbox;
  };

  absl::Status Handle() {
    Fleet& fleet = service_.fleet();
    if (request_.kind_case() == v1::FromRoot::kHello) return Hello(request_.hello());
    if (!has_hello_) {
      return absl::InvalidArgumentError("the first message of a publisher must be 'hello'");
    }
    switch (request_.kind_case()) {
      case v1::FromRoot::kName:
        fleet.RootNames(sink_, request_.name().epoch(), request_.name().unique_id());
        return absl::OkStatus();
      case v1::FromRoot::kJoined:
        fleet.RootJoined(sink_, request_.joined().epoch(), wire::FromProto(request_.joined()));
        return absl::OkStatus();
      case v1::FromRoot::kFrame:
        fleet.Announce(sink_, wire::FromProto(request_.frame()), Closer());
        return absl::OkStatus();
      default:
        return absl::InvalidArgumentError("an empty message, or one of a newer program");
    }
  }

  absl::Status Hello(const v1::FromRoot::Hello& request) {
    if (has_hello_) return absl::InvalidArgumentError("a publisher says hello once a stream");
    ASSIGN_OR_RETURN(TransferHello hello,
                     wire::FromProto(request.transfer(), service_.live().manifest().size()));
    has_hello_ = true;
    service_.fleet().Lead(request.contributor(), sink_, peer_, std::move(hello),
                          request.frame_bytes(), Closer());
    return absl::OkStatus();
  }

  StatusFn Closer() {
    return [sink = sink_](const absl::Status& status) { sink->outbox.Close(status); };
  }
  void Close(const absl::Status& status) { sink_->outbox.Close(status); }

  RpcService& service_;
  SerialExecutor& lane_;
  const std::string peer_;
  const std::shared_ptr<Sink> sink_;
  bool counted_ = false;
  bool has_hello_ = false;
  v1::FromRoot request_;
};

}  // namespace

grpc::ServerBidiReactor<v1::FromRoot, v1::ToRoot>* RpcService::Lead(Context* context) {
  return Launch<LeadReactor>(*this, context);
}

}  // namespace wstore::service
