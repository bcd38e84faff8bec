// How long a call may take.
#pragma once

#include <cstdint>

namespace wstore {

// A moment by which a call must have returned. A copy is the same moment, so that several calls can
// share the time there is. The clock never goes back. A value: any thread.
class Deadline {
 public:
  // More than a hundred years count as a hundred years; less than 0 as 0.
  static Deadline After(int64_t micros);

  // 0 once it has passed.
  int64_t left_micros() const;
  bool has_passed() const { return left_micros() == 0; }

 private:
  explicit Deadline(int64_t at_micros) : at_micros_(at_micros) {}
  int64_t at_micros_;
};

}  // namespace wstore
