#include "transfer/nccl/library.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace wstore::nccl {
namespace {

constexpr char kName[] = "libnccl.so.2";
// Non-blocking communicators work from here on.
constexpr int kOldestVersion = 21800;

template <typename Function>
absl::Status Find(void* handle, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(dlsym(handle, name));
  if (*out != nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(kName, " has no function ", name));
}

absl::StatusOr<const Library*> Load() {
  void* handle = dlopen(kName, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) handle = dlopen(kName, RTLD_NOW);
  if (handle == nullptr) {
    return absl::UnavailableError(absl::StrCat("NCCL cannot be loaded: ", dlerror(),
                                               "; install it, or name its folder in ",
                                               "LD_LIBRARY_PATH"));
  }
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  auto* const library = new Library();
  RETURN_IF_ERROR(Find(handle, "ncclGetVersion", &library->GetVersion));
  RETURN_IF_ERROR(Find(handle, "ncclGetUniqueId", &library->GetUniqueId));
  RETURN_IF_ERROR(Find(handle, "ncclCommInitRankConfig", &library->CommInitRankConfig));
  RETURN_IF_ERROR(Find(handle, "ncclCommGetAsyncError", &library->CommGetAsyncError));
  RETURN_IF_ERROR(Find(handle, "ncclCommAbort", &library->CommAbort));
  RETURN_IF_ERROR(Find(handle, "ncclBroadcast", &library->Broadcast));
  RETURN_IF_ERROR(Find(handle, "ncclGroupStart", &library->GroupStart));
  RETURN_IF_ERROR(Find(handle, "ncclGroupEnd", &library->GroupEnd));
  RETURN_IF_ERROR(Find(handle, "ncclSend", &library->Send));
  RETURN_IF_ERROR(Find(handle, "ncclRecv", &library->Recv));
  RETURN_IF_ERROR(Find(handle, "ncclGetErrorString", &library->GetErrorString));
  RETURN_IF_ERROR(Find(handle, "ncclGetLastError", &library->GetLastError));
  library->GetVersion(&library->version);
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(library->GetVersion), &info) != 0 && info.dli_fname) {
    library->path = info.dli_fname;
  }
  if (library->version < kOldestVersion) {
    return absl::UnavailableError(absl::StrCat(
        library->path, " is NCCL ", VersionName(library->version), "; 2.18 or newer is needed"));
  }
  return library;
}

}  // namespace

absl::StatusOr<const Library*> LoadLibrary() {
  static const auto* const loaded = new absl::StatusOr<const Library*>(Load());
  return *loaded;
}

std::string VersionName(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace wstore::nccl
