// The first packet in each direction over a new Unix socket (SOCK_SEQPACKET) between two ranks. It carries
// two descriptors: the sender's segment in this group, and the memory of its process.
//
// Thread-safety: one thread at a time per socket. No function blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "shm/segment.h"

namespace lockstep::shm {

inline constexpr size_t kTokenBytes = 32;  // as base::make_nonce() returns
inline constexpr std::array<char, 8> kHandshakeMagic = {'l', 'o', 'c', 'k', 's', 't', 'e', 'p'};

// The token is that of the listening rank, in both directions. A process that knows it belongs to this group.
struct Handshake {
  std::array<char, 8> magic = kHandshakeMagic;
  uint32_t layout_version = kLayoutVersion;
  int32_t rank = 0;
  std::array<char, kTokenBytes> token = {};

  bool matches(std::string_view expected) const {
    return magic == kHandshakeMagic && layout_version == kLayoutVersion &&
           std::string_view(token.data(), token.size()) == expected;
  }
};

struct Received {
  enum class What { Nothing, Handshake, Malformed, Closed };
  What what = What::Nothing;
  Handshake handshake = {};
  // Empty if the kernel dropped them because this process has too many open files.
  base::Fd segment = {};
  base::Fd memory = {};
};

Received receive_handshake(const base::Fd& socket);
// Returns 0 or an errno.
int send_handshake(const base::Fd& socket, Handshake handshake, int segment, int memory);

}  // namespace lockstep::shm
