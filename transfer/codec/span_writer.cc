#include "transfer/codec/span_writer.h"

#include <string>

#include "common/status_macros.h"

namespace wstore {

absl::Status SpanWriter::Flush() {
  const std::string bytes = builder_.Finish({.transaction = {}, .key = key_});
  ++key_.part;
  ASSIGN_OR_RETURN(const ChunkView chunk, ChunkView::Parse(bytes, manifest_));
  return visit_(chunk);
}

}  // namespace wstore
