// The names of what versions and outcomes can be.
#include "wstore/version.h"
#include "wstore/commit.h"

namespace wstore {

std::string_view VerifiedName(Verified verified) {
  switch (verified) {
    case Verified::kNone:
      return "none";
    case Verified::kMaterialised:
      return "materialised";
    case Verified::kInstalled:
      return "installed";
  }
  return "none";
}

std::optional<Verified> ParseVerified(std::string_view name) {
  for (const Verified verified : {Verified::kNone, Verified::kMaterialised, Verified::kInstalled}) {
    if (VerifiedName(verified) == name) return verified;
  }
  return std::nullopt;
}

std::string_view OutcomeName(CommitResult::Outcome outcome) {
  switch (outcome) {
    case CommitResult::Outcome::kCommitted:
      return "committed";
    case CommitResult::Outcome::kRepeated:
      return "repeated";
    case CommitResult::Outcome::kUnchanged:
      return "unchanged";
    case CommitResult::Outcome::kServedNotDurable:
      return "served-not-durable";
  }
  return "unknown";
}

}  // namespace wstore
