// What two ranks say to each other over a new Unix socket (SOCK_SEQPACKET). A handshake is one message and
// carries two descriptors: the sender's segment in this group, and the memory of its process.
//
// Thread-safety: functions without state; one thread at a time for each socket. None of them waits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "shm/segment.h"

namespace lockstep::shm {

inline constexpr size_t kTokenLetters = 32;  // base::make_nonce() makes as many
inline constexpr std::array<char, 8> kHandshakeMagic = {'l', 'o', 'c', 'k', 's', 't', 'e', 'p'};

// Goes over a new connection in both directions, with the sender's descriptors. The token is that of the rank
// that listens: to know it proves that the other one is of this group.
struct Handshake {
  std::array<char, 8> magic = kHandshakeMagic;
  uint32_t layout_version = kLayoutVersion;
  int32_t rank = 0;
  std::array<char, kTokenLetters> token = {};

  bool proves(std::string_view expected) const {
    return magic == kHandshakeMagic && layout_version == kLayoutVersion &&
           std::string_view(token.data(), token.size()) == expected;
  }
};

struct Received {
  enum class What { Nothing, Handshake, Nonsense, End };
  What what = What::Nothing;
  Handshake handshake = {};
  // Empty when they were lost on the way because this process may open no more.
  base::Fd segment = {};
  base::Fd memory = {};
};

Received receive_handshake(const base::Fd& socket);
// Returns 0 or the error.
int send_handshake(const base::Fd& socket, Handshake handshake, int segment, int memory);

}  // namespace lockstep::shm
