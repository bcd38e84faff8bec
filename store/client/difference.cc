#include "store/client/difference.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/strings.h"
#include "store/client/messages.h"
#include "store/client/sending.h"
#include "store/client/transfer_messages.h"
#include "wstore/patch_digest.h"

namespace wstore::client {
namespace {

// The digest and the spans of what has come.
absl::Status Complete(const Manifest& manifest, EncodedSet* set) {
  PatchDigester digester(manifest);
  std::optional<ChunkKey> last;
  std::optional<TilePlace> last_tile;
  for (const std::string& bytes : set->chunks) {
    ASSIGN_OR_RETURN(const ChunkView chunk, ChunkView::Parse(bytes, manifest));
    const ChunkKey key = chunk.header().key;
    if ((last && *last >= key) || (last_tile && *last_tile >= chunk.tiles().front().place)) {
      return absl::DataLossError("the server sent chunks out of order");
    }
    last = key;
    last_tile = chunk.tiles().back().place;
    set->first.resize(key.span + 1, static_cast<size_t>(&bytes - set->chunks.data()));
    set->elements += chunk.changed();
    for (const EncodedTile& tile : chunk.tiles()) {
      digester.Add(tile.place, tile.form, tile.changed, TileDigest(tile));
    }
  }
  set->first.resize(manifest.spans() + 1, set->chunks.size());
  set->digest = digester.Finish();
  return absl::OkStatus();
}

class DifferenceReader {
 public:
  DifferenceReader(const Connection& connection, const VersionInfo& from, const VersionInfo& to)
      : connection_(connection) {
    *request_.mutable_from() = ToProto(from.version, from.chain_digest);
    *request_.mutable_to() = ToProto(to.version, to.chain_digest);
  }

  // One stream: from the chunk that is missing to the end, or (`head_only`) to the first message.
  absl::Status Read(bool head_only, Deadline deadline) {
    RETURN_IF_ERROR(connection_.CheckProcess());
    request_.set_skip_chunks(set_.chunks.size());
    set_.touched.emplace();
    grpc::ClientContext context;
    Connection::SetDeadline(&context, deadline);
    const auto stream = connection_.stub().ReadDifference(&context, request_);
    v1::ReadDifferenceResponse response;
    while (stream->Read(&response)) {
      if (response.has_summary()) {
        RETURN_IF_ERROR(Take(response.summary()));
        if (head_only) {
          context.TryCancel();
          static_cast<void>(stream->Finish());
          return absl::OkStatus();
        }
      }
      if (response.has_more_sums()) RETURN_IF_ERROR(AddSums(response.more_sums()));
      if (response.kind_case() == v1::ReadDifferenceResponse::kChunk) {
        set_.chunks.push_back(std::move(*response.mutable_chunk()));
      }
    }
    return connection_.FromGrpc(stream->Finish());
  }

  EncodedSet TakeSet() { return std::move(set_); }
  // Nothing: the versions are equal.
  const std::optional<Digest>& digest() const { return digest_; }
  uint64_t elements() const { return elements_; }

 private:
  absl::Status Take(const v1::ContentSummary& summary) {
    elements_ = summary.elements();
    digest_.reset();
    if (summary.parts_size() > 0) {
      ASSIGN_OR_RETURN(digest_, DigestOf(summary.parts(0).digest(), "the difference's digest"));
    }
    return AddSums(summary);
  }

  absl::Status AddSums(const v1::ContentSummary& summary) {
    return wire::AppendTensors(summary.sums(), &*set_.touched);
  }

