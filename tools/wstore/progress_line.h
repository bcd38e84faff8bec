// One line on a terminal that tells how far long work is.
#pragma once

#include <cstdint>
#include <string>

#include "wstore/progress.h"

namespace wstore::cli {

// The line appears on stderr once the work has taken a moment, shows share, rate and remaining
// time, and is erased by Finish or the destructor. Work without a terminal shows nothing.
class ProgressLine {
 public:
  // `label` is what is done, such as "publishing". `is_shown` false: only counts.
  ProgressLine(std::string label, bool is_shown);
  ~ProgressLine() { Finish(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Give this to the work. The line must outlive the calls.
  ProgressFn Callback();

  // Erases the line. Not while the work still reports.
  void Finish();

  // Bytes worked on so far, and the time since the line was made.
  uint64_t done_bytes() const { return done_bytes_; }
  int64_t elapsed_micros() const;

 private:
  void Draw(uint64_t total_bytes, int64_t now_micros);

  const std::string label_;
  const bool is_shown_;
  const int64_t start_micros_;
  int64_t last_drawn_micros_;
  bool is_drawn_ = false;
  uint64_t done_bytes_ = 0;
};

}  // namespace wstore::cli
