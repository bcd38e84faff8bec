// The way of a publish over the wire: begin, put, commit, and what to do where one of them breaks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "store/client/connection.h"
#include "store/client/encoded_set.h"
#include "wstore/served.h"
#include "wstore/upload.h"

namespace wstore::client {

// Errors of a call that may be repeated: what may come from a broken connection becomes
// kUnavailable.
absl::Status Repeatable(const absl::Status& status);

// Whether an error leaves open what became of a call that changes something.
bool IsAmbiguous(const absl::Status& status);

// "run-7/1", or 32 random hexadecimal digits.
std::string IdOrRandom(const std::string& id);

// What a publish says of the version that it was made against.
void BuildOn(const HeadInfo& parent, PublishOptions* options);

struct Begun {
  TransactionNumber transaction;
  VersionId version;
  HeadInfo parent;
  std::optional<Decision> repeated;
};
// Opens or joins a publish. `content`: the digest of its patch set, if that is known.
absl::StatusOr<Begun> Begin(const Connection& connection, const PublishOptions& options,
                            const std::string& actor, const std::optional<Digest>& content,
                            Deadline deadline);

// Sends one contributor's chunks, from where the server is, over as many streams as it takes.
// Writes transaction and contributor into the chunks.
//   kNotFound: the transaction has ended
absl::Status PutSet(const Connection& connection, TransactionNumber transaction,
                    uint32_t contributor, EncodedSet* set, Deadline deadline);
// The same of chunks that have them.
absl::Status PutChunks(const Connection& connection, TransactionNumber transaction,
                       uint32_t contributor, absl::Span<const std::string_view> chunks,
                       Deadline deadline);
// Aborts a publish that cannot go on, so that others need not wait for it.
void TakeBack(const Connection& connection, const std::string& id, const absl::Status& cause,
              Deadline deadline);

// What a contributor says of its chunks.
struct Declaration {
  uint64_t chunks = 0;
  uint64_t elements = 0;
  Digest digest;
  std::optional<TouchedByTensor> touched;
};
Declaration DeclarationOf(const EncodedSet& set);

// Says that a contributor has sent all, or sends it with that, or will send it, and waits for the
// decision.
//   kNotFound: nothing was committed under the id: the server was started again meanwhile
//   kUnknown: neither the decision nor an answer to Ask came in time
enum class Content { kSent, kIncluded, kFollows };
absl::StatusOr<Decision> Commit(const Connection& connection, const std::string& id,
                                TransactionNumber transaction, uint32_t contributor,
                                const Declaration& declared, Content content,
                                absl::Span<const std::string> included, Deadline deadline);

// What became of an id after `cause`.
//   kNotFound, kAborted: as Ask says
//   kUnknown: no answer in time
absl::StatusOr<Decision> Settle(const Connection& connection, const std::string& id,
                                const absl::Status& cause, Deadline deadline);

// Calls `call`, which moves head under an id, and settles what it leaves open.
absl::StatusOr<Decision> Decide(const Connection& connection, const std::string& id,
                                Deadline deadline,
                                const std::function<absl::Status(v1::Decision*)>& call);

// A whole publish by one contributor, begun again where the server was started again. `at`: the
// version that the set was made against. An id that was committed is compared by content.
absl::StatusOr<Decision> PublishSet(const Connection& connection, const PublishOptions& options,
                                    const std::string& actor, VersionId at, EncodedSet* set,
                                    Deadline deadline);

// The committed version of an id, if it has the content that `set` makes of version `at`.
//   kAlreadyExists: it has other content
absl::StatusOr<Decision> RepeatedDecision(const Connection& connection, const std::string& id,
                                          VersionId at, const Digest& set_digest,
                                          Deadline deadline);

}  // namespace wstore::client
