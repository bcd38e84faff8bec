// Ranks of transfer groups as processes of their own. On one GPU each has its own NCCL_HOSTID, so
// that NCCL takes them for machines, and talks over the loopback; with a GPU each they may be of
// one host, and reach each other by NVLink.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tools/process/child_process.h"

namespace wstore::testing {

// What the ranks do, one round after another: in each its members form a group, of which the first
// is the root, and broadcast frames of random bytes.
struct TransferScript {
  // kGpus and kMachines: rank i is on GPU devices[i].
  enum class Place { kOneGpu, kGpus, kMachines };
  Place place = Place::kOneGpu;
  std::vector<int> devices;
  std::vector<std::vector<uint32_t>> rounds;
  uint32_t frames = 6;
  // More than NCCL and the sockets take from the root while nobody reads.
  uint64_t frame_bytes = uint64_t{32} << 20;
  int64_t deadline_micros = 1'000'000;  // of each frame
  // What befalls one rank: "kill" or "stop", before it joins ("join"), or before a frame ("2").
  struct Fault {
    uint32_t rank = 0;
    uint32_t round = 0;
    std::string at;
    std::string how;
  };
  std::vector<Fault> faults;
};

// Another process on this GPU reads a frame of the root's memory: "read " and its SHA-256, or
// "refused " and why.
std::string ReadInOtherProcess(const std::string& location, uint64_t size_bytes);

// The processes of a script. Not thread-safe.
class TransferRanks {
 public:
  // Starts a process for every rank that is a member of a round. Fails the test if it cannot.
  TransferRanks(const TransferScript& script, uint64_t seed);

  ChildProcess& process(uint32_t rank) { return *ranks_.at(rank).process; }
  // The next line of this rank that begins so. Fails the test if none comes within a minute.
  std::string Find(uint32_t rank, const std::string& begin);
  // All that this rank has written.
  std::string Output(uint32_t rank) const;

 private:
  struct Rank {
    std::unique_ptr<ChildProcess> process;
    std::unique_ptr<LineFollower> lines;
  };
  TempDir folder_;
  std::map<uint32_t, Rank> ranks_;
};

}  // namespace wstore::testing
