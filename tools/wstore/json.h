// The JSON documents that scripts read. Field names and types are part of the command's contract:
// see docs/cli.md.
//
// Versions are strings such as "v42", digests hex strings, counts integers, times RFC 3339,
// durations in milliseconds.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tools/wstore/difference.h"
#include "tools/wstore/version_context.h"
#include "wstore/store.h"

namespace wstore::cli {

// Keeps fields in the order in which they were added.
using Json = nlohmann::ordered_json;

// The document as it is printed. Bytes that are not UTF-8 become U+FFFD.
std::string Dump(const Json& document);

Json JsonOf(VersionId version);
Json JsonOf(const std::optional<VersionId>& version);  // null if there is none
Json MsOf(int64_t micros);

// Share of changed elements.
double Density(uint64_t changed, uint64_t elements);

// An entry of `log`.
Json JsonOf(const VersionInfo& version, const VersionContext& context);
// An entry of `log --moves`. A refused attempt has no number.
Json JsonOf(const MoveInfo& move);
// An entry of `tag`.
Json JsonOf(const TagInfo& tag);
Json JsonOf(const BaseInfo& base);
// A row of `workers`, and of `status`.
Json JsonOf(const WorkerInfo& worker);
// Null if there is no hold.
Json JsonOf(const std::optional<HoldInfo>& hold);

// {tensors, elements, density, by_tensor: [...]}, to be merged into a document.
Json JsonOf(const DifferenceCount& difference, const Manifest& manifest);

}  // namespace wstore::cli
