#include "store/client/worker/rank_link.h"

#include <condition_variable>
#include <deque>
#include <utility>

#include "common/status_macros.h"

namespace wstore::client {
namespace {

constexpr size_t kMaxWaiting = 1024;

}  // namespace

// Owns itself until gRPC is done with it.
class RankLink::Stream final : public grpc::ClientBidiReactor<v1::FromRank, v1::ToRank> {
 public:
  Stream(std::shared_ptr<Connection> connection, const Handler* handler)
      : connection_(std::move(connection)), handler_(handler) {}

  void Begin(v1::FromRank registration, std::shared_ptr<Stream> self) {
    self_ = std::move(self);
    waiting_.push_back(std::move(registration));
    connection_->stub().async()->Attach(&context_, this);
    // Writes begin outside of reactions, too.
    AddHold();
    StartRead(&received_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      WriteNow();
    }
    StartCall();
  }

  void Send(v1::FromRank message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_ || finishing_) return;
    if (message.has_report() && !waiting_.empty() && waiting_.back().has_report()) {
      waiting_.back() = std::move(message);
      return;
    }
    if (waiting_.size() >= kMaxWaiting) return context_.TryCancel();
    waiting_.push_back(std::move(message));
    if (!writing_) WriteNow();
  }

  void Finish() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_ || finishing_) return;
    finishing_ = true;
    if (!writing_) StartWritesDone();  // else behind what waits
  }

  void Break() { context_.TryCancel(); }

  bool is_open() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !closed_;
  }
  bool is_drained() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return closed_ || (waiting_.empty() && !writing_);
  }

  // No call to the handler begins afterwards.
  void Abandon() {
    std::unique_lock<std::mutex> lock(mutex_);
    context_.TryCancel();
    ended_.wait(lock, [this] { return done_; });
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Close();
    handler_->received(std::move(received_));
    received_.Clear();
    StartRead(&received_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return;  // the read ends as well
    const std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    if (closed_) return;
    if (!waiting_.empty()) return WriteNow();
    if (finishing_) StartWritesDone();
  }

  void OnDone(const grpc::Status& status) override {
    Close();
    handler_->ended(status.ok() ? absl::UnavailableError("the server has ended the stream")
                                : connection_->FromGrpc(status));
    const std::shared_ptr<Stream> self = std::move(self_);
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    ended_.notify_all();
  }

 private:
  void WriteNow() {
    writing_ = true;
    sending_ = std::move(waiting_.front());
    waiting_.pop_front();
    StartWrite(&sending_);
  }

  void Close() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (closed_) return;
      closed_ = true;
    }
    RemoveHold();
  }

  const std::shared_ptr<Connection> connection_;
  const Handler* const handler_;
  grpc::ClientContext context_;
  v1::ToRank received_;
  std::shared_ptr<Stream> self_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable ended_;
  std::deque<v1::FromRank> waiting_;
  v1::FromRank sending_;
  bool writing_ = false;
  bool finishing_ = false;
  bool closed_ = false;
  bool done_ = false;
};

RankLink::RankLink(std::shared_ptr<Connection> connection, Handler handler)
    : connection_(std::move(connection)), handler_(std::move(handler)) {}

RankLink::~RankLink() {
  if (stream_ != nullptr) stream_->Abandon();
}

void RankLink::Connect(v1::FromRank registration) {
  std::shared_ptr<Stream> before;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    before = std::move(stream_);
  }
  if (before != nullptr) before->Abandon();
  auto stream = std::make_shared<Stream>(connection_, &handler_);
  stream->Begin(std::move(registration), stream);
  const std::lock_guard<std::mutex> lock(mutex_);
  stream_ = std::move(stream);
}

void RankLink::Send(v1::FromRank message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stream_ != nullptr) stream_->Send(std::move(message));
}

bool RankLink::is_open() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stream_ != nullptr && stream_->is_open();
}

bool RankLink::is_drained() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stream_ == nullptr || stream_->is_drained();
}

void RankLink::Break() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stream_ != nullptr) stream_->Break();
}

void RankLink::Finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stream_ != nullptr) stream_->Finish();
}

}  // namespace wstore::client
