// Philox2x64-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011):
// a keyed function of a counter, so that any multiplier of a fingerprint can be had without the
// others.
#pragma once

#include <array>
#include <cstdint>

namespace wstore::internal {

constexpr std::array<uint64_t, 2> Philox2x64(std::array<uint64_t, 2> counter, uint64_t key) {
  constexpr uint64_t kMultiplier = 0xD2B74407B1CE6E93;
  constexpr uint64_t kWeyl = 0x9E3779B97F4A7C15;
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const auto product = static_cast<unsigned __int128>(counter[0]) * kMultiplier;
    counter = {static_cast<uint64_t>(product >> 64) ^ key ^ counter[1],
               static_cast<uint64_t>(product)};
    key += kWeyl;
  }
  return counter;
}

}  // namespace wstore::internal
