// A rank's part in transfer groups: joins those that the server plans, enters frames in the order
// in which the server announces them, and hands their chunks to the update that they are of.
//
// Whatever breaks here costs time only: the server is told, the group is left, and chunks that did
// not come are fetched from the server.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "store/client/worker/content_stream.h"
#include "wstore/transfer_group.h"

namespace wstore::client {

// What comes of one transaction. Threads: any.
class Delivery {
 public:
  using Stage = std::function<absl::Status(absl::Span<const DeviceChunk>)>;

  // Whether this contributor's chunks are expected as frames.
  bool carries(uint32_t contributor) const { return parts_.contains(contributor); }
  // Chunks go to `stage` from now on; frames wait for this.
  void Open(Stage stage);
  // Waits until all of a contributor's frames are staged. How many chunks that were. The
  // contributor has said by now that it has sent all: it is not waited for if nothing comes.
  //   kCancelled: cancelled
  //   others: not all will come, or one was refused; the server has them
  absl::StatusOr<uint64_t> Await(uint32_t contributor, const Cancellation& cancellation);
  // No chunk is staged any more when this has returned.
  void Close();

 private:
  friend class FrameIntake;
  struct Part {
    std::set<uint64_t> epochs;     // of the groups that it may be sent through
    std::optional<uint64_t> used;  // the one that it is
    uint64_t chunks = 0;
    uint64_t under_way = 0;  // frames that were announced, and are neither staged nor dropped
    std::chrono::steady_clock::time_point last_sign;
    bool is_whole = false;
    absl::Status status;
  };
  // For the intake. Take waits for Open, up to the deadline; drops what is not wanted any more.
  void Announced(const FrameHeader& frame);
  void Take(const FrameHeader& frame, uint32_t contributor, absl::Span<const DeviceChunk> chunks,
            Deadline deadline);
  void Fail(uint64_t epoch, const absl::Status& status);

  void StageFrame(const FrameHeader& frame, absl::Span<const DeviceChunk> chunks, Deadline deadline,
                  std::unique_lock<std::mutex>& lock, Part& part);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint32_t, Part> parts_;  // by contributor; their keys never change
  Stage stage_;
  bool is_staging_ = false;
  bool is_closed_ = false;
};

class FrameIntake {
 public:
  struct Options {
    std::shared_ptr<TransferPort> port;
    std::function<void(v1::FromRank)> send;
    std::function<TensorSet()> tensors;  // that are wanted
    std::function<void()> on_thread;
    std::function<void(const std::string&)> log;
    std::function<void(std::string_view)> on_step;  // as WorkerOptions has it
    int64_t join_micros = 15'000'000;
    int64_t frame_micros = 5'000'000;  // of one that was announced
  };
  explicit FrameIntake(Options options);
  ~FrameIntake();

  // What the server says, in its order; and that nothing more comes of this stream. Never blocks.
  void Planned(const TransferPlan& plan, uint32_t contributor);
  void Announced(FrameHeader frame);
  void Ended(uint64_t epoch, const std::string& reason);
  void LinkEnded();
  // A new stream has begun: the server does not know this rank.
  void LinkBegun();

  // An update is prepared whose contributors send frames. Before the frames are announced.
  std::shared_ptr<Delivery> Expect(TransactionNumber transaction, uint32_t contributors);

  // Of the chunks in all frames that have come so far.
  uint64_t received_bytes() const { return received_bytes_.load(); }

 private:
  struct Group;
  struct Entered;

  void Join(const std::shared_ptr<Group>& group);
  void RunFrames();
  void RunLeaving();
  bool EnterNext();
  void TakeNext();
  void Break(const std::shared_ptr<Group>& group, const absl::Status& status, bool tell);
  void SendJoined(uint64_t epoch, const absl::Status& status);
  void SendHello();
  void Log(const std::string& line) const;
  void AtStep(std::string_view step) const;
  std::shared_ptr<Group> Find(uint64_t epoch);

  const Options options_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<uint64_t, std::shared_ptr<Group>> groups_;  // by epoch
  std::deque<FrameHeader> announced_;
  std::shared_ptr<Delivery> delivery_;
  TransactionNumber transaction_;
  int64_t hello_pause_micros_ = 0;
  std::optional<Deadline> hello_at_;
  bool is_linked_ = false;
  bool is_stopping_ = false;
  struct Left {
    std::shared_ptr<Group> group;
    std::optional<int64_t> hello_after_micros;
  };
  std::deque<Left> left_;   // groups to be left
  bool has_ended_ = false;  // no more of them will come

  std::atomic<uint64_t> received_bytes_{0};
  std::deque<Entered> entered_;  // the frame thread's
  // Last: they use the others. Groups are left in the one, since that may take seconds.
  std::thread leaving_;
  std::thread frames_;
};

}  // namespace wstore::client
