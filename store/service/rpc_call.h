// One call with one request and one response.
#pragma once

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "store/service/rpc_service.h"

namespace wstore::service {

inline absl::Status Reopening() {
  return absl::UnavailableError("the journal is being reopened; try again");
}

// Copies of one call share it; whoever has the answer ends it.
class RpcService::Call {
 public:
  Call(RpcService& service, Context* context, const char* method)
      : service_(service),
        reactor_(context->DefaultReactor()),
        method_(method),
        peer_(service.PeerOf(*context)),
        begun_(SystemClock().NowMonotonicMicros()) {
    if (context->deadline() == std::chrono::system_clock::time_point::max()) {
      Finish(absl::InvalidArgumentError("a call without a deadline; set one"));
    }
  }

  bool finished() const { return finished_; }
  Unary* reactor() const { return reactor_; }

  void Finish(const absl::Status& status) {
    if (finished_) return;
    finished_ = true;
    const int64_t micros = SystemClock().NowMonotonicMicros() - begun_;
    std::string line =
        absl::StrCat("level=info event=call method=", method_, " peer=\"", peer_,
                     "\" code=", static_cast<int>(status.code()), " duration_ms=", micros / 1000);
    if (!status.ok()) {
      absl::StrAppend(&line, " error=\"", status.message().substr(0, 512), "\"");
    }
    service_.Log(line);
    reactor_->Finish(ToGrpc(status, service_.HeadNow()));
  }

 private:
  RpcService& service_;
  Unary* const reactor_;
  const char* const method_;
  const std::string peer_;
  const int64_t begun_;
  bool finished_ = false;
};

}  // namespace wstore::service
