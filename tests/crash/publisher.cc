// Publishes one version after another until it is killed, and says so on standard output each time
// a commit has returned: "N", the number of the version, a line.
//
//   crash_publisher STORE WORK_DIRECTORY
#include <cstdio>
#include <string>

#include "tests/crash/model.h"
#include "wstore/store.h"

namespace wstore::testing {
namespace {

int Run(const std::string& store_path, const std::string& work_directory) {
  auto store = Store::Open(store_path, {});
  if (!store.ok()) {
    std::fprintf(stderr, "open: %s\n", store.status().ToString().c_str());
    return 1;
  }
  // Publish n has the id "publish-n", also after a restart.
  NaiveTensors tensors = CrashModelBase();
  uint64_t publish = 0;
  const uint64_t done = (*store)->versions().size() - 1;
  while (publish < done) MutateCrashModel(++publish, &tensors);
  std::printf("open\n");
  std::fflush(stdout);
  while (true) {
    MutateCrashModel(++publish, &tensors);
    const std::string path = work_directory + "/next.safetensors";
    WriteFile(path, NaiveWrite(tensors, NamesOf(tensors)));
    BeginOptions options;
    options.transaction_id = "publish-" + std::to_string(publish);
    auto transaction = (*store)->Begin(options);
    absl::Status status = transaction.status();
    if (status.ok()) status = (*transaction)->SetCheckpoint(path);
    if (status.ok()) {
      const auto result = (*transaction)->Commit();
      status = result.status();
      if (status.ok()) std::printf("%s\n", ToString(result->version).c_str());
    }
    if (!status.ok()) {
      std::fprintf(stderr, "publish: %s\n", status.ToString().c_str());
      return 1;
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace wstore::testing

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return wstore::testing::Run(argv[1], argv[2]);
}
