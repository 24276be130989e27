// Connects the ranks of one group on one machine, each with each, and gives each the segments of all.
//
// A rank listens on a Unix socket in the abstract namespace under a random name, and writes the name into the
// store together with a random token. Every rank connects to the lower ones. Whoever connects shows the token
// of the rank it connects to and hands its descriptors over; the answer is that rank's. Processes of other
// users and those that do not know the token are turned away. Nothing appears in a file system.
//
// The sockets stay open for the life of the mesh: their end is the end of the peer.
//
// Thread-safety: connect() once, from one thread. gone() and how_ended() after it, from any thread, as long
// as nobody changes peers().
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/deadline.h"
#include "base/fd.h"
#include "rendezvous/machines.h"
#include "shm/segment.h"

namespace lockstep::shm {

// The own entry has facts, segment and memory only.
struct Peer {
  rendezvous::RankFacts facts;
  std::shared_ptr<Segment> segment;  // in this group
  std::shared_ptr<Segment> memory;   // of its process
  base::Fd socket;                   // connected, SOCK_SEQPACKET, non-blocking
  base::Fd process;  // a pidfd; empty for threads of this process and where the kernel has none
};

class Mesh {
 public:
  // Listens and says so in the store, under "shm/<rank>"; waits for nobody. `store` must be fresh for this
  // group (a PrefixStore). Throws SystemError.
  Mesh(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, std::shared_ptr<Segment> segment,
       std::shared_ptr<Segment> memory);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;
  ~Mesh();

  // Returns when all peers are connected and their segments attached. `cancelled` is looked at every 20 ms at
  // least and ends it with an Error. Throws TimeoutError, naming the ranks that are missing; PeerLostError
  // when one ended that had been seen; UsageError when one is on another machine or belongs to another user;
  // MismatchError when one has another layout version or world size; SystemError.
  // When it throws, the sockets are closed: the others see this rank as gone.
  void connect(base::Deadline deadline, const std::atomic<bool>& cancelled);

  std::vector<Peer>& peers() { return peers_; }
  const std::vector<Peer>& peers() const { return peers_; }

  // The ranks whose process ended or whose socket is closed. Never blocks.
  std::vector<int> gone();
  // How its process ended: "killed by signal 9 (Killed)", "exited with status 3"; empty while it lives and
  // when nobody can tell. Never blocks.
  std::string how_ended(int rank) const;

 private:
  class Meeting;

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  std::string token_;
  base::Fd listener_;
  std::vector<Peer> peers_;
};

}  // namespace lockstep::shm
