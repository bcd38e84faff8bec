// Store::Export.
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "store/checkpoint/carry_files.h"
#include "store/checkpoint/writer.h"
#include "store/store_impl.h"
#include "store/version/sums.h"

namespace wstore {

absl::Status StoreImpl::Export(VersionId version, const ExportOptions& options) const {
  ASSIGN_OR_RETURN(const VersionInfo info, this->version(version));
  ASSIGN_OR_RETURN(const std::unique_ptr<DenseSource> dense, Materialise(version));
  ASSIGN_OR_RETURN(const std::shared_ptr<const Checkpoint> base, OpenBase());
  WriterOptions writer_options;
  writer_options.shard_size_bytes = options.shard_size_bytes;
  writer_options.metadata = base->metadata();
  ASSIGN_OR_RETURN(const CarryList carry, ListCarryFiles(*base));
  writer_options.carry_files = carry.carried;
  for (const FileIdentity& file : base->files()) {
    writer_options.forbidden_paths.push_back(file.path);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointWriter> writer,
                   CheckpointWriter::Create(options.directory, manifest_, writer_options));
  const auto write_tile = [&](TilePlace place, absl::Span<const uint8_t> bytes) {
    const uint64_t offset_bytes =
        place.tile * kTileElements * manifest_.tensor(place.tensor).element_bytes;
    return writer->Write(place.tensor, offset_bytes, bytes);
  };
  ASSIGN_OR_RETURN(
      const std::vector<Fingerprint> sums,
      SumVersion(manifest_, fingerprint_key_, *dense, threads_, options.progress, write_tile));
  if (Total(sums) != info.fingerprint) {
    return absl::DataLossError(absl::StrCat(
        "the bits of ", ToString(version), " do not have its recorded fingerprint; 'wstore verify ",
        ToString(version), " --base' tells where; nothing was exported"));
  }
  RETURN_IF_ERROR(base->CheckUnchanged());
  return writer->Finish();
}

}  // namespace wstore
