// Reading content: versions as dense bytes, and the way between two of them.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "store/client/connection.h"
#include "store/client/encoded_set.h"
#include "wstore/served.h"
#include "wstore/share.h"

namespace wstore::client {

// A committed version.
absl::StatusOr<VersionInfo> GetVersion(const Connection& connection, const std::string& name,
                                       Deadline deadline);

// The digest of the way between two versions, without the way itself.
absl::StatusOr<Digest> DifferenceDigest(const Connection& connection, VersionId from, VersionId to,
                                        Deadline deadline);

// All of it, in memory. Its digest is computed from what came.
//   kDataLoss: what came is not what the server declares
absl::StatusOr<EncodedSet> ReadDifference(const Connection& connection, const Manifest& manifest,
                                          const VersionInfo& from, const VersionInfo& to,
                                          Deadline deadline);

// Manifest and base digest.
struct ServedManifest {
  std::shared_ptr<const Manifest> manifest;
  Digest base_digest;
};
absl::StatusOr<ServedManifest> ReadManifest(const Connection& connection, Deadline deadline);

// The connection must outlive it. held: only tiles with such elements will be asked for (see
// HeldRanges); empty: any.
std::unique_ptr<DenseSource> MakeServedDense(const Connection& connection,
                                             std::shared_ptr<const Manifest> manifest,
                                             const VersionInfo& version, Deadline deadline,
                                             std::vector<ElementRange> held = {});

}  // namespace wstore::client
