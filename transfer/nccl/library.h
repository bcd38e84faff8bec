// NCCL as the process finds it when it runs: a program that uses it links nothing of it, and runs
// where there is none.
#pragma once

#include <nccl.h>

#include <string>

#include "absl/status/statusor.h"

namespace wstore::nccl {

// The functions that are used here, of one library. Thread-safe, never unloaded.
struct Library {
  decltype(&::ncclGetVersion) GetVersion;
  decltype(&::ncclGetUniqueId) GetUniqueId;
  decltype(&::ncclCommInitRankConfig) CommInitRankConfig;
  decltype(&::ncclCommGetAsyncError) CommGetAsyncError;
  decltype(&::ncclCommAbort) CommAbort;
  decltype(&::ncclBroadcast) Broadcast;
  decltype(&::ncclGroupStart) GroupStart;
  decltype(&::ncclGroupEnd) GroupEnd;
  decltype(&::ncclSend) Send;
  decltype(&::ncclRecv) Recv;
  decltype(&::ncclGetErrorString) GetErrorString;
  decltype(&::ncclGetLastError) GetLastError;
  int version = 0;   // 22803 is 2.28.3
  std::string path;  // of the file
};

// The library that the process has loaded already (PyTorch brings its own), or else libnccl.so.2 as
// the system finds it. Loaded once. NVLink multicast is switched off (NCCL_NVLS_ENABLE=0) unless
// the environment says otherwise, so the first call belongs before other threads read it.
//   kUnavailable: there is none, or it is older than 2.18, or lacks a function
absl::StatusOr<const Library*> LoadLibrary();

// "2.28.3".
std::string VersionName(int version);

}  // namespace wstore::nccl
