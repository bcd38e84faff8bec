#include "store/version/actor.h"

#include <pwd.h>
#include <unistd.h>

#include <vector>

namespace wstore {

std::string DefaultActor() {
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> buffer(16384);
  getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found);
  const std::string user = found != nullptr ? found->pw_name : std::to_string(geteuid());
  return user + "@" + host;
}

}  // namespace wstore
