// Messages from one rank to another.
//
// A message is a letter in the sender's registered memory (a state word and, unless the caller's own memory
// is registered, a copy of the bytes) and a note of it in the sender's outbox for that rank. The receiver
// takes notes out as they come, keeps those that nobody has asked for yet, and copies the bytes straight into
// the receiving tensor when source and tag match; then the sender's call is complete. Notes wait for nobody
// but a receiver that is not receiving, so the order of tags cannot block anyone.
//
// Not thread-safe; the endpoint's lock guards it.
#pragma once

#include <deque>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/core/ScalarType.h>

#include "shm/arena.h"
#include "shm/board.h"
#include "shm/operation.h"
#include "shm/request.h"

namespace lockstep::shm {

inline constexpr int kAnyRank = -1;

struct Message : Operation {
  bool outgoing = false;
  int peer = kAnyRank;  // of a received message, afterwards, the rank that sent it
  int tag = 0;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  Piece piece;

  uint64_t letter = 0;  // outgoing: where in this rank's memory
  uint64_t payload = 0;

  std::string describe() const;  // "send of 40 bytes to rank 1, tag 0"
};

class Mail {
 public:
  Mail(Board& board, Arena& arena) : board_(board), arena_(arena), boxes_(board.world_size()) {}

  // The message must stay until it is complete. May throw SystemError (no memory), having done nothing.
  void add(Message& message);
  bool idle() const { return open_ == 0; }
  // Does what can be done now; appends the messages that are complete. Throws Disagreement when a message
  // does not fit where it is received.
  bool step(std::vector<Operation*>& complete);
  // Messages under way, for whoever looks for the late and the dead.
  std::vector<Message*> under_way() const;
  // Forgets them all.
  std::vector<Message*> give_up();

 private:
  struct Box {
    std::deque<Message*> unposted;  // for this rank, when its outbox is full
    std::list<Note> notes;          // from this rank, when nobody has asked for them
  };

  // Memory for a message of this rank's. The last large block is kept for the next one: fresh pages cost more
  // than the copy.
  Arena::Block paper(size_t bytes);
  void discard(uint64_t block);

  LetterWords& letter(int rank, uint64_t offset) const;
  bool post(int to);
  bool collect(int from);
  bool deliver(Message& message);
  bool deliver_from(int from, Message& message);

  Board& board_;
  Arena& arena_;
  std::vector<Box> boxes_;
  std::unordered_map<uint64_t, Arena::Block> large_;  // in use, by offset
  std::optional<Arena::Block> spare_;
  size_t open_ = 0;                // messages under way
  std::list<Message*> sending_;    // posted
  std::list<Message*> receiving_;  // in the order of the calls
};

}  // namespace lockstep::shm
