// Stops the engines of an instance's ranks at one step, and lets them go on together.
//
// Each rank counts the safe points that its engine passes. Ranks run in step, since a step ends
// with all of them; but one may be a safe point ahead, and learn of an order later. So where to
// stop is agreed upon, in rounds. Who wants to stop joins the next round and shows the first safe
// point that its engine has not passed yet; whoever sees that joins too. They stop at the greatest
// of the numbers shown, which nobody has passed: the engines that come to an earlier one run on.
// When every rank has stopped there and no rank wants to stand any longer, all go on. A rank may
// change its mind until it has gone; those that went before it wait for it within their next step,
// so that it must follow before it can stand anew: it does so as soon as its memory is whole.
//
// An engine that has never run stands still, and takes over the others' count.
//
// Threads: Enter is the engine's, all others are the worker's. Passing costs the engine one atomic
// addition and one load.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "wstore/deadline.h"

namespace wstore::client {

// What a rank shows the others.
struct GateRecord {
  uint64_t round = 0;     // that it joined last
  uint64_t next = 0;      // of that round: the first safe point that it has not passed
  uint64_t released = 0;  // the latest round in which it stands, and could go on
  uint64_t done = 0;      // the latest round that it has left

  friend bool operator==(const GateRecord&, const GateRecord&) = default;
};

class SafePointGate {
 public:
  enum class Passed { kRun, kHeld, kClosed };

  // `arrived` is called by the engine's thread when it begins to wait; it only wakes somebody.
  explicit SafePointGate(std::function<void()> arrived) : arrived_(std::move(arrived)) {}

  // The engine is at a safe point. kRun: go on. kHeld: the deadline has passed; it stands still,
  // and must ask again before it reads weights.
  Passed Enter(Deadline deadline) {
    if (is_counted_) return Wait(deadline);
    // In this order: either Turn sees it passed, or this sees the round.
    passed_.fetch_add(1, std::memory_order_seq_cst);
    if (!attention_.load(std::memory_order_seq_cst)) return Passed::kRun;
    is_counted_ = true;
    return Wait(deadline);
  }

  // Takes part. `wants_stop`: this rank has a reason to stand. `is_writing`: its memory is being
  // written right now; only begun while stands_still(). `mates`: what the other ranks show; nothing
  // for those that are not there. Again with every change.
  void Turn(bool wants_stop, bool is_writing, const std::vector<std::optional<GateRecord>>& mates);
  GateRecord record() const;

  // The engine stands still, at least until the next Turn, and as long as `is_writing`.
  bool stands_still() const;
  // A round is going on.
  bool is_in_round() const;
  // The engine is wanted at a safe point, and is not there.
  bool is_awaited() const;

  // Every Enter, now and later, returns kClosed.
  void Close();

 private:
  Passed Wait(Deadline deadline);
  bool MustHold() const;
  void Join(const std::vector<std::optional<GateRecord>>& mates);
  bool StandsAtTarget() const;

  const std::function<void()> arrived_;
  std::atomic<uint64_t> passed_{0};    // safe points, the one where it waits included
  std::atomic<bool> attention_{true};  // an engine that has never run is to wait
  // The engine's own: it has counted this safe point. An engine that has never run is at the one
  // that the others stand at.
  bool is_counted_ = true;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool is_fresh_ = true;     // the engine has never run
  bool is_waiting_ = false;  // the engine is at the safe point passed_
  bool is_closed_ = false;
  bool is_in_round_ = false;
  std::optional<uint64_t> target_;
  GateRecord record_;
};

}  // namespace wstore::client
