// Connects each rank of a group on one machine to each other rank, and exchanges their segments.
//
// A rank listens on a Unix socket with a random name in the abstract namespace, and writes the name and a
// random token into the store. Every rank connects to the lower ranks. It sends the token of the rank that it
// connects to, and its own descriptors; the other rank answers with its descriptors. Processes of other
// users, and those without the token, are rejected. Nothing appears in a file system.
//
// The sockets stay open as long as the mesh exists: when one closes, the peer has ended.
//
// Thread-safety: connect() once, from one thread. ended_ranks() and describe_end() after it, from any thread,
// while no thread changes peers().
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/deadline.h"
#include "base/fd.h"
#include "rendezvous/machines.h"
#include "shm/rank_names.h"
#include "shm/segment.h"

namespace lockstep::shm {

// The entry of this rank has only facts, segment and memory.
struct Peer {
  rendezvous::RankFacts facts;       // rank and world size as errors name them
  std::shared_ptr<Segment> segment;  // in this group
  std::shared_ptr<Segment> memory;   // of its process
  base::Fd socket;                   // connected, SOCK_SEQPACKET, non-blocking
  base::Fd process;                  // a pidfd; empty for threads of this process, or if the kernel has none
};

class Mesh {
 public:
  // Listens, and publishes its address in the store as "shm/<rank>". Does not wait for the other ranks.
  // `store` must be used by this group only (a PrefixStore). Throws SystemError.
  Mesh(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, std::shared_ptr<Segment> segment,
       std::shared_ptr<Segment> memory, std::optional<RankNames> names = std::nullopt);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;
  ~Mesh();

  // Returns when all peers are connected and their segments attached. `cancelled` is checked at least every
  // 20 ms and ends it with an Error. Throws TimeoutError with the missing ranks; PeerLostError if a rank
  // ended after it had published its address; UsageError if a rank is on another machine or belongs to
  // another user; MismatchError if a rank has another layout version or world size; SystemError. If it
  // throws, the sockets are closed, and the other ranks see that this one has ended.
  void connect(base::Deadline deadline, const std::atomic<bool>& cancelled);

  std::vector<Peer>& peers() { return peers_; }
  const std::vector<Peer>& peers() const { return peers_; }

  // The ranks whose process has ended or whose socket is closed. Never blocks.
  std::vector<int> ended_ranks();
  // How its process ended: "killed by signal 9 (Killed)", "exited with status 3"; empty if it is running at
  // the deadline, or if that is unknown.
  std::string describe_end(int rank, base::Deadline until = base::Deadline::in({})) const;

 private:
  class Connector;

  c10::intrusive_ptr<c10d::Store> store_;  // null after connect()
  const int rank_;
  const RankNames names_;
  std::string token_;
  base::Fd listener_;
  std::vector<Peer> peers_;
};

}  // namespace lockstep::shm
