// For chunks that are encoded before their transaction has a number.
#pragma once

#include <cstdint>
#include <string>

#include "wstore/types.h"

namespace wstore {

// Gives a chunk that a ChunkBuilder finished another transaction and contributor.
void ReplaceHeader(TransactionNumber transaction, uint16_t contributor, std::string* chunk);

}  // namespace wstore