  const Connection& connection_;
  v1::ReadDifferenceRequest request_;
  EncodedSet set_;
  std::optional<Digest> digest_;
  uint64_t elements_ = 0;
};

}  // namespace

absl::StatusOr<VersionInfo> GetVersion(const Connection& connection, const std::string& name,
                                       Deadline deadline) {
  v1::GetVersionRequest request;
  request.set_version(name);
  v1::Version version;
  RETURN_IF_ERROR(Retry(connection, deadline, [&] {
    return Repeatable(connection.Call(&v1::Store::Stub::GetVersion, request, &version, deadline));
  }));
  return FromProto(version);
}

absl::StatusOr<Digest> DifferenceDigest(const Connection& connection, VersionId from, VersionId to,
                                        Deadline deadline) {
  ASSIGN_OR_RETURN(const VersionInfo from_info, GetVersion(connection, ToString(from), deadline));
  ASSIGN_OR_RETURN(const VersionInfo to_info, GetVersion(connection, ToString(to), deadline));
  DifferenceReader reader(connection, from_info, to_info);
  RETURN_IF_ERROR(Retry(connection, deadline,
                        [&] { return Repeatable(reader.Read(/*head_only=*/true, deadline)); }));
  if (reader.digest()) return *reader.digest();
  ASSIGN_OR_RETURN(const ServedManifest manifest, ReadManifest(connection, deadline));
  return PatchDigester(*manifest.manifest).Finish();
}

absl::StatusOr<EncodedSet> ReadDifference(const Connection& connection, const Manifest& manifest,
                                          const VersionInfo& from, const VersionInfo& to,
                                          Deadline deadline) {
  DifferenceReader reader(connection, from, to);
  RETURN_IF_ERROR(Retry(connection, deadline,
                        [&] { return Repeatable(reader.Read(/*head_only=*/false, deadline)); }));
  EncodedSet set = reader.TakeSet();
  RETURN_IF_ERROR(Complete(manifest, &set));
  const bool is_empty = !reader.digest() && set.chunks.empty();
  if (!is_empty && (reader.digest() != set.digest || reader.elements() != set.elements)) {
    return absl::DataLossError(absl::StrCat(
        "the difference from ", ToString(from.version), " to ", ToString(to.version), " came with ",
        set.elements, " elements and the digest ", ToHex(set.digest), "; the server declares ",
        reader.elements(), " and ", reader.digest() ? ToHex(*reader.digest()) : "none"));
  }
  return set;
}

absl::StatusOr<ServedManifest> ReadManifest(const Connection& connection, Deadline deadline) {
  RETURN_IF_ERROR(connection.CheckProcess());
  ServedManifest out;
  std::vector<TensorSpec> tensors;
  uint64_t in_all = 0;
  RETURN_IF_ERROR(Retry(connection, deadline, [&]() -> absl::Status {
    tensors.clear();
    grpc::ClientContext context;
    Connection::SetDeadline(&context, deadline);
    const auto stream = connection.stub().ReadManifest(&context, v1::ReadManifestRequest());
    v1::ReadManifestResponse page;
    while (stream->Read(&page)) {
      if (!page.base_digest().empty()) {
        ASSIGN_OR_RETURN(out.base_digest, DigestOf(page.base_digest(), "the base digest"));
      }
      in_all = page.tensors_in_all();
      for (const v1::Tensor& tensor : page.tensors()) {
        const std::optional<Dtype> dtype = ParseDtype(tensor.dtype());
        if (!dtype) {
          return absl::DataLossError(absl::StrCat("the server names the dtype '", tensor.dtype(),
                                                  "' of '", tensor.name(), "', which is none"));
        }
        tensors.push_back(
            {tensor.name(), *dtype, Shape(tensor.shape().begin(), tensor.shape().end())});
      }
    }
    return Repeatable(connection.FromGrpc(stream->Finish()));
  }));
  if (tensors.size() != in_all) {
    return absl::DataLossError(absl::StrCat("the server sent ", tensors.size(), " of ", in_all,
                                            " tensors of its manifest"));
  }
  ASSIGN_OR_RETURN(Manifest manifest, Manifest::Create(std::move(tensors)));
  out.manifest = std::make_shared<const Manifest>(std::move(manifest));
  return out;
}

}  // namespace wstore::client
