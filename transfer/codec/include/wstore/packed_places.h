// Which tiles a packed chunk has.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "wstore/manifest.h"

namespace wstore {

// The tiles of a packed chunk, ascending, without unpacking the rest.
//   kDataLoss: as UnpackChunk, as far as it looks
absl::StatusOr<std::vector<TilePlace>> PackedTilePlaces(std::string_view packed,
                                                        const Manifest& manifest);

}  // namespace wstore
