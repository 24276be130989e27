// The protocol between the clients and the server of the store.
//
//   server -> client   challenge   magic, version, nonce                    before anything else
//   client -> server   hello       rank, nonce, proof of the token          (docs/security.md)
//   server -> client   admission   empty, or the reason for a refusal; the server's proof
//   client -> server   request     id, Ask, arguments                       Forget and Fail have no answer
//   server -> client   answer      id, Outcome, values
//   server -> client   news        0, News, rank, text
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::store {

inline constexpr const char* kMagic = "lockstep-store";
inline constexpr int64_t kVersion = 1;

// A peer that has not proved the token yet may send one frame of this size.
inline constexpr size_t kMostHelloBytes = 512;
inline constexpr size_t kMostFrameBytes = size_t{64} << 20;

enum class Ask : int64_t {
  Set = 1,     // key, value
  CompareSet,  // key, expected, wanted -> the value afterwards
  Get,         // keys, milliseconds -> their values, once all exist
  Add,         // key, amount -> the sum
  Check,       // keys -> whether all exist
  Erase,       // key -> whether it existed
  Count,       // -> the number of keys
  Forget,      // prefix, number of holders: the last holder's request erases all keys with this prefix
  Fail,        // topic, text: the first one of a topic is sent to all clients
  Bye,         // this client's process ends in good order
};

enum class Outcome : int64_t { Done = 0, TimedOut };

enum class News : int64_t {
  Lost = 1,  // rank: its connection ended without Bye
  Left,      // rank: it sent Bye
  Failed,    // rank, topic and text
};

}  // namespace lockstep::store
