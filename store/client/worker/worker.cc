#include "wstore/worker.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/random.h"
#include "common/status_macros.h"
#include "store/client/worker/worker_impl.h"
#include "wstore/layout_file.h"

namespace wstore {
namespace {

constexpr int64_t kForeverMicros = int64_t{24} * 3600 * 1'000'000;
constexpr int64_t kFirstReportMicros = 250'000;
constexpr auto kLook = std::chrono::milliseconds(5);
constexpr int64_t kFlushMicros = 500'000;

uint64_t RandomNonce() {
  uint64_t nonce = 0;
  while (nonce == 0) {
    const std::string bytes = SecureRandomBytes(sizeof(nonce));
    std::memcpy(&nonce, bytes.data(), sizeof(nonce));
  }
  return nonce;
}

absl::Status ReadManifestOnce(const client::Connection& connection, Deadline deadline,
                              WorkerBase* base) {
  grpc::ClientContext context;
  client::Connection::SetDeadline(&context, deadline);
  const auto reader = connection.stub().ReadManifest(&context, {});
  v1::ReadManifestResponse page;
  std::vector<TensorSpec> specs;
  std::optional<Digest> digest;
  absl::Status fault;
  while (reader->Read(&page)) {
    if (!page.base_digest().empty()) digest = DigestFromBytes(page.base_digest());
    for (const v1::Tensor& tensor : page.tensors()) {
      const std::optional<Dtype> dtype = ParseDtype(tensor.dtype());
      if (dtype) {
        specs.push_back({tensor.name(), *dtype, {tensor.shape().begin(), tensor.shape().end()}});
        continue;
      }
      fault = absl::InvalidArgumentError(
          absl::StrCat("tensor '", tensor.name(), "' has the dtype ", tensor.dtype(),
                       ", which this program does not know; it is older than the server"));
    }
  }
  RETURN_IF_ERROR(connection.FromGrpc(reader->Finish()));
  RETURN_IF_ERROR(fault);
  if (!digest) return absl::InternalError("the server named no digest of its base");
  ASSIGN_OR_RETURN(base->manifest, Manifest::Create(std::move(specs)));
  base->base_digest = *digest;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const WorkerBase>> ReadWorkerBase(const ConnectOptions& connect,
                                                                 Deadline deadline) {
  ASSIGN_OR_RETURN(const std::shared_ptr<client::Connection> connection,
                   client::Connection::Open(connect));
  auto base = std::make_shared<WorkerBase>();
  const absl::Status status = client::Retry(
      *connection, deadline, [&] { return ReadManifestOnce(*connection, deadline, base.get()); });
  RETURN_IF_ERROR(status);
  return base;
}

Worker::Impl::Impl(std::shared_ptr<const WorkerBase> base, WorkerOptions options,
                   std::shared_ptr<client::Connection> connection)
    : base_(std::move(base)),
      key_(base_->base_digest),
      options_(std::move(options)),
      connection_(std::move(connection)),
      id_{options_.instance, options_.group != nullptr ? options_.group->rank() : 0},
      ranks_(options_.group != nullptr ? options_.group->ranks() : 1),
      gate_([this] { Wake(); }) {
  incarnation_ = {static_cast<uint64_t>(SystemClock().NowUnixMicros()), RandomNonce()};
}

Worker::Impl::~Impl() { Leave(Deadline::After(0)); }

absl::Status Worker::Impl::Start(std::shared_ptr<const Layout> layout,
                                 absl::Span<const LocalBuffer> buffers, Deadline deadline) {
  RETURN_IF_ERROR(protocol::CheckRank(id_, ranks_));
  shown_.nonce = incarnation_.nonce;
  ASSIGN_OR_RETURN(ReplicaPlacement placement, ExchangeLayouts(std::move(layout), deadline));
  ReplicaOptions replica = options_.replica;
  replica.on_change = [this](const ChangeEvent& event) {
    ++changes_;
    if (!options_.replica.on_change) return;
    ChangeEvent told = event;
    // The replica counts the way back as a move of its own.
    if (is_taking_back_.load()) told.move = MoveNumber(event.move.value() - 1);
    options_.replica.on_change(told);
  };
  ASSIGN_OR_RETURN(replica_,
                   Replica::Attach(base_->manifest, key_, std::move(placement), buffers, replica));

  protocol::WorkerConfig config;
  config.rank = id_;
  config.ranks = ranks_;
  config.incarnation = incarnation_;
  config.serve_on_lost_lease = options_.serves_on_lost_lease;
  config.report_interval =
      options_.report_interval_micros > 0 ? options_.report_interval_micros : kFirstReportMicros;
  state_ = protocol::StartWorker(config);
  link_ = std::make_unique<client::RankLink>(
      connection_,
      client::RankLink::Handler{
          [this](v1::ToRank message) {
            // Orders may be lost: every report is answered.
            static_cast<void>(Post([this, message = std::move(message)] { Received(message); },
                                   /*may_drop=*/true));
          },
          [this](const absl::Status& status) {
            Post([this, status] {
              link_error_ = std::string(status.message());
              if (link_->is_open()) return;
              if (intake_ != nullptr) intake_->LinkEnded();
              Log(absl::StrCat("level=info event=disconnected error=\"", link_error_, "\""));
            });
          }});
  if (options_.transfer != nullptr) {
    client::FrameIntake::Options intake;
    intake.port = options_.transfer;
    intake.send = [this](v1::FromRank message) { link_->Send(std::move(message)); };
    intake.tensors = [this] { return Subscription(); };
    intake.on_thread = options_.on_thread;
    intake.log = options_.log;
    intake.on_step = options_.on_step;
    intake_ = std::make_unique<client::FrameIntake>(std::move(intake));
  }
  stage_ = std::make_unique<JobThread>("ws-stage", options_.on_thread);
  memory_ = std::make_unique<JobThread>("ws-memory", options_.on_thread);
  if (options_.group != nullptr) {
    is_polled_ = !options_.group->NotifyOnChange([this] { Wake(); });
  }
  if (options_.audit_interval_micros > 0) audit_at_ = now() + options_.audit_interval_micros;
  StartProof(options_.holds_base ? Source::kAudit : Rebuilding());
  core_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

// Shows this rank's layout, and waits for those of the others.
absl::StatusOr<ReplicaPlacement> Worker::Impl::ExchangeLayouts(std::shared_ptr<const Layout> layout,
                                                               Deadline deadline) {
  ReplicaPlacement placement;
  placement.layout = layout;
  placement.rank = id_.rank;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    layout_ = layout;
  }
  if (options_.group == nullptr) return placement;
  InstanceGroup& group = *options_.group;
  const auto name_of = [](const Digest& digest) { return absl::StrCat("layout-", ToHex(digest)); };
  {
    const std::lock_guard<std::mutex> lock(group_mutex_);
    RETURN_IF_ERROR(group.Give(name_of(layout->digest()), WriteLayout(base_->manifest, *layout)));
    shown_.layout_digest = layout->digest();
    shown_.layout_generation = layout->generation();
    group.Show(Encode(shown_));
  }
  std::vector<std::shared_ptr<const Layout>> layouts(ranks_);
  layouts[id_.rank] = layout;
  for (;;) {
    std::vector<uint32_t> missing;
    std::unique_lock<std::mutex> lock(group_mutex_);
    const std::vector<std::string> shown = group.Look();
    for (uint32_t i = 0; i < ranks_; ++i) {
      if (layouts[i] != nullptr) continue;
      const std::optional<client::BoardRecord> mate = client::DecodeBoardRecord(shown[i]);
      std::optional<std::string> text;
      if (mate && mate->layout_generation == layout->generation()) {
        text = group.Take(i, name_of(mate->layout_digest));
      }
      if (!text) {
        missing.push_back(i);
        continue;
      }
      absl::StatusOr<Layout> read = ReadLayout(*text, base_->manifest, layout->generation());
      RETURN_IF_ERROR(Prefixed(read.status(), absl::StrCat("the layout of rank ", i)));
      layouts[i] = std::make_shared<const Layout>(*std::move(read));
    }
    lock.unlock();
    if (missing.empty()) break;
    if (deadline.has_passed()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "ranks of instance ", id_.instance, " that did not come: ", absl::StrJoin(missing, ", "),
          "; start all ", ranks_, ", with layouts of generation ", layout->generation()));
    }
    std::this_thread::sleep_for(kLook);
  }
  std::vector<const Layout*> pointers;
  for (const auto& one : layouts) pointers.push_back(one.get());
  ASSIGN_OR_RETURN(RegionMap regions, RegionMap::Create(base_->manifest, pointers));
  placement.regions = std::make_shared<const RegionMap>(std::move(regions));
  return placement;
}

TensorSet Worker::Impl::Subscription() const {
  if (!options_.subscribes) return TensorSet();
  const std::lock_guard<std::mutex> lock(mutex_);
  return TensorsHeld(*layout_);
}

// Asked of the core, which answers within moments. Once it has stopped: a default.
template <typename Result>
Result Worker::Impl::Ask(std::function<Result()> question) {
  const auto answer = std::make_shared<std::promise<Result>>();
  std::future<Result> future = answer->get_future();
  if (!Post([answer, question = std::move(question)] { answer->set_value(question()); })) {
    return Result();
  }
  return future.get();
}

SafePoint Worker::Impl::AtSafePoint(Deadline deadline) {
  switch (gate_.Enter(deadline)) {
    case client::SafePointGate::Passed::kRun:
      return SafePoint::kRun;
    case client::SafePointGate::Passed::kHeld:
      return SafePoint::kHeld;
    case client::SafePointGate::Passed::kClosed:
      return SafePoint::kClosed;
  }
  return SafePoint::kClosed;
}

bool Worker::Impl::MayServe() const { return now() < serving_until_.load(); }

WorkerStatus Worker::Impl::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  WorkerStatus status = status_;
  status.may_serve = MayServe();
  return status;
}

