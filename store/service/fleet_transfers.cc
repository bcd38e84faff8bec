// Transfer groups: from callers to the book, on the strand.
#include <utility>

#include "store/service/fleet.h"

namespace wstore::service {

void Fleet::TransferHello(const RankProcess& process, const RankSink* sink,
                          wstore::TransferHello hello) {
  strand_.Post([this, process, sink, hello = std::move(hello)] {
    const auto found = ranks_.find(process);
    if (found == ranks_.end() || found->second.sink.get() != sink) return;
    transfers_.Hello(process, found->second.sink, hello, now());
    Feed(protocol::CoordinatorTick{});
  });
}

void Fleet::TransferJoined(const RankProcess& process, uint64_t epoch, const absl::Status& status) {
  strand_.Post([this, process, epoch, status] {
    transfers_.Joined(process, epoch, status, now());
    Feed(protocol::CoordinatorTick{});
  });
}

void Fleet::Lead(uint32_t contributor, std::shared_ptr<RootSink> sink, const std::string& peer,
                 wstore::TransferHello hello, uint64_t frame_bytes, StatusFn refused) {
  strand_.Post([this, contributor, sink = std::move(sink), peer, hello = std::move(hello),
                frame_bytes, refused = std::move(refused)] {
    const absl::Status status = transfers_.Lead(contributor, sink, peer, hello, frame_bytes, now());
    if (!status.ok()) return refused(status);
    Feed(protocol::CoordinatorTick{});
  });
}

void Fleet::RootGone(std::shared_ptr<RootSink> sink) {
  strand_.Post([this, sink = std::move(sink)] { transfers_.RootGone(sink.get(), now()); });
}

void Fleet::RootNames(std::shared_ptr<RootSink> sink, uint64_t epoch,
                      const std::string& unique_id) {
  strand_.Post([this, sink = std::move(sink), epoch, unique_id] {
    transfers_.Name(sink.get(), epoch, unique_id, now());
  });
}

void Fleet::RootJoined(std::shared_ptr<RootSink> sink, uint64_t epoch, const absl::Status& status) {
  strand_.Post([this, sink = std::move(sink), epoch, status] {
    transfers_.RootJoined(sink.get(), epoch, status, now());
    Feed(protocol::CoordinatorTick{});
  });
}

void Fleet::Announce(std::shared_ptr<RootSink> sink, FrameHeader frame, StatusFn refused) {
  strand_.Post(
      [this, sink = std::move(sink), frame = std::move(frame), refused = std::move(refused)] {
        const absl::Status status = transfers_.Announce(sink.get(), frame);
        // Of a group that has ended: its root was told so.
        if (!status.ok() && !absl::IsFailedPrecondition(status)) refused(status);
      });
}

}  // namespace wstore::service
