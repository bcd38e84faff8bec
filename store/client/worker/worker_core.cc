// The core's loop, its link to the server, and what it shows the other ranks.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "store/client/transfer_messages.h"
#include "store/client/worker/worker_impl.h"
#include "store/client/worker/worker_messages.h"
#include "wstore/layout_file.h"

namespace wstore {
namespace {

using client::BoardRecord;
using protocol::Micros;

constexpr size_t kMaxTasks = 4096;
constexpr Micros kLongestSleep = 1'000'000;
// Of a group that does not say when something changes.
constexpr Micros kPollBusy = 500;
constexpr Micros kPollIdle = 5'000;
constexpr Micros kFirstReconnect = 50'000;
constexpr Micros kLongestReconnect = 1'000'000;
// A stream that carries no answers to reports for so long is broken off.
constexpr Micros kSilence = 8'000'000;
constexpr Micros kWantedAgain = 10'000;

}  // namespace

Micros Worker::Impl::now() const { return SystemClock().NowMonotonicMicros(); }

void Worker::Impl::Log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

void Worker::Impl::AtStep(std::string_view step) const {
  if (options_.on_step) options_.on_step(step);
}

bool Worker::Impl::Post(std::function<void()> task, bool may_drop) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_stopping_ || (may_drop && tasks_.size() >= kMaxTasks)) return false;
  tasks_.push_back(std::move(task));
  wakened_.notify_one();
  return true;
}

void Worker::Impl::Wake() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_poked_ = true;
  wakened_.notify_one();
}

void Worker::Impl::Run() {
  NameThread("ws-core");
  if (options_.on_thread) options_.on_thread();
  for (;;) {
    const Micros wake = NextWake();
    std::deque<std::function<void()>> tasks;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const Micros sleep = std::clamp<Micros>(wake - now(), 0, kLongestSleep);
      wakened_.wait_for(lock, std::chrono::microseconds(sleep),
                        [this] { return is_poked_ || is_stopping_ || !tasks_.empty(); });
      is_poked_ = false;
      tasks.swap(tasks_);
      if (is_stopping_ && tasks.empty()) return;
    }
    for (const auto& task : tasks) task();
    Tick();
  }
}

Micros Worker::Impl::NextWake() {
  Micros wake = std::min({wake_at_, audit_at_, heard_at_ + kSilence});
  if (!link_->is_open()) wake = std::min(wake, reconnect_at_);
  if (proof_ != nullptr && !proof_->is_running) {
    wake = std::min(wake, proof_->claim ? proof_->send_at : proof_->begin_at);
  }
  if (gate_.is_awaited()) wake = std::min(wake, wanted_at_ + kWantedAgain);
  if (is_polled_) {
    const bool is_busy =
        gate_.is_in_round() && (update_ != nullptr || state_.standing != protocol::Standing::kOut);
    wake = std::min(wake, now() + (is_busy ? kPollBusy : kPollIdle));
  }
  return wake;
}

void Worker::Impl::Tick() {
  if (now() >= wake_at_) Feed(protocol::WorkerTick{});
  KeepLink();
  DriveProof();
  if (now() >= audit_at_) AuditBeside();
  Turn();
  SendReport();
  PublishStatus();
}

// The engine may run only while this rank serves, and is not about to change its memory.
bool Worker::Impl::WantsStop() const {
  const bool is_pausing = state_.update && state_.update->stage == protocol::Stage::kPausing;
  return state_.standing != protocol::Standing::kServing || is_pausing;
}

std::vector<std::optional<BoardRecord>> Worker::Impl::LookAtMates() {
  std::vector<std::optional<BoardRecord>> mates;
  if (options_.group == nullptr) return mates;
  const std::lock_guard<std::mutex> lock(group_mutex_);
  const std::vector<std::string> shown = options_.group->Look();
  for (uint32_t i = 0; i < shown.size(); ++i) {
    if (i != id_.rank) mates.push_back(client::DecodeBoardRecord(shown[i]));
  }
  return mates;
}

void Worker::Impl::ShowRecord() {
  if (options_.group == nullptr) return;
  const std::lock_guard<std::mutex> lock(group_mutex_);
  BoardRecord record = shown_;  // process and layout
  record.gate = gate_.record();
  record.key = ready_key_;
  record.holds.reset();
  record.claims.reset();
  if (state_.position) {
    record.holds = VersionName{state_.position->version, state_.position->chain_digest};
  }
  if (proof_ != nullptr && proof_->claim) {
    const protocol::Position& position = proof_->claim->position;
    record.claims = VersionName{position.version, position.chain_digest};
  }
  if (record == shown_) return;
  shown_ = record;
  options_.group->Show(Encode(record));
}

bool Worker::Impl::AllMatesReady(const std::vector<std::optional<BoardRecord>>& mates) const {
  return ready_key_ && std::all_of(mates.begin(), mates.end(), [this](const auto& mate) {
           return mate && mate->key == ready_key_;
         });
}

// Helps a mate that was started again, and notices one that came back as something else.
void Worker::Impl::WatchMates(const std::vector<std::optional<BoardRecord>>& mates) {
  if (!state_.position) return;
  const VersionName held{state_.position->version, state_.position->chain_digest};
  for (const auto& mate : mates) {
    if (mate && mate->claims == held && audit_at_ > now() + 5'000'000) AuditSoon(1'000'000);
  }
}

