// Where the weights are: what a replica needs from host memory or a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transfer/replica/memory_gate.h"
#include "transfer/replica/plan.h"
#include "transfer/replica/staged_chunk.h"
#include "transfer/replica/staged_patch.h"
#include "wstore/patch_source.h"
#include "wstore/replica.h"

namespace wstore {

// How far the writing of a unit came.
enum class UnitProgress : uint8_t {
  kUntouched,  // no byte was written
  kExchanged,  // every entry was written; undone by the same exchange
  kUnknown,    // some bytes may have been written
};

struct UnitOutcome {
  UnitProgress progress = UnitProgress::kUntouched;
  // If it is kExchanged: sums over the bits that were overwritten, and over those read from memory
  // afterwards. As Unit::expected.
  TouchedSums found;
};

// Works on the memory of one replica. What it needs to do so, such as streams and a memory
// resource, is given to it when it is made. Read, Audit, Prepare and those that stage (AcceptPiece,
// DecodeChunks, ReadChunk, FetchColumns) may run at the same time as each other; all others have
// the memory, and the backend, to themselves, but for those that stage.
//
// Every method but AcceptPiece returns when its work is done, on the device too.
//
// The sums of units are the backend's own: over the same bits Read and Exchange give the same sums,
// and over others, with overwhelming probability, different ones.
class MemoryBackend {
 public:
  virtual ~MemoryBackend() = default;

  // Takes memory, one buffer for each of the layout, of checked sizes, in place of what it had. On
  // an error nothing has changed.
  virtual absl::Status Bind(std::shared_ptr<const Plan> plan,
                            absl::Span<const LocalBuffer> buffers) = 0;
  virtual void Unbind() = 0;

  // A staged piece before it is kept. May set its backend_copy, and leaves the rest. A copy may be
  // under way when this returns: Read waits for it and says if it failed, and so does the deleter
  // of backend_copy, since the piece goes next. The piece may be of the plan before the last Bind;
  // it is not used then.
  virtual absl::Status AcceptPiece(StagedPiece* piece) = 0;

  // Decodes chunks that lie in its memory, as ChunkView::Parse and a PieceBuilder of these
  // arguments would. The pieces are accepted, and may be without their columns. Those that stay
  // empty are for the host to read: all that Parse would refuse, and any that cannot be decoded
  // there.
  //   kInvalidArgument: memory that the backend does not reach
  //   kResourceExhausted: no room for the pieces
  virtual absl::Status DecodeChunks(const std::shared_ptr<const Plan>& plan, bool allow_dense,
                                    absl::Span<const DeviceChunk> chunks,
                                    absl::Span<std::optional<DecodedChunk>> decoded) = 0;
  // The bytes of such a chunk in host memory: where they are, or in `room`.
  virtual absl::StatusOr<std::string_view> ReadChunk(const DeviceChunk& chunk,
                                                     std::string* room) = 0;
  // Brings the columns of a decoded piece. Not of one piece at the same time.
  virtual absl::Status FetchColumns(StagedPiece* piece) = 0;

  // Fills in Unit::expected of all units, and for each of their groups, in order, the fingerprint
  // sums over its changed elements: as they are in memory, and as they would be. Writes no weights.
  //   kAborted: the pass is over
  virtual absl::Status Read(const MemoryPass& pass, absl::Span<Unit> units,
                            absl::Span<TouchedSums> group_sums) = 0;

  // Takes the memory that it needs to exchange any of these units, which are all of an update and
  // have been read. It is needed until the next call of this, Bind or Unbind.
  virtual absl::Status Prepare(absl::Span<const Unit> units) = 0;

  // XORs the units into memory and re-reads it. `outcomes`: by unit, untouched at first. On an
  // error they say how far it came. Allocates nothing.
  virtual absl::Status Exchange(absl::Span<const Unit> units, absl::Span<UnitOutcome> outcomes) = 0;

  // The fingerprints of all cells.
  //   kAborted: the pass is over
  virtual absl::Status Audit(const MemoryPass& pass, absl::Span<Fingerprint> cells) = 0;

  // Writes all cells.
  virtual absl::Status Load(const DenseSource& source) = 0;
};

}  // namespace wstore
