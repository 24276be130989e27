// Moves tensors that LibTorch has allocated into the memory that peers can access, at their own addresses.
//
// A large tensor that is given in one call after another, such as the gradient buckets of PyTorch's DDP, is
// staged a few times and then moved: its bytes are copied to a block of the arena, whose pages are mapped
// over the tensor's. Its addresses, and pointers to it, stay valid. When the tensor is freed, private memory
// takes their place before LibTorch's allocator gets it back.
//
// Only whole pages can be moved. The first and last bytes of a tensor may share their pages with others; the
// block has room for them, and every call copies them: enter() to the block, leave() back.
//
// Only memory of LibTorch's own allocator is moved, because only its end is certain.
//
// Before a fork, tensors that no call uses become private again, at the same addresses, also while threads of
// this process write to them. So a child has its own copy of them, as of any other memory. Later calls move
// them again.
//
// Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "comm/request.h"
#include "shm/arena.h"

namespace lockstep::shm {

class Relocated : public std::enable_shared_from_this<Relocated> {
 public:
  using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;

  explicit Relocated(std::shared_ptr<Arena> arena);

  // Before a call that gives `piece` of `storage` (Request::storage): counts it, and moves the piece when it
  // has been given often enough. No thread may write to the piece meanwhile. Never throws; a piece that
  // cannot be moved stays.
  void notice(const StoragePtr& storage, comm::Piece piece) noexcept;

  // The offset in the segment of a piece that has been moved, for peers to read and write until leave().
  // Nothing if it has not been moved, or has been withdrawn since.
  std::optional<uint64_t> enter(comm::Piece piece);
  // `has_results`: peers have written to the piece.
  void leave(comm::Piece piece, bool has_results);

  // Around a fork, in the process and in the child.
  void before_fork();
  void after_fork();

 private:
  class Owner;
  struct Place {  // of a piece that has been moved
    comm::Piece piece;
    comm::Piece pages;  // the whole pages inside the piece
    uint64_t block;
    uint64_t offset;    // of the piece
    std::byte* shared;  // its address in the segment
    int users = 0;      // calls between enter() and leave()
    // Private again, at the same addresses; the block is free. A later call may move it again.
    bool separated = false;

    std::byte* shown(const std::byte* address) const { return shared + (address - piece.data); }
  };
  using Places = std::map<std::byte*, Place>;  // by the address of the piece
  struct Candidate {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    size_t bytes;
    int calls;
  };

  Place* find(comm::Piece piece);
  static std::array<comm::Piece, 2> edges(const Place& place, comm::Piece piece);
  bool can_move(comm::Piece piece) const;
  bool is_due(const StoragePtr& storage, comm::Piece piece);
  void move(const StoragePtr& storage, comm::Piece piece);
  bool release(std::byte* piece);

  const std::shared_ptr<Arena> arena_;
  std::atomic<bool> enabled_;
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  Places places_;
  std::unordered_map<std::byte*, Candidate> candidates_;
};

}  // namespace lockstep::shm
