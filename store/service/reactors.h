// What the reactors of streaming calls share.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "store/service/rpc_service.h"

namespace wstore::service {

inline bool HasDeadline(const RpcService::Context& context) {
  return context.deadline() != std::chrono::system_clock::time_point::max();
}

inline absl::Status NoDeadline() {
  return absl::InvalidArgumentError("a call without a deadline; set one");
}

inline absl::Status TooMany(const char* what, uint32_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat(limit, " ", what, " are open; that is the limit: try again"));
}

// A reactor that owns itself until gRPC is done with it. Whatever else runs on its behalf, in a
// lane or on the strand, holds a reference too: gRPC may be done with it at any moment after
// Finish, and does not wait for them.
template <typename Reactor>
class SelfOwned {
 protected:
  std::shared_ptr<Reactor> self_;

 private:
  template <typename R, typename... Arguments>
  friend R* Launch(Arguments&&... arguments);
};

// Makes such a reactor, and begins.
template <typename Reactor, typename... Arguments>
Reactor* Launch(Arguments&&... arguments) {
  const auto reactor = std::make_shared<Reactor>(std::forward<Arguments>(arguments)...);
  static_cast<SelfOwned<Reactor>&>(*reactor).self_ = reactor;
  reactor->Begin();
  return reactor.get();
}

// Messages on their way to the other end of a stream, in order, one at a time, and the end of the
// stream behind them. Outlives its reactor, which it then forgets. Threads: any.
template <typename Reactor, typename Message>
class Outbox {
 public:
  Outbox(Reactor* reactor, size_t max_waiting) : reactor_(reactor), max_waiting_(max_waiting) {}

  // Past the limit the oldest is dropped.
  void Push(Message message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_ || reactor_ == nullptr) return;
    if (waiting_.size() == max_waiting_) waiting_.pop_front();
    waiting_.push_back(std::move(message));
    if (!writing_) WriteNow();
  }
  void Close(const absl::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_ || reactor_ == nullptr) return;
    closing_ = true;
    status_ = status;
    if (!writing_) reactor_->End(status_);
  }
  // Reads the next message, unless the stream is ending.
  void Read() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!closing_ && reactor_ != nullptr) reactor_->Read();
  }
  void Written() {
    const std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    if (closing_) return reactor_->End(status_);
    if (!waiting_.empty()) WriteNow();
  }
  void Forget() {
    const std::lock_guard<std::mutex> lock(mutex_);
    reactor_ = nullptr;
  }

 private:
  void WriteNow() {
    writing_ = true;
    message_ = std::move(waiting_.front());
    waiting_.pop_front();
    reactor_->Write(&message_);
  }

  std::mutex mutex_;
  Reactor* reactor_;
  const size_t max_waiting_;
  std::deque<Message> waiting_;
  Message message_;
  bool writing_ = false;
  bool closing_ = false;
  absl::Status status_;
};

}  // namespace wstore::service
