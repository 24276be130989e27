// Messages from one rank to another.
//
// The sender puts a state word and, unless the caller's own memory is registered, a copy of the bytes into
// its segment, and an envelope into its outbox for the receiver. The receiver takes envelopes out as they
// arrive, keeps those that nobody has asked for yet, and copies the bytes straight into the receiving tensor
// when source and tag match; then the sender's call is complete. A full outbox waits only for a receiver that
// is not receiving, so the order of tags cannot block anyone.
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

#include "comm/request.h"
#include "shm/arena.h"
#include "shm/board.h"
#include "shm/operation.h"

namespace lockstep::shm {

using comm::kAnyRank;

struct Message : Operation {
  Message() = default;
  // A Send or a Receive.
  explicit Message(const comm::Request& request)
      : outgoing(request.kind == comm::Kind::Send),
        peer(request.peer),
        tag(request.tag),
        dtype(request.dtype),
        piece(outgoing ? request.give[0] : request.take[0]) {
    timeout = request.timeout;
  }

  bool outgoing = false;
  int peer = kAnyRank;  // of a received message, afterwards, the rank that sent it
  int tag = 0;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  comm::Piece piece;

  // Of an outgoing one, in this rank's segment.
  uint64_t delivery = 0;
  uint64_t payload = 0;
  bool registered = false;  // the payload is in the process's memory instead

  std::string describe() const;  // "send of 10 Float to rank 1, tag 0"
};

class Messages {
 public:
  Messages(Board& board, Arena& arena) : board_(board), arena_(arena), boxes_(board.world_size()) {}

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
    std::list<Envelope> envelopes;  // from this rank, when nobody has asked for them
  };

  // Memory for a message of this rank's. The last large block is kept for the next one: fresh pages cost more
  // than the copy.
  Arena::Block allocate(size_t bytes);
  void release(uint64_t block);

  DeliveryWords& delivery(int rank, uint64_t offset) const;
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
