// What makes a safetensors file a snapshot: four texts in its metadata.
//
//   "checksum"        "xxh3-128:" and 32 digits: XXH3 with 128 bits over the whole file, these digits as
//   zeros "format"          "pt", as other programs write it for tensors of PyTorch "format_version"  a whole
//   number; files of a later one are refused "lockstep"        Document::about as JSON
//
// The metadata is sorted by key and comes first, so that the digits always stand at the same bytes.
#pragma once

#include <cstdint>
#include <string_view>

#include "snapshot/checksum.h"
#include "snapshot/safetensors.h"

namespace lockstep::snapshot {

inline constexpr uint64_t kFormatVersion = 1;

inline constexpr const char* kChecksumKey = "checksum";
inline constexpr const char* kFormatKey = "format";
inline constexpr const char* kVersionKey = "format_version";
inline constexpr const char* kAboutKey = "lockstep";

inline constexpr std::string_view kChecksumKind = "xxh3-128:";
inline constexpr std::string_view kChecksumPrefix = R"({"__metadata__":{"checksum":"xxh3-128:)";
inline constexpr uint64_t kChecksumOffset = kLengthBytes + kChecksumPrefix.size();

// Bounds what a hostile file can make of memory: parsed JSON takes many times the room of its text.
inline constexpr uint64_t kMostAboutBytes = uint64_t{16} << 20;
inline constexpr int kMostAboutDepth = 100;

}  // namespace lockstep::snapshot
