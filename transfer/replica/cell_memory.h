// Whole cells in host memory: summed, and written from dense bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "transfer/replica/plan.h"

namespace wstore {

// The sum over a cell's elements in [begin, end) of its tensor. `scratch` is kept between uses.
Fingerprint SumCell(const TensorFingerprinter& fingerprinter, const PlannedCell& cell,
                    const uint8_t* buffer, uint64_t begin, uint64_t end,
                    std::vector<uint8_t>* scratch);

// Writes a cell's elements in [begin, end) of its tensor; `dense` holds all of these.
void WriteCell(const PlannedCell& cell, const uint8_t* dense, uint64_t begin, uint64_t end,
               uint8_t* buffer);

}  // namespace wstore
