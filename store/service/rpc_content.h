// What content streams send, one message after the other, as it is wanted: no more is made than the
// reader takes.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "store/service/fleet.h"
#include "wstore/v1/service.pb.h"

namespace wstore::service {

enum class Next {
  kMessage,  // the response is filled
  kLast,     // likewise, and nothing follows it
  kWait,     // nothing yet: ask again once it calls
  kEnd,
};

// One thread at a time. Calls block on files.
template <typename Response>
class Producer {
 public:
  virtual ~Producer() = default;
  virtual absl::StatusOr<Next> Produce(Response* response) = 0;
  // Of one that waits: `wake` is called whenever there may be more, from any thread, until the
  // producer is gone. It must not block.
  virtual void CallWhenReady(std::function<void()>) {}
};

// `live` and `fleet` must outlive what these return.
std::unique_ptr<Producer<v1::ReadManifestResponse>> MakeManifestProducer(LiveStore& live);
absl::StatusOr<std::unique_ptr<Producer<v1::ReadDenseResponse>>> MakeDenseProducer(
    LiveStore& live, const v1::ReadDenseRequest& request);
absl::StatusOr<std::unique_ptr<Producer<v1::ReadDifferenceResponse>>> MakeDifferenceProducer(
    LiveStore& live, Fleet& fleet, const v1::ReadDifferenceRequest& request);
absl::StatusOr<std::unique_ptr<Producer<v1::ReadContentResponse>>> MakeContentProducer(
    LiveStore& live, Fleet& fleet, const v1::ReadContentRequest& request);

}  // namespace wstore::service
