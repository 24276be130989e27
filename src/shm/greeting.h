// What two ranks say to each other over a new Unix socket (SOCK_SEQPACKET). A greeting is one message and
// carries one descriptor.
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
inline constexpr std::array<char, 8> kGreetingMagic = {'l', 'o', 'c', 'k', 's', 't', 'e', 'p'};

// Goes over a new connection in both directions, with the sender's memfd. The token is that of the rank that
// listens: to know it proves that the other one is of this group.
struct Greeting {
  std::array<char, 8> magic = kGreetingMagic;
  uint32_t layout_version = kLayoutVersion;
  int32_t rank = 0;
  std::array<char, kTokenLetters> token = {};

  bool proves(std::string_view expected) const {
    return magic == kGreetingMagic && layout_version == kLayoutVersion &&
           std::string_view(token.data(), token.size()) == expected;
  }
};

struct Received {
  enum class What { Nothing, Greeting, Nonsense, End };
  What what = What::Nothing;
  Greeting greeting = {};
  base::Fd memfd = {};  // empty when it was lost on the way because this process may open no more
};

Received receive_greeting(const base::Fd& socket);
// Returns 0 or the error.
int send_greeting(const base::Fd& socket, Greeting greeting, int memfd);

}  // namespace lockstep::shm