absl::Status Worker::Impl::AwaitServing(Deadline deadline) const {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!MayServe()) {
    if (deadline.has_passed() || has_left_) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", protocol::ToString(id_),
                       " does not serve: ", has_left_ ? "it has left" : status_.detail));
    }
    status_changed_.wait_for(
        lock, std::chrono::microseconds(std::min<int64_t>(deadline.left_micros(), 100'000)));
  }
  return absl::OkStatus();
}

absl::Status Worker::Impl::Withdraw(const std::string& reason) {
  for (;;) {
    const std::optional<absl::Status> settled =
        Ask<std::optional<absl::Status>>([this, reason]() -> std::optional<absl::Status> {
          Feed(protocol::Unproven{false, reason});
          if (state_.position) {
            return absl::UnavailableError(
                "an update is being decided; call again at the next safe point");
          }
          is_withdrawn_ = true;
          EndProof();
          update_.reset();
          Tick();
          // A load that was begun comes to its end.
          if (is_writing_) return std::nullopt;
          return absl::OkStatus();
        });
    if (settled) return *settled;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (is_stopping_) return absl::FailedPreconditionError("the worker has left");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

absl::Status Worker::Impl::Invalidate(const std::string& reason) {
  RETURN_IF_ERROR(Withdraw(reason));
  return replica_->Invalidate(reason);
}

void Worker::Impl::Prove() {
  Post([this] {
    if (state_.position) return;
    is_withdrawn_ = false;
    const bool is_damaged = replica_->status().state == ReplicaState::kPoisoned;
    StartProof(is_damaged ? Rebuilding() : Source::kAudit);
  });
}

absl::Status Worker::Impl::Suspend() {
  RETURN_IF_ERROR(Withdraw("its memory is given away"));
  return replica_->Suspend();
}

absl::Status Worker::Impl::Resume(absl::Span<const LocalBuffer> buffers) {
  RETURN_IF_ERROR(replica_->Resume(buffers));
  Prove();
  return absl::OkStatus();
}

absl::Status Worker::Impl::Relayout(std::shared_ptr<const Layout> layout,
                                    absl::Span<const LocalBuffer> buffers, Deadline deadline) {
  RETURN_IF_ERROR(Withdraw("its layout changes"));
  ASSIGN_OR_RETURN(ReplicaPlacement placement, ExchangeLayouts(layout, deadline));
  RETURN_IF_ERROR(replica_->Relayout(std::move(placement), buffers));
  Ask<bool>([this] {
    Connect();
    return true;
  });
  Prove();
  return absl::OkStatus();
}

void Worker::Impl::Leave(Deadline deadline) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(has_left_, true)) return;
  }
  gate_.Close();
  if (!core_.joinable()) return;
  for (;;) {
    const bool is_out = Ask<bool>([this] {
      Feed(protocol::Unproven{false, "the engine shuts down"});
      is_withdrawn_ = true;
      is_leaving_ = true;
      EndProof();
      SendReport();
      return !state_.position && !is_writing_;
    });
    if (is_out || deadline.has_passed()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  Post([this] {
    if (update_ != nullptr) Cancel(*update_);
    memory_job_ = nullptr;
  });
  // The server ends the stream once it has read the last report; breaking it off could lose that.
  link_->Finish();
  const Deadline flush = Deadline::After(kFlushMicros);
  while (link_->is_open() && !flush.has_passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (options_.group != nullptr) options_.group->NotifyOnChange(nullptr);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
    wakened_.notify_all();
  }
  core_.join();
  serving_until_.store(0);
  stage_->Stop();
  memory_->Stop();
  intake_.reset();
  link_.reset();
  if (options_.group != nullptr) {
    const std::lock_guard<std::mutex> lock(group_mutex_);
    options_.group->Show("");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  status_.standing = protocol::StandingName(protocol::Standing::kOut);
  status_.is_connected = false;
  status_.detail = "it has left";
  status_changed_.notify_all();
}

Worker::Worker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Worker::~Worker() = default;

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(std::shared_ptr<const WorkerBase> base,
                                                      std::shared_ptr<const Layout> layout,
                                                      absl::Span<const LocalBuffer> buffers,
                                                      WorkerOptions options, Deadline deadline) {
  ASSIGN_OR_RETURN(std::shared_ptr<client::Connection> connection,
                   client::Connection::Open(options.connect));
  auto impl = std::make_unique<Impl>(std::move(base), std::move(options), std::move(connection));
  RETURN_IF_ERROR(impl->Start(std::move(layout), buffers, deadline));
  return std::unique_ptr<Worker>(new Worker(std::move(impl)));
}

SafePoint Worker::AtSafePoint() {
  SafePoint reached = SafePoint::kHeld;
  while (reached == SafePoint::kHeld) {
    reached = impl_->AtSafePoint(Deadline::After(kForeverMicros));
  }
  return reached;
}
SafePoint Worker::AtSafePoint(Deadline deadline) { return impl_->AtSafePoint(deadline); }
bool Worker::MayServe() const { return impl_->MayServe(); }
WorkerStatus Worker::status() const { return impl_->status(); }
absl::Status Worker::AwaitServing(Deadline deadline) const { return impl_->AwaitServing(deadline); }
absl::Status Worker::Invalidate(const std::string& reason) { return impl_->Invalidate(reason); }
void Worker::Prove() { impl_->Prove(); }
absl::Status Worker::Suspend() { return impl_->Suspend(); }
absl::Status Worker::Resume(absl::Span<const LocalBuffer> buffers) {
  return impl_->Resume(buffers);
}
absl::Status Worker::Relayout(std::shared_ptr<const Layout> layout,
                              absl::Span<const LocalBuffer> buffers, Deadline deadline) {
  return impl_->Relayout(std::move(layout), buffers, deadline);
}
void Worker::Leave(Deadline deadline) { impl_->Leave(deadline); }

}  // namespace wstore
