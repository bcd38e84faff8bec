#include "store/client/frame_cutting.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace wstore::client {
namespace {

constexpr size_t kChunksPerFrame = 4096;
// Between chunks of one frame: less costs less than another frame.
constexpr int64_t kMaxGapBytes = 4096;

using Audience = std::vector<uint32_t>;  // empty: all

// Who wants what.
class Audiences {
 public:
  explicit Audiences(const FrameTakers& takers) : takers_(takers) {
    // Instances of one kind have the same: those are asked once.
    for (const FrameTakers::Member& member : takers.members) {
      auto kind = std::find_if(kinds_.begin(), kinds_.end(), [&](const auto& known) {
        return known.first->tensors == member.tensors;
      });
      if (kind == kinds_.end()) kind = kinds_.insert(kind, {&member, {}});
      kind->second.push_back(member.index);
    }
    wants_all_ = kinds_.size() == 1 && kinds_[0].first->tensors.is_all();
  }

  // Null: nobody wants any of them.
  const Audience* Of(TensorRange tensors) {
    if (wants_all_ || kinds_.empty()) return &all_;
    std::vector<bool> wanting;
    for (const auto& [member, indices] : kinds_) {
      wanting.push_back(member->tensors.HasAnyOf(tensors));
    }
    if (std::find(wanting.begin(), wanting.end(), true) == wanting.end()) return nullptr;
    const auto [found, is_new] = known_.try_emplace(wanting);
    if (is_new) {
      Audience& audience = found->second;
      for (size_t i = 0; i < kinds_.size(); ++i) {
        if (!wanting[i]) continue;
        audience.insert(audience.end(), kinds_[i].second.begin(), kinds_[i].second.end());
      }
      std::sort(audience.begin(), audience.end());
      Widen(&audience);
    }
    return &found->second;
  }

  Audience Union(const Audience& a, const Audience& b) const {
    Audience both;
    if (a.empty() || b.empty()) return both;
    std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
    Widen(&both);
    return both;
  }

 private:
  void Widen(Audience* audience) const {
    const uint32_t size = takers_.communicator;
    const auto end = std::lower_bound(audience->begin(), audience->end(), size);
    const auto in_it = static_cast<size_t>(end - audience->begin());
    if (size > 1 && 2 * in_it > size - 1) {
      audience->erase(audience->begin(), end);
      for (uint32_t i = size; i-- > 1;) audience->insert(audience->begin(), i);
    }
    if (audience->size() == takers_.members.size()) audience->clear();
  }

  const FrameTakers& takers_;
  std::vector<std::pair<const FrameTakers::Member*, std::vector<uint32_t>>> kinds_;
  bool wants_all_ = false;
  const Audience all_;
  std::map<std::vector<bool>, Audience> known_;
};

}  // namespace

std::vector<Stretch> CutFrames(absl::Span<const DeviceChunk> chunks, const FrameTakers& takers,
                               TransferLead::SetPart part, uint64_t* unsent) {
  std::vector<DeviceChunk> sorted(chunks.begin(), chunks.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const DeviceChunk& a, const DeviceChunk& b) { return a.data < b.data; });
  const uint64_t small_bytes = std::min(kSmallFrameBytes, takers.frame_bytes / 8);
  Audiences audiences(takers);
  std::vector<Stretch> stretches;
  const uint8_t* end = nullptr;
  for (const DeviceChunk& chunk : sorted) {
    const Audience* const audience = audiences.Of(chunk.tensors);
    if (audience == nullptr) {
      ++*unsent;
      continue;
    }
    const auto* const data = static_cast<const uint8_t*>(chunk.data);
    bool follows = end != nullptr && data - end <= kMaxGapBytes &&
                   data + chunk.size_bytes - stretches.back().data <=
                       static_cast<int64_t>(takers.frame_bytes) &&
                   stretches.back().frame.chunks.size() < kChunksPerFrame;
    if (follows && stretches.back().frame.audience != *audience) {
      FrameHeader& before = stretches.back().frame;
      follows = before.size_bytes < small_bytes;
      if (follows) before.audience = audiences.Union(before.audience, *audience);
    }
    if (!follows) {
      stretches.push_back({data, {}});
      stretches.back().frame.audience = *audience;
    }
    FrameHeader& frame = stretches.back().frame;
    const auto offset = static_cast<uint64_t>(data - stretches.back().data);
    frame.chunks.push_back({offset, chunk.size_bytes});
    frame.size_bytes = offset + chunk.size_bytes;
    frame.unsent_chunks += std::exchange(*unsent, 0);
    end = data + chunk.size_bytes;
  }
  if (part == TransferLead::SetPart::kLast) {
    if (stretches.empty()) stretches.emplace_back();
    stretches.back().frame.is_last = true;
    stretches.back().frame.unsent_chunks += std::exchange(*unsent, 0);
  }
  return stretches;
}

}  // namespace wstore::client
