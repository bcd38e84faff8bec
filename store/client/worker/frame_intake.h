// A rank's part in transfer groups: joins those that the server plans, enters frames in the order
// in which the server announces them, and hands their chunks to the update that they are of.
//
// Whatever breaks here costs time only: the server is told, the group is left, and chunks that did
// not come are fetched from the server.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/job_thread.h"
#include "store/client/worker/delivery.h"
#include "wstore/transfer_group.h"

namespace wstore::client {

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
  struct Staging;

  void Join(const std::shared_ptr<Group>& group);
  void RunFrames();
  void RunLeaving();
  bool CanEnter() const;
  bool CanGoOn() const;
  void EnterNext();
  void TakeNext();
  void Stage(Staging* frame);
  void ReleaseStaged();
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
  size_t breaking_ = 0;     // groups that are in neither list
  std::deque<Left> left_;   // groups to be left
  bool has_ended_ = false;  // no more of them will come

  std::atomic<uint64_t> received_bytes_{0};
  // The frame thread's, oldest first.
  std::deque<Entered> entered_;
  std::deque<Staging> staging_;
  // Last: they use the others. Groups are left in the one, since that may take seconds; frames are
  // staged in two, since most of it is waiting for the device.
  std::thread leaving_;
  std::array<JobThread, 2> stage_;
  std::thread frames_;
};

}  // namespace wstore::client
