// A publish whose outcome is not known yet, and what is to be done once it is.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "store/client/connection.h"
#include "wstore/deadline.h"
#include "wstore/served.h"

namespace wstore::client {

// One thread at a time.
class Doubt {
 public:
  // Where a commit went, the publisher's shadow goes.
  using Follow = std::function<absl::Status(const Decision&)>;

  void Raise(std::string id, Follow follow);
  // Of the publish in doubt, if there is one.
  const std::optional<std::string>& id() const { return id_; }

  // Asks what became of it, and follows it if it was committed. Without a doubt, nothing.
  //   kUnknown: that is not known yet; the doubt stays
  //   others: of `follow`; the doubt is settled
  absl::Status Settle(const Connection& connection, Deadline deadline);

 private:
  std::optional<std::string> id_;
  Follow follow_;
};

}  // namespace wstore::client
