// What a rank shows the others of its instance.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "store/client/worker/safe_point_gate.h"
#include "store/protocol/types.h"
#include "wstore/update.h"

namespace wstore::client {

struct BoardRecord {
  uint64_t nonce = 0;  // of the process
  uint64_t layout_generation = 0;
  Digest layout_digest;
  GateRecord gate;
  std::optional<protocol::ReadyKey> key;  // the rank could serve
  std::optional<VersionName> holds;       // proved
  std::optional<VersionName> claims;      // to be proved: others at this version are to audit, too

  friend bool operator==(const BoardRecord&, const BoardRecord&) = default;
};

std::string Encode(const BoardRecord& record);
// Nothing: empty, or written by another program.
std::optional<BoardRecord> DecodeBoardRecord(std::string_view bytes);

}  // namespace wstore::client
