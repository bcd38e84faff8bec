// A served model, and publishers at the head of transfer groups where the transport has such.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/transfer/open_publish.h"
#include "tests/conformance/transfer/transport.h"
#include "tests/unit/worker/served_model.h"
#include "wstore/transfer_lead.h"

namespace wstore::testing {

inline constexpr int64_t kSecondMicros = 1'000'000;

// Chunks side by side in memory of the device, as a differ leaves them, but for some that lie
// elsewhere.
class Arena {
 public:
  // Of which tensors they are is taken from those of `named`, as far as they can be read.
  Arena(const Manifest& manifest, const std::vector<std::string>& chunks,
        const std::vector<std::string>& named) {
    const auto aligned = [](uint64_t size) { return (size + 15) / 16 * 16; };
    uint64_t size = 0;
    for (const std::string& chunk : chunks) size += aligned(chunk.size()) + 16;
    auto* const start = static_cast<uint8_t*>(device_->Allocate(size));
    uint64_t at = 0;
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (i % 3 == 2) at += 16;
      device_->Write(reinterpret_cast<const uint8_t*>(chunks[i].data()), chunks[i].size(),
                     start + at);
      chunks_.push_back({start + at, chunks[i].size()});
      if (i < named.size()) {
        const auto view = ChunkView::Parse(named[i], manifest);
        if (view.ok()) {
          chunks_.back().tensors = {view->tiles().front().place.tensor,
                                    view->tiles().back().place.tensor + 1};
        }
      }
      at += aligned(chunks[i].size());
    }
  }
  const std::vector<DeviceChunk>& chunks() const { return chunks_; }

 private:
  const std::unique_ptr<TestDevice> device_ = MakeTestDevice();
  std::vector<DeviceChunk> chunks_;
};

// A port of another machine: it cannot be reached.
class FarPort final : public TransferPort {
 public:
  TransferHello hello() const override { return {"elsewhere", "another device", 0, {}, {}}; }
  absl::StatusOr<std::string> NewUniqueId() override { return absl::UnimplementedError("none"); }
  absl::StatusOr<std::unique_ptr<FrameReceiver>> Join(const TransferPlan&, Deadline,
                                                      std::function<bool()>) override {
    return absl::UnimplementedError("none");
  }
  absl::StatusOr<std::unique_ptr<FrameSender>> Lead(const TransferPlan&, Deadline,
                                                    std::function<bool()>) override {
    return absl::UnimplementedError("none");
  }
};

// A root's port whose senders break after so many frames.
class BreakingPort final : public TransferPort {
 public:
  explicit BreakingPort(std::shared_ptr<TransferPort> inner) : inner_(std::move(inner)) {}
  void BreakAfter(int64_t frames) { frames_left_ = frames; }

  TransferHello hello() const override { return inner_->hello(); }
  absl::StatusOr<std::string> NewUniqueId() override { return inner_->NewUniqueId(); }
  absl::StatusOr<std::unique_ptr<FrameReceiver>> Join(const TransferPlan& plan, Deadline deadline,
                                                      std::function<bool()> cancelled) override {
    return inner_->Join(plan, deadline, std::move(cancelled));
  }
  absl::StatusOr<std::unique_ptr<FrameSender>> Lead(const TransferPlan& plan, Deadline deadline,
                                                    std::function<bool()> cancelled) override {
    auto sender = inner_->Lead(plan, deadline, std::move(cancelled));
    if (!sender.ok()) return sender.status();
    return std::make_unique<Sender>(*std::move(sender), &frames_left_);
  }

 private:
  class Sender final : public FrameSender {
   public:
    Sender(std::unique_ptr<FrameSender> inner, std::atomic<int64_t>* left)
        : inner_(std::move(inner)), left_(*left) {}
    absl::StatusOr<std::string> Locate(const void* data, uint64_t size_bytes) override {
      return inner_->Locate(data, size_bytes);
    }
    absl::Status Send(const FrameHeader& frame, const void* data, Deadline deadline) override {
      if (left_.fetch_sub(1) <= 0) return absl::UnavailableError("it breaks here");
      return inner_->Send(frame, data, deadline);
    }
    absl::Status Drain(Deadline deadline) override { return inner_->Drain(deadline); }
    void Cancel() override { inner_->Cancel(); }

