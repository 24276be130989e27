// The metadata that makes a safetensors file a snapshot:
//
// - "checksum": "xxh3-128:" and 32 digits, the 128-bit XXH3 of the whole file with these digits set to zeros
// - "format": "pt", as other programs write it for tensors of PyTorch
// - "format_version": a whole number; newer versions than this one are rejected
// - "lockstep": Document::about as JSON
//
// The metadata is sorted by key and precedes the tensors, so the digits are always at the same offset.
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

// Limits the memory that a hostile file can use: parsed JSON takes many times the size of its text.
inline constexpr uint64_t kMostAboutBytes = uint64_t{16} << 20;
inline constexpr int kMostAboutDepth = 100;

}  // namespace lockstep::snapshot
