// What two ranks say to each other over a new Unix socket, and how they come to have one.
//
// Sockets are SOCK_SEQPACKET, non-blocking and close-on-exec; their names are in the abstract namespace, so
// that nothing appears in a file system. A greeting is one message and carries one descriptor.
//
// Thread-safety: functions without state; one thread at a time for each socket. None of them waits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <sys/types.h>

#include "base/fd.h"
#include "shm/segment.h"

namespace lockstep::shm {

inline constexpr size_t kTokenLetters = 32;  // 128 bits
inline constexpr std::array<char, 8> kGreetingMagic = {'l', 'o', 'c', 'k', 's', 't', 'e', 'p'};

// kTokenLetters of them, which nobody can guess: a token, or a part of a socket's name. Throws SystemError.
std::string random_letters();

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

base::Fd make_socket();  // throws SystemError
// Returns 0 or the error.
int connect_to(const base::Fd& socket, const std::string& name);
// A socket at which up to `backlog` callers may wait. Throws SystemError.
base::Fd listen_at(const std::string& name, int backlog);

// Who stood at the other end when the connection was made; the kernel says so, not the peer. Throws
// SystemError.
uid_t user_behind(const base::Fd& socket);

// A SystemError that says what to do where descriptors are short.
[[noreturn]] void throw_socket_error(const std::string& what, int error);

}  // namespace lockstep::shm
