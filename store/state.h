// What a store's records say, as a value: replaying the journal gives it, and every commit adds to
// it. Pure: no I/O and no clock.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "store/checkpoint/checkpoint.h"
#include "wstore/manifest.h"
#include "wstore/v1/journal.pb.h"
#include "wstore/version.h"

namespace wstore {

// v0 as the store knows it.
struct BaseState {
  Digest digest;
  std::string path;
  std::vector<FileIdentity> files;
  Manifest manifest;
  std::vector<Digest> tensor_digests;            // by tensor index
  std::vector<Fingerprint> tensor_fingerprints;  // by tensor index
};

// A version, with what only the store itself needs.
struct VersionState {
  VersionInfo info;
  Digest touched_digest;
};

// What an id was used for. The first committed use counts.
struct IdUse {
  TransactionNumber transaction;
  VersionId version;  // published, moved to, or tried out
  std::string why;    // as in a move; "publish" of a candidate too

  bool is_rollback() const { return why == "rollback"; }
};

class StoreState {
 public:
  // Adds what one record says.
  //   kDataLoss: it contradicts the records before it: an unknown parent, a number used twice, a
  //   chain
  //     digest that does not follow from its parts. The state is unchanged.
  absl::Status Apply(const v1::RecordBody& record);

  bool has_base() const { return base_.has_value(); }
  const BaseState& base() const { return *base_; }
  const std::map<VersionId, VersionState>& versions() const { return versions_; }
  const std::vector<MoveInfo>& moves() const { return moves_; }
  const std::map<std::string, TagInfo>& tags() const { return tags_; }
  const std::optional<HoldInfo>& hold() const { return hold_; }
  uint64_t epoch() const { return epoch_; }  // of the latest server; 0: none
  HeadInfo head() const;

  // kNotFound names the highest version.
  absl::StatusOr<const VersionState*> Find(VersionId version) const;
  const IdUse* FindId(const std::string& transaction_id) const;
  const absl::flat_hash_map<std::string, IdUse>& ids() const { return ids_; }

  // The versions whose patch sets lie between two versions: their XOR is the difference. Both
  // exist.
  std::vector<VersionId> Path(VersionId from, VersionId to) const;

 private:
  absl::Status Apply(const v1::BaseRecord& record);
  absl::Status Apply(const v1::BaseFilesRecord& record);
  absl::Status Apply(const v1::VersionRecord& record);
  absl::Status Apply(const v1::MoveRecord& record);
  absl::Status Apply(const v1::HoldRecord& record);
  absl::Status Apply(const v1::TagRecord& record);
  absl::Status Apply(const v1::MarkRecord& record);
  absl::Status Apply(const v1::EpochRecord& record);

  std::optional<BaseState> base_;
  std::map<VersionId, VersionState> versions_;
  std::vector<MoveInfo> moves_;  // refused attempts included
  MoveNumber last_move_;
  std::map<std::string, TagInfo> tags_;
  std::optional<HoldInfo> hold_;
  uint64_t epoch_ = 0;
  VersionId head_;
  absl::flat_hash_map<std::string, IdUse> ids_;
};

}  // namespace wstore
