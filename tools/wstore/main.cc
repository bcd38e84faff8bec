#include "tools/wstore/app.h"

int main(int argc, char** argv) {
  return static_cast<int>(wstore::cli::RunCommandLine(argc, argv));
}
