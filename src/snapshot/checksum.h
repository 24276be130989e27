// The 128-bit XXH3 checksum of a file, computed incrementally.
#pragma once

#define XXH_INLINE_ALL
#include <array>
#include <cstddef>
#include <fmt/format.h>
#include <memory>
#include <new>
#include <string>
#include <xxhash.h>

namespace lockstep::snapshot {

class Checksum {
 public:
  static constexpr size_t kDigits = 32;

  Checksum() : state_(XXH3_createState()) {
    if (!state_) throw std::bad_alloc();
    XXH3_128bits_reset(state_.get());
  }

  void add(const void* bytes, size_t count) { XXH3_128bits_update(state_.get(), bytes, count); }

  // In hexadecimal, as printed by xxh128sum.
  std::string digits() const {
    const auto hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

}  // namespace lockstep::snapshot