   private:
    const std::unique_ptr<FrameSender> inner_;
    std::atomic<int64_t>& left_;
  };

  const std::shared_ptr<TransferPort> inner_;
  std::atomic<int64_t> frames_left_{INT64_MAX};
};

struct TransferRig {
  explicit TransferRig(uint64_t seed, uint32_t contributors = 1, uint64_t frame_bytes = 32 << 20)
      : served(seed), leads(contributors) {
    options.frame_bytes = frame_bytes;
    if (transport.has_port()) port = std::make_shared<BreakingPort>(transport.make_port());
    for (uint32_t i = 0; i < contributors; ++i) Lead(i);
  }

  void Lead(uint32_t contributor) {
    leads[contributor].reset();
    if (!transport.has_port()) return;
    options.contributor = contributor;
    // The server may not have seen the one before go; then it tries again.
    auto started = TransferLead::Start(served.connect(), port, options);
    REQUIRE_OK(started);
    leads[contributor] = *std::move(started);
  }
  // Before the instance starts.
  void Reach(TestInstance& instance) const {
    if (!transport.has_port()) return;
    for (auto& rank : instance.ranks) rank->options.transfer = transport.make_port();
  }
  // Until so many ranks are reached as the transport reaches them, and no others.
  void AwaitReached(size_t ranks) const {
    for (const auto& lead : leads) {
      if (lead == nullptr) continue;
      REQUIRE_OK(lead->AwaitRanks(ranks, Deadline::After(10 * kSecondMicros)));
      size_t reached = 0;
      for (const auto& rank : lead->status().ranks) reached += rank.route == transport.route;
      REQUIRE(reached == ranks);
    }
  }

  // Frames of these chunks.
  absl::Status Send(TransactionNumber transaction, const std::vector<std::string>& chunks,
                    uint32_t contributor = 0, const std::vector<std::string>* named = nullptr) {
    arenas.push_back(
        std::make_unique<Arena>(served.manifest(), chunks, named != nullptr ? *named : chunks));
    return leads.at(contributor)
        ->Send(transaction, arenas.back()->chunks(), Deadline::After(5 * kSecondMicros));
  }
  // The way to the ranks that is under test: frames, or a put to the service.
  absl::Status Deliver(OpenPublish& publish, const std::vector<std::string>& chunks,
                       uint32_t contributor = 0) {
    if (transport.has_port()) return Send(publish.transaction, chunks, contributor);
    const grpc::Status put = publish.Put(contributor, chunks);
    return absl::Status(static_cast<absl::StatusCode>(put.error_code()), put.error_message());
  }
  OpenPublish Begin(uint64_t from, NaiveTensors to, OpenPublish::Options how = {}) {
    how.id = "publish " + std::to_string(++publishes);
    how.contributors = static_cast<uint32_t>(leads.size());
    how.is_carried = transport.has_port();
    return OpenPublish(served, from, std::move(to), how);
  }
  // All of it as it should be. The version, and how many bytes were carried.
  std::pair<uint64_t, uint64_t> Publish(uint64_t from, NaiveTensors to,
                                        const OpenPublish::Options& how = {}) {
    OpenPublish publish = Begin(from, std::move(to), how);
    for (uint32_t i = 0; i < leads.size(); ++i) {
      REQUIRE_OK(Deliver(publish, publish.chunks[i], i));
      REQUIRE(publish.Put(i).ok());
    }
    v1::Decision decision;
    const grpc::Status status = publish.CommitAll(&decision);
    INFO(status.error_message());
    REQUIRE(status.ok());
    const uint64_t version = decision.version().version();
    if (version != from) served.versions[version] = publish.next;
    return {version, transport.has_port() ? publish.size_bytes() : 0};
  }

  ServedModel served;
  const Transport transport = TransportUnderTest();
  TransferLeadOptions options;
  std::shared_ptr<BreakingPort> port;
  std::vector<std::unique_ptr<Arena>> arenas;        // ranks may read them
  std::vector<std::unique_ptr<TransferLead>> leads;  // by contributor; null: without a port
  int publishes = 0;
};

}  // namespace wstore::testing
