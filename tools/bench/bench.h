// Benchmarks: each measures something and its rivals in the same run, on data of its own.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace wstore::bench {

struct Measurement {
  std::string bench;
  std::string name;  // of the case; ends in the density where there is one: "bf16 1%"
  double value = 0;  // a cost: lower is better
  std::string unit;  // "s", "bytes per element"
  std::string rival;
  double rival_value = 0;
  // Of what was worked on, for rates; 0 where a rate says nothing.
  double bytes = 0;

  // Above 1: ahead of the rival.
  double ratio() const { return rival_value / value; }
};

struct Options {
  // All densities and sizes; without it a run takes under 40 s.
  bool full = false;
  // Where data is made, on a disk with room for it (1.7 GB, with `full` 12 GB); removed afterwards.
  std::string directory;
  // The wstore program, for benchmarks of whole commands.
  std::string program;
  // "cpu" or "cuda:0"; empty: none was named, and benchmarks that need a GPU are left out of a run
  // of all.
  std::string device;
  // update: rank 0 is on the trainer's GPU; otherwise on the next one.
  bool colocated = false;
  // update: of the instance, each on a GPU of its own; and whether they subscribe.
  uint32_t ranks = 1;
  bool subscribes = false;
  // update: the parts that changes are found and sent in; 0: as the publisher has it.
  uint32_t parts = 0;
  bool has_peer = false;  // found out by the benchmark
  // Told what is being done.
  std::function<void(std::string_view)> report;
};

struct Benchmark {
  std::string_view name;
  std::string_view summary;
  bool on_gpu;
  absl::StatusOr<std::vector<Measurement>> (*run)(const Options& options);
};

// All of them, in order of name.
absl::Span<const Benchmark> Benchmarks();

absl::StatusOr<std::vector<Measurement>> RunApply(const Options& options);
absl::StatusOr<std::vector<Measurement>> RunBase(const Options& options);
absl::StatusOr<std::vector<Measurement>> RunCompose(const Options& options);
absl::StatusOr<std::vector<Measurement>> RunExport(const Options& options);
absl::StatusOr<std::vector<Measurement>> RunPublish(const Options& options);
absl::StatusOr<std::vector<Measurement>> RunService(const Options& options);
// On GPUs, by Options::device. kUnavailable: built without CUDA, or no driver or device.
absl::StatusOr<std::vector<Measurement>> RunGpuApply(const Options& options);
absl::StatusOr<std::vector<Measurement>> RunGpuAudit(const Options& options);
absl::StatusOr<std::vector<Measurement>> RunGpuDiff(const Options& options);
// Needs NCCL to be built.
absl::StatusOr<std::vector<Measurement>> RunGpuUpdate(const Options& options);

}  // namespace wstore::bench
