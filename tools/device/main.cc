// Programs by the name of the first argument.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include <cstring>

#include "tools/wstore/app.h"

int main(int argc, char** argv) {
  if (argc >= 2 && std::strcmp(argv[1], "wstore") == 0) {
    return static_cast<int>(wstore::cli::RunCommandLine(argc - 1, argv + 1));
  }
  if (argc >= 2 && std::strcmp(argv[1], "gpu_tests") == 0) {
    return Catch::Session().run(argc - 1, argv + 1);
  }
  // As `wstore` itself, which it is to those that it starts.
  return static_cast<int>(wstore::cli::RunCommandLine(argc, argv));
}
