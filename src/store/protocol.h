// What clients and server of the store say to each other.
//
//   server -> client   challenge   magic, version, nonce                    before anything else
//   client -> server   hello       rank, nonce, proof of the token          (docs/security.md)
//   server -> client   admission   empty, or why not; the server's proof
//   client -> server   request     id, Ask, arguments                       Bye and Forget have no answer
//   server -> client   answer      id, Outcome, values
//   server -> client   news        0, News, rank, text
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::store {

inline constexpr const char* kMagic = "lockstep-store";
inline constexpr int64_t kVersion = 1;

// What nobody has vouched for yet may send one frame of this size.
inline constexpr size_t kMostHelloBytes = 512;
inline constexpr size_t kMostFrameBytes = size_t{64} << 20;

enum class Ask : int64_t {
  Set = 1,     // key, value
  CompareSet,  // key, expected, wanted -> the value that is there now
  Get,         // keys, milliseconds -> their values, once all are there
  Add,         // key, amount -> the sum
  Check,       // keys -> whether all are there
  Erase,       // key -> whether it was there
  Count,       // -> how many keys there are
  Forget,      // prefix, how often: the last of them erases all keys with this prefix
  Fail,        // topic, text: the first one of a topic is news for everybody
  Bye,         // this client ends in good order
};

enum class Outcome : int64_t { Done = 0, TimedOut };

enum class News : int64_t {
  Lost = 1,  // rank: its connection ended without Bye
  Left,      // rank: it said Bye
  Failed,    // rank, topic and text
};

}  // namespace lockstep::store
