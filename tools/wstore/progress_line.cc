#include "tools/wstore/progress_line.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "tools/wstore/format.h"
#include "tools/wstore/terminal.h"

namespace wstore::cli {
namespace {

constexpr int64_t kFirstDrawMicros = 300'000;  // shorter work shows nothing
constexpr int64_t kRedrawMicros = 100'000;

}  // namespace

ProgressLine::ProgressLine(std::string label, bool is_shown)
    : label_(std::move(label)),
      is_shown_(is_shown),
      start_micros_(SystemClock().NowMonotonicMicros()),
      last_drawn_micros_(start_micros_ + kFirstDrawMicros - kRedrawMicros) {}

ProgressFn ProgressLine::Callback() {
  return [this](uint64_t done_bytes, uint64_t total_bytes) {
    done_bytes_ = done_bytes;
    if (!is_shown_ || total_bytes == 0) return;
    const int64_t now = SystemClock().NowMonotonicMicros();
    if (now - last_drawn_micros_ < kRedrawMicros) return;
    Draw(total_bytes, now);
  };
}

void ProgressLine::Draw(uint64_t total_bytes, int64_t now_micros) {
  last_drawn_micros_ = now_micros;
  is_drawn_ = true;
  const int64_t elapsed = now_micros - start_micros_;
  const double left_micros = done_bytes_ == 0 ? 0
                                              : static_cast<double>(elapsed) *
                                                    static_cast<double>(total_bytes - done_bytes_) /
                                                    static_cast<double>(done_bytes_);
  std::string line = absl::StrFormat(
      "%s  %3d%%  %s of %s  %s", label_,
      static_cast<int>(100.0 * static_cast<double>(done_bytes_) / static_cast<double>(total_bytes)),
      FormatBytes(done_bytes_), FormatBytes(total_bytes), FormatRate(done_bytes_, elapsed));
  if (done_bytes_ > 0) {
    // Whole seconds: tenths would only flicker.
    const auto left_seconds = static_cast<int64_t>(left_micros / 1e6 + 0.5);
    absl::StrAppend(&line, "  ",
                    left_seconds < 60 ? absl::StrCat(left_seconds, " s")
                                      : FormatDuration(left_seconds * 1'000'000),
                    " left");
  }
  const size_t width = TerminalWidth(stderr);
  // The last column stays free, or some terminals wrap.
  if (width > 1) line = Ellipsize(line, width - 1);
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
}

void ProgressLine::Finish() {
  if (!is_drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  is_drawn_ = false;
}

int64_t ProgressLine::elapsed_micros() const {
  return SystemClock().NowMonotonicMicros() - start_micros_;
}

}  // namespace wstore::cli
