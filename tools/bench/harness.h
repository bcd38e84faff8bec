// What the benchmarks share: scratch space, programs, clocks and medians.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace wstore::bench {

// A directory that is removed with everything in it.
class Scratch {
 public:
  static absl::StatusOr<Scratch> Create(const std::string& parent);
  ~Scratch();
  Scratch(Scratch&& other) noexcept;
  Scratch& operator=(Scratch&&) = delete;

  // It stays.
  void Keep() { path_.clear(); }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Whether a program is on the PATH.
bool HasProgram(const std::string& name);

// Runs a program with its output discarded and returns the seconds that it took.
//   kUnavailable: it could not be started, or did not end with 0
absl::StatusOr<double> RunProgram(const std::vector<std::string>& arguments);

// Runs a program and returns its standard output.
absl::StatusOr<std::string> ReadProgram(const std::vector<std::string>& arguments);

// Seconds of one call.
absl::StatusOr<double> Seconds(const std::function<absl::Status()>& work);

double MedianOf(std::vector<double> results);

// The median of `repetitions` results.
absl::StatusOr<double> Median(int repetitions,
                              const std::function<absl::StatusOr<double>()>& measure);

}  // namespace wstore::bench
