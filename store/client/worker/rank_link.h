// One Attach stream after another: reports up, orders down.
//
// Nothing blocks. Messages wait in a queue of at most 1,024; a report that waits is replaced by the
// next one, which says all that it said. Past the limit the stream is broken off: the server is not
// taking anything, and a new stream begins with the latest.
//
// Threads: any. What is received is handed on by gRPC's threads, one message at a time.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "store/client/connection.h"

namespace wstore::client {

class RankLink {
 public:
  struct Handler {
    std::function<void(v1::ToRank)> received;
    // The stream has ended; nothing more comes of it. Connect begins the next.
    std::function<void(absl::Status)> ended;
  };

  RankLink(std::shared_ptr<Connection> connection, Handler handler);
  // Breaks the stream off, and waits until gRPC is done with it.
  ~RankLink();

  // Begins a stream with `registration`, in place of one that there may be.
  void Connect(v1::FromRank registration);
  // Where there is no stream: nothing.
  void Send(v1::FromRank message);
  bool is_open() const;
  // Nothing waits to be sent.
  bool is_drained() const;
  // Breaks the stream off; `ended` follows.
  void Break();
  // Ends the stream behind what waits.
  void Finish();

 private:
  class Stream;

  const std::shared_ptr<Connection> connection_;
  const Handler handler_;
  mutable std::mutex mutex_;
  std::shared_ptr<Stream> stream_;
};

}  // namespace wstore::client
