#include "store/client/sending.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "store/client/difference.h"
#include "store/client/messages.h"
#include "store/client/transfer_messages.h"
#include "wstore/chunk_header.h"

namespace wstore::client {
namespace {

constexpr size_t kRandomIdBytes = 16;
constexpr int64_t kAbortMicros = 2'000'000;
constexpr auto kPause = std::chrono::milliseconds(20);
// A set of no more is sent with the request to commit it.
constexpr size_t kSmallSetBytes = 64 << 10;

// One stream of Put. `resumes`: the server is asked first what it has; otherwise it has nothing, or
// what it is sent again. `safe` is the sequence number that the server expects next.
absl::Status PutOnce(const Connection& connection, TransactionNumber transaction,
                     uint32_t contributor, absl::Span<const std::string_view> chunks, bool resumes,
                     Deadline deadline) {
  grpc::ClientContext context;
  Connection::SetDeadline(&context, deadline);
  const auto stream = connection.stub().Put(&context);
  v1::PutRequest request;
  request.set_transaction(transaction.value());
  request.set_contributor(contributor);
  v1::PutResponse response;
  uint64_t safe = 0;
  if (resumes) {
    if (!stream->Write(request) || !stream->Read(&response)) {
      const absl::Status status = connection.FromGrpc(stream->Finish());
      return status.ok() ? absl::UnavailableError("the server ended the stream early") : status;
    }
    safe = response.next_sequence();
    request.Clear();
  }
  for (uint64_t next = safe; next < chunks.size(); ++next) {
    request.set_sequence(next);
    request.set_chunk(chunks[next].data(), chunks[next].size());
    grpc::WriteOptions options;
    if (next + 1 == chunks.size()) options.set_last_message();
    if (!stream->Write(request, options)) break;
    request.Clear();
  }
  if (safe >= chunks.size()) stream->WritesDone();
  while (stream->Read(&response)) safe = response.next_sequence();
  const absl::Status status = connection.FromGrpc(stream->Finish());
  if (!status.ok() || safe == chunks.size()) return status;
  if (safe > chunks.size()) {
    return absl::AlreadyExistsError(
        absl::StrCat("the server has ", safe, " chunks under this id, and this content has only ",
                     chunks.size(), ": it was begun with other content; use another id"));
  }
  return absl::UnavailableError(
      absl::StrCat("the server took ", safe, " of ", chunks.size(), " chunks"));
}

absl::Status UnknownOutcome(const std::string& id, const absl::Status& cause) {
  return absl::UnknownError(
      absl::StrCat("outcome unknown, ask by transaction id '", id,
                   "' (`wstore tx show`), or do the same again under that id: ", cause.message()));
}

}  // namespace

absl::Status Repeatable(const absl::Status& status) {
  if (!absl::IsUnknown(status) && !absl::IsCancelled(status)) return status;
  return absl::UnavailableError(status.message());
}

bool IsAmbiguous(const absl::Status& status) {
  return absl::IsUnknown(status) || absl::IsCancelled(status) || absl::IsUnavailable(status) ||
         absl::IsDeadlineExceeded(status) || absl::IsInternal(status);
}

std::string IdOrRandom(const std::string& id) {
  if (!id.empty()) return id;
  return absl::BytesToHexString(SecureRandomBytes(kRandomIdBytes));
}

void BuildOn(const HeadInfo& parent, PublishOptions* options) {
  BeginOptions& begin = options->begin;
  begin.parent = parent.version;
  begin.parent_chain_digest = parent.chain_digest;
  begin.base_digest = parent.base_digest;
  begin.move = parent.move;
}

absl::StatusOr<Begun> Begin(const Connection& connection, const PublishOptions& options,
                            const std::string& actor, const std::optional<Digest>& content,
                            Deadline deadline) {
  v1::BeginRequest request = ToProto(options, actor);
  if (content) request.set_patch_digest(ToBytes(*content));
  v1::BeginResponse response;
  // Begin joins what is open under the id, so it may be done twice.
  RETURN_IF_ERROR(Retry(connection, deadline, [&] {
    return Repeatable(connection.Call(&v1::Store::Stub::Begin, request, &response, deadline));
  }));
  Begun begun;
  if (response.has_repeated()) {
    ASSIGN_OR_RETURN(begun.repeated, FromProto(response.repeated(), request.id()));
    return begun;
  }
  begun.transaction = TransactionNumber(response.transaction());
  begun.version = VersionId(response.version());
  begun.parent.version = VersionId(response.parent().version());
  ASSIGN_OR_RETURN(begun.parent.chain_digest,
                   DigestOf(response.parent().chain_digest(), "the parent's chain digest"));
  begun.parent.move = MoveNumber(response.parent_move());
  return begun;
}

namespace {

void NameChunks(TransactionNumber transaction, uint32_t contributor, EncodedSet* set) {
  for (std::string& chunk : set->chunks) {
    ReplaceHeader(transaction, static_cast<uint16_t>(contributor), &chunk);
  }
}

bool IsSmall(const EncodedSet& set) {
  size_t size_bytes = 0;
  for (const std::string& chunk : set.chunks) size_bytes += chunk.size();
  return size_bytes <= kSmallSetBytes;
}

}  // namespace

absl::Status PutSet(const Connection& connection, TransactionNumber transaction,
                    uint32_t contributor, EncodedSet* set, Deadline deadline) {
  RETURN_IF_ERROR(connection.CheckProcess());
  NameChunks(transaction, contributor, set);
  return PutChunks(connection, transaction, contributor,
                   std::vector<std::string_view>(set->chunks.begin(), set->chunks.end()), deadline);
}

absl::Status PutChunks(const Connection& connection, TransactionNumber transaction,
                       uint32_t contributor, absl::Span<const std::string_view> chunks,
                       Deadline deadline) {
  bool resumes = false;
  return Retry(connection, deadline, [&] {
    return Repeatable(PutOnce(connection, transaction, contributor, chunks,
                              std::exchange(resumes, true), deadline));
  });
}

void TakeBack(const Connection& connection, const std::string& id, const absl::Status& cause,
              Deadline deadline) {
  v1::AbortRequest request;
  request.set_id(id);
  request.set_reason(absl::StrCat("the contributor gave up: ", cause.message()).substr(0, 1000));
  v1::AbortResponse response;
  const int64_t micros = std::min(kAbortMicros, deadline.left_micros());
  if (micros == 0) return;
  static_cast<void>(
      connection.Call(&v1::Store::Stub::Abort, request, &response, Deadline::After(micros)));
}

absl::StatusOr<Decision> Settle(const Connection& connection, const std::string& id,
                                const absl::Status& cause, Deadline deadline) {
  if (deadline.has_passed()) return UnknownOutcome(id, cause);
  v1::AskRequest request;
  request.set_id(id);
  v1::Decision decision;
  const absl::Status status = Retry(connection, deadline, [&] {
    return Repeatable(connection.Call(&v1::Store::Stub::Ask, request, &decision, deadline));
  });
  if (status.ok()) return FromProto(decision, id);
  return IsAmbiguous(status) ? UnknownOutcome(id, cause) : status;
}

Declaration DeclarationOf(const EncodedSet& set) {
  return {set.chunks.size(), set.elements, set.digest, set.touched};
}

absl::StatusOr<Decision> Commit(const Connection& connection, const std::string& id,
                                TransactionNumber transaction, uint32_t contributor,
                                const Declaration& declared, Content content,
                                absl::Span<const std::string> included, Deadline deadline) {
  v1::CommitRequest request;
  if (content == Content::kIncluded) {
    request.mutable_content()->Assign(included.begin(), included.end());
  }
  request.set_content_follows(content == Content::kFollows);
  request.set_transaction(transaction.value());
  request.set_contributor(contributor);
  request.set_chunks(declared.chunks);
  request.set_elements(declared.elements);
  request.set_digest(ToBytes(declared.digest));
  if (declared.touched) {
    *request.mutable_sums() = wire::ToProto(*declared.touched);
  }
  v1::Decision decision;
  // It may be sent twice: a contributor that has finished may finish again.
  absl::Status first;
  const absl::Status status = Retry(connection, deadline, [&] {
    const absl::Status now =
        Repeatable(connection.Call(&v1::Store::Stub::Commit, request, &decision, deadline));
    if (first.ok()) first = now;
    return now;
  });
  if (status.ok()) return FromProto(decision, id);
  // A transaction that has ended is known by its id alone.
  if (absl::IsNotFound(status)) return Settle(connection, id, first, deadline);
  return IsAmbiguous(status) ? Settle(connection, id, status, deadline) : status;
}

absl::StatusOr<Decision> Decide(const Connection& connection, const std::string& id,
                                Deadline deadline,
                                const std::function<absl::Status(v1::Decision*)>& call) {
  for (;;) {
    // What is not sent has not happened.
    RETURN_IF_ERROR(connection.WaitUntilConnected(deadline));
    v1::Decision decision;
    const absl::Status status = call(&decision);
    if (status.ok()) return FromProto(decision, id);
    if (!IsAmbiguous(status)) return status;
    absl::StatusOr<Decision> settled = Settle(connection, id, status, deadline);
    if (!absl::IsNotFound(settled.status())) return settled;
    // Nothing was done.
    if (!absl::IsUnavailable(status) || deadline.has_passed()) return status;
    std::this_thread::sleep_for(kPause);
  }
}

absl::StatusOr<Decision> RepeatedDecision(const Connection& connection, const std::string& id,
                                          VersionId at, const Digest& set_digest,
                                          Deadline deadline) {
  v1::AskRequest ask;
  ask.set_id(id);
  v1::Decision answer;
  RETURN_IF_ERROR(Retry(connection, deadline, [&] {
    return Repeatable(connection.Call(&v1::Store::Stub::Ask, ask, &answer, deadline));
  }));
  ASSIGN_OR_RETURN(Decision decision, FromProto(answer, id));
  // Both sides are differences from `at`: the same digest means the same weights.
  ASSIGN_OR_RETURN(const Digest committed,
                   DifferenceDigest(connection, at, decision.version, deadline));
  if (committed != set_digest) {
    return absl::AlreadyExistsError(absl::StrCat("the id '", id, "' was committed as ",
                                                 ToString(decision.version),
                                                 " with other content; use another id"));
  }
  decision.outcome = CommitResult::Outcome::kRepeated;
  return decision;
}

namespace {

// What is to be said of a set without changes, if there is nothing to refuse: no transaction is
// opened for it, and no number used up.
absl::StatusOr<std::optional<Decision>> Unchanged(const Connection& connection,
                                                  const PublishOptions& options, VersionId at,
                                                  const Digest& set_digest, Deadline deadline) {
  const std::string& id = options.begin.transaction_id;
  absl::StatusOr<Decision> repeated = RepeatedDecision(connection, id, at, set_digest, deadline);
  if (repeated.ok() || absl::IsAlreadyExists(repeated.status())) return repeated;
  v1::Status status;
  RETURN_IF_ERROR(Retry(connection, deadline, [&] {
    return Repeatable(
        connection.Call(&v1::Store::Stub::GetStatus, v1::GetStatusRequest(), &status, deadline));
  }));
  ASSIGN_OR_RETURN(const ServedHead head, FromProto(status.head()));
  const BeginOptions& begin = options.begin;
  const bool is_refused =
      head.hold || head.head.version != at || begin.parent.value_or(at) != at ||
      begin.parent_chain_digest.value_or(head.head.chain_digest) != head.head.chain_digest ||
      begin.base_digest.value_or(head.head.base_digest) != head.head.base_digest ||
      begin.move.value_or(head.head.move) != head.head.move;
  if (is_refused) return std::nullopt;
  Decision decision;
  decision.outcome = CommitResult::Outcome::kUnchanged;
  decision.id = id;
  decision.version = at;
  decision.chain_digest = head.head.chain_digest;
  decision.move = head.head.move;
  decision.head = head;
  return decision;
}

// One attempt, under the number that it was given.
absl::StatusOr<Decision> SendAndCommit(const Connection& connection, const PublishOptions& options,
                                       const Begun& begun, EncodedSet* set, Deadline deadline) {
  const std::string& id = options.begin.transaction_id;
  const bool is_small = IsSmall(*set);
  absl::Status put;
  if (is_small) {
    NameChunks(begun.transaction, options.contributor, set);
  } else {
    put = PutSet(connection, begun.transaction, options.contributor, set, deadline);
  }
  if (absl::IsNotFound(put)) return Settle(connection, id, put, deadline);
  if (!put.ok()) {
    TakeBack(connection, id, put, deadline);
    return put;
  }
  absl::StatusOr<Decision> decision =
      Commit(connection, id, begun.transaction, options.contributor, DeclarationOf(*set),
             is_small ? Content::kIncluded : Content::kSent, set->chunks, deadline);
  const absl::Status& status = decision.status();
  // Refused with its content, perhaps; what was aborted is not open any more.
  const bool is_open = !status.ok() && !absl::IsNotFound(status) && !absl::IsUnknown(status) &&
                       !absl::IsAborted(status);
  if (is_small && is_open) TakeBack(connection, id, status, deadline);
  return decision;
}

}  // namespace

absl::StatusOr<Decision> PublishSet(const Connection& connection, const PublishOptions& options,
                                    const std::string& actor, VersionId at, EncodedSet* set,
                                    Deadline deadline) {
  const std::string& id = options.begin.transaction_id;
  if (set->elements == 0) {
    ASSIGN_OR_RETURN(std::optional<Decision> unchanged,
                     Unchanged(connection, options, at, set->digest, deadline));
    if (unchanged) return *std::move(unchanged);
  }
  for (;;) {
    const absl::StatusOr<Begun> begun = Begin(connection, options, actor, set->digest, deadline);
    if (absl::IsAlreadyExists(begun.status())) {
      absl::StatusOr<Decision> repeated =
          RepeatedDecision(connection, id, at, set->digest, deadline);
      // An id that was used for something else than a publish has the server's words.
      return absl::IsNotFound(repeated.status()) ? begun.status() : std::move(repeated);
    }
    RETURN_IF_ERROR(begun.status());
    if (begun->repeated) {
      return RepeatedDecision(connection, id, at, set->digest, deadline);
    }
    absl::StatusOr<Decision> decision = SendAndCommit(connection, options, *begun, set, deadline);
    // Not found: the server was started again before it had all. The set is still here.
    if (!absl::IsNotFound(decision.status())) return decision;
    if (deadline.has_passed()) return absl::DeadlineExceededError(decision.status().message());
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace wstore::client
