#include "tools/bench/bare_stream.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tools/bench/harness.h"

namespace wstore::bench {
namespace {

constexpr size_t kMessageBytes = 2 << 20;

// Answers any call with messages until `bytes` are sent.
class Stream final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Stream(uint64_t bytes) : left_(bytes) { Send(); }
  void OnWriteDone(bool ok) override { ok ? Send() : Finish(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }

 private:
  void Send() {
    if (left_ == 0) return Finish(grpc::Status::OK);
    const size_t size = std::min<uint64_t>(kMessageBytes, left_);
    left_ -= size;
    const grpc::Slice slice(message_.data(), size);
    buffer_ = grpc::ByteBuffer(&slice, 1);
    StartWrite(&buffer_);
  }

  uint64_t left_;
  const std::string message_ = std::string(kMessageBytes, 'w');
  grpc::ByteBuffer buffer_;
};

class Service final : public grpc::CallbackGenericService {
 public:
  explicit Service(uint64_t bytes) : bytes_(bytes) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Stream(bytes_);
  }

 private:
  const uint64_t bytes_;
};

// Waits for what was started last.
bool Next(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  return queue->Next(&tag, &ok) && ok;
}

absl::Status Receive(const std::string& address, uint64_t bytes) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(2 * kMessageBytes);
  grpc::GenericStub stub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, "/bench/Stream", &queue);
  call->StartCall(nullptr);
  if (!Next(&queue)) return absl::UnavailableError("the bare stream did not start");
  uint64_t got = 0;
  grpc::ByteBuffer buffer;
  for (;;) {
    call->Read(&buffer, nullptr);
    if (!Next(&queue)) break;
    got += buffer.Length();
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  Next(&queue);
  if (status.ok() && got == bytes) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the bare stream ended after ", got, " bytes of ",
                                             bytes, ": ", status.error_message()));
}

}  // namespace

absl::StatusOr<double> TimeBareStream(const std::string& directory, uint64_t bytes) {
  const std::string address = absl::StrCat("unix:", directory, "/bare.sock");
  Service service(bytes);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address));
  }
  return Seconds([&] { return Receive(address, bytes); });
}

}  // namespace wstore::bench