void Worker::Impl::Turn() {
  for (;;) {
    const std::vector<std::optional<BoardRecord>> mates = LookAtMates();
    std::vector<std::optional<client::GateRecord>> gates;
    for (const auto& mate : mates) {
      gates.push_back(mate ? std::optional(mate->gate) : std::nullopt);
    }
    gate_.Turn(WantsStop(), is_writing_, gates);
    ShowRecord();
    const bool stands = gate_.stands_still();
    const bool is_pausing = state_.update && state_.update->stage == protocol::Stage::kPausing;
    if (is_pausing && stands && WantsStop()) {
      paused_at_ = now();
      AtStep("paused");
      Feed(protocol::Paused{});
      continue;
    }
    if (memory_job_ && stands && !is_writing_ && WantsStop()) {
      is_writing_ = true;
      memory_->Post(std::exchange(memory_job_, nullptr));
      continue;
    }
    if (state_.standing == protocol::Standing::kResuming && AllMatesReady(mates)) {
      Feed(protocol::AllReady{*ready_key_});
      if (state_.standing == protocol::Standing::kServing) continue;
    }
    WatchMates(mates);
    break;
  }
  if (gate_.is_awaited() && options_.on_wanted && now() >= wanted_at_ + kWantedAgain) {
    wanted_at_ = now();
    options_.on_wanted();
  }
}

void Worker::Impl::PublishStatus() {
  WorkerStatus status;
  if (state_.position) {
    status.version = VersionName{state_.position->version, state_.position->chain_digest};
    status.move = state_.position->move;
  }
  status.may_serve = protocol::MayServe(state_, now());
  status.standing = protocol::StandingName(state_.standing);
  status.stage = protocol::StageName(state_.update ? state_.update->stage : protocol::Stage::kNone);
  status.epoch = state_.epoch.value();
  status.is_connected = link_->is_open() && reconnect_pause_ == 0;
  status.is_poisoned = state_.poisoned;
  status.changes = changes_.load();
  status.carried_bytes = CarriedBytes();
  status.served_bytes = served_bytes_.load();
  status.last_pause_micros = last_pause_;
  if (!state_.error.empty()) {
    status.detail = state_.error;
  } else if (!status.is_connected) {
    status.detail = link_error_.empty() ? "not connected yet" : link_error_;
  } else if (!status.may_serve) {
    status.detail = state_.position ? last_order_.reason() : "its memory is not proved yet";
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  status_ = std::move(status);
  status_changed_.notify_all();
}

v1::FromRank Worker::Impl::Registration() const {
  v1::FromRank message;
  v1::Register& out = *message.mutable_register_();
  out.set_instance(id_.instance);
  out.set_rank(id_.rank);
  out.set_ranks(ranks_);
  out.mutable_incarnation()->set_generation(incarnation_.generation);
  out.mutable_incarnation()->set_nonce(incarnation_.nonce);
  out.set_base_digest(ToBytes(key_.base_digest()));
  std::shared_ptr<const Layout> layout;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    layout = layout_;
  }
  out.set_layout(WriteLayout(base_->manifest, *layout));
  out.set_layout_digest(ToBytes(layout->digest()));
  out.set_layout_generation(layout->generation());
  return message;
}

void Worker::Impl::Connect() {
  link_->Connect(Registration());
  SendVote();  // it may be another server, or it was lost with the connection
  state_.report_at = 0;
  if (intake_ == nullptr) return;
  intake_->LinkEnded();
  intake_->LinkBegun();
}

void Worker::Impl::KeepLink() {
  if (link_->is_open()) {
    if (now() >= heard_at_ + kSilence) {
      heard_at_ = now();
      link_->Break();
    }
    return;
  }
  if (now() < reconnect_at_ || is_leaving_) return;
  heard_at_ = now();
  reconnect_pause_ = std::clamp(2 * reconnect_pause_, kFirstReconnect, kLongestReconnect);
  reconnect_at_ = now() + reconnect_pause_;
  Connect();
  Feed(protocol::WorkerTick{});
  if (proof_ != nullptr) proof_->send_at = 0;
}

void Worker::Impl::Received(const v1::ToRank& message) {
  heard_at_ = now();
  reconnect_pause_ = 0;
  link_error_.clear();
  if (message.has_verdict()) return Judged(message.verdict());
  if (message.has_audit_request()) return AuditSoon();
  if (intake_ != nullptr && message.has_transfer()) {
    return intake_->Planned(wire::FromProto(message.transfer()), message.transfer().contributor());
  }
  if (intake_ != nullptr && message.has_frame()) {
    return intake_->Announced(wire::FromProto(message.frame()));
  }
  if (intake_ != nullptr && message.has_transfer_end()) {
    return intake_->Ended(message.transfer_end().epoch(), message.transfer_end().reason());
  }
  if (!message.has_order()) return;
  const absl::StatusOr<protocol::Order> order = client::FromProto(message.order(), id_);
  if (!order.ok()) {
    Log(absl::StrCat("level=alarm event=order error=\"", order.status().ToString(), "\""));
    return;
  }
  if (order->lease > 0 && options_.report_interval_micros == 0) {
    state_.config.report_interval = std::max<Micros>(order->lease / 4, 1000);
  }
  last_order_ = message.order();
  Feed(protocol::OrderReceived{*order});
}

}  // namespace wstore
