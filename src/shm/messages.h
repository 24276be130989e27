// Messages from one rank to another.
//
// The sender writes a state word and, unless the tensor is in registered memory, a copy of the bytes into its
// segment, and an envelope into its outbox for the receiver. The receiver takes envelopes out of the outbox
// as they arrive and keeps those that match no receive yet. If source and tag match, it copies the bytes
// directly into the receiving tensor; then the send is complete. An outbox stays full only while its receiver
// is not receiving, so the order of tags cannot cause a deadlock.
//
// Guarded by the endpoint's lock.
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
#include "shm/rank_names.h"

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
  int peer = kAnyRank;  // after a receive: the rank that sent the message
  int tag = 0;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  comm::Piece piece;

  // Of an outgoing message: offsets in this rank's segment.
  uint64_t delivery = 0;
  uint64_t payload = 0;
  bool registered = false;  // the payload is in the memory of the process instead

  const RankNames* names = nullptr;  // set by the endpoint
  std::string describe() const;      // "send of 10 Float to rank 1, tag 0"
};

class Messages {
 public:
  Messages(Board& board, Arena& arena) : board_(board), arena_(arena), boxes_(board.world_size()) {}

  // The message must exist until it is complete. If it throws SystemError (no memory), nothing has changed.
  void add(Message& message);
  bool idle() const { return open_ == 0; }
  // Advances all messages as far as possible without waiting, and appends those that are complete. Throws
  // Disagreement if a message and its receive have different sizes.
  bool step(std::vector<Operation*>& complete);
  // All messages that are not complete.
  std::vector<Message*> under_way() const;
  // Removes and returns them.
  std::vector<Message*> remove_all();

 private:
  struct Box {
    std::deque<Message*> unposted;  // to this rank, while the outbox is full
    std::list<Envelope> envelopes;  // from this rank, without a matching receive
  };

  // Memory for an outgoing message. The last large block is kept for the next message, because new pages cost
  // more than the copy.
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
  size_t open_ = 0;                // messages that are not complete
  std::list<Message*> sending_;    // posted
  std::list<Message*> receiving_;  // in the order in which they were started
};

}  // namespace lockstep::shm
