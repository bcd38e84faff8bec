// Layouts as text, to be written by people and programs: JSON, described in docs/formats/layout.md.
// It is the way to place models that have no rules, and engines that keep weights in their own
// manner.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "wstore/layout.h"

namespace wstore {

// The text of a layout that was made for `manifest`. One line for each buffer and each placement.
// Layouts with equal digests have equal texts; reading the text gives a layout with the same
// digest.
std::string WriteLayout(const Manifest& manifest, const Layout& layout);

// Reads the text of a layout for the checkpoint that `manifest` describes. Takes memory in
// proportion to the text, whatever numbers it holds.
//   kInvalidArgument, with everything of one kind listed: not JSON, or JSON of another shape;
//     another format or version; keys unknown or twice; tensors that the checkpoint does not
//     have, with names that are near; unknown buffers; ranges outside tensors or buffers; and
//     what Layout::Create refuses
//   kResourceExhausted: as for Layout::Create
absl::StatusOr<Layout> ReadLayout(std::string_view text, const Manifest& manifest,
                                  uint64_t generation);

}  // namespace wstore
