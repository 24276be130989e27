#include "shm/relocated.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>

#include <c10/core/CPUAllocator.h>

#include "base/env.h"
#include "base/log.h"
#include "shm/copy.h"
#include "shm/pages.h"

namespace lockstep::shm {

namespace {

using comm::common;
using comm::Piece;

// Moving a tensor takes as long as a few calls with staging; a tensor of one step is not worth it.
constexpr int kStagedCalls = 3;
constexpr size_t kMostCandidates = 1024;
constexpr size_t kMostPlaces = 1024;  // each needs two of the mappings that a process may have

bool contains(Piece outer, Piece inner) {
  return inner.data >= outer.data && inner.data + inner.bytes <= outer.data + outer.bytes;
}

std::byte* rounded_up(std::byte* address) {
  return address + (page_bytes() - reinterpret_cast<uintptr_t>(address) % page_bytes()) % page_bytes();
}
std::byte* rounded_down(std::byte* address) {
  return address - reinterpret_cast<uintptr_t>(address) % page_bytes();
}

}  // namespace

// The context of a storage's memory, once a piece of it has been moved.
class Relocated::Owner {
 public:
  // Returns the storage's owner, which is created if its memory is that of LibTorch's allocator; else null.
  static Owner* of(c10::StorageImpl& storage) {
    const auto deleter = storage.data_ptr().get_deleter();
    if (deleter == &Owner::free) return static_cast<Owner*>(storage.data_ptr().get_context());
    if (deleter == nullptr || deleter != c10::GetDefaultCPUAllocator()->raw_deleter()) return nullptr;
    auto* const owner = new Owner;
    owner->memory_ = storage.set_data_ptr({storage.data_ptr().get(), owner, &Owner::free, storage.device()});
    return owner;
  }

  void add(std::shared_ptr<Relocated> relocated, std::byte* piece) {
    pieces_.emplace_back(std::move(relocated), piece);
  }

 private:
  static void free(void* context) {
    const std::unique_ptr<Owner> owner(static_cast<Owner*>(context));
    for (const auto& [relocated, piece] : owner->pieces_) {
      // Memory that is still shared is lost rather than given to another owner.
      if (!relocated->release(piece)) owner->memory_.release_context();
    }
  }

  c10::DataPtr memory_;
  std::vector<std::pair<std::shared_ptr<Relocated>, std::byte*>> pieces_;
};

Relocated::Relocated(std::shared_ptr<Arena> arena)
    : arena_(std::move(arena)), enabled_(base::env_flag("LOCKSTEP_RELOCATE", true)) {}

void Relocated::notice(const StoragePtr& storage, Piece piece) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (!enabled_ || !can_move(piece) || !is_due(storage, piece)) return;
    move(storage, piece);
  } catch (const std::exception& error) {
    base::log_info("tensors are not moved into shared memory any more: {}", error.what());
    enabled_ = false;
  }
}

// A piece that overlaps another place stays, unless the place is its own and private again.
bool Relocated::can_move(Piece piece) const {
  if (arena_->segment().offset_of(piece.data, piece.bytes)) return false;
  auto next = places_.lower_bound(piece.data);
  if (next != places_.end() && common(next->second.piece, piece).bytes > 0) {
    const auto& place = next->second;
    return place.separated && place.piece.data == piece.data && place.piece.bytes == piece.bytes;
  }
  if (next != places_.begin() && common(std::prev(next)->second.piece, piece).bytes > 0) return false;
  return places_.size() < kMostPlaces;
}

bool Relocated::is_due(const StoragePtr& storage, Piece piece) {
  if (candidates_.size() >= kMostCandidates) {
    std::erase_if(candidates_, [](const auto& entry) { return entry.second.storage.expired(); });
    if (candidates_.size() >= kMostCandidates) candidates_.clear();
  }
  const auto [found, added] =
      candidates_.try_emplace(piece.data, Candidate{c10::weak_intrusive_ptr(storage), piece.bytes, 1});
  if (added) return false;
  auto& candidate = found->second;
  // The storage may be gone, and another one may have its memory. Not lock(): its result could be the last
  // reference, and freeing the storage here would lock mutex_ again.
  if (candidate.bytes != piece.bytes || candidate.storage._unsafe_get_target() != storage.get()) {
    candidate = {c10::weak_intrusive_ptr(storage), piece.bytes, 1};
    return false;
  }
  if (candidate.calls++ < kStagedCalls) return false;
  candidates_.erase(found);
  return true;
}

void Relocated::move(const StoragePtr& storage, Piece piece) {
  const Piece memory{static_cast<std::byte*>(storage->data_ptr().get()), storage->nbytes()};
  if (!contains(memory, piece)) return;
  auto* const owner = Owner::of(*storage);
  if (owner == nullptr) return;
  auto* const begin = rounded_down(piece.data);
  auto* const first = rounded_up(piece.data);
  auto* const last = rounded_down(piece.data + piece.bytes);
  const auto block = arena_->allocate_for_alias(begin, rounded_up(piece.data + piece.bytes) - begin);
  const Place place = {.piece = piece,
                       .pages = {first, static_cast<size_t>(last - first)},
                       .block = block.offset,
                       .offset = block.offset + (piece.data - begin),
                       .shared = block.data + (piece.data - begin)};
  const auto [entry, added] = places_.try_emplace(piece.data, place);
  try {
    if (added) owner->add(shared_from_this(), piece.data);
    auto* const copy = block.data + (first - begin);
    if (!populate_pages(copy, place.pages.bytes)) {
      throw_system_error(fmt::format("cannot copy {} bytes to shared memory", place.pages.bytes), ENOMEM);
    }
    copy_bytes(copy, place.pages.data, place.pages.bytes);
    arena_->segment().add_alias(first, {block.offset + (first - begin), place.pages.bytes});
  } catch (...) {
    if (added) places_.erase(entry);
    arena_->free(block.offset);
    throw;
  }
  entry->second = place;
  populate_pages(place.pages.data, place.pages.bytes);
  any_.store(true, std::memory_order_release);
}

// When its storage is freed.
bool Relocated::release(std::byte* piece) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(piece);
  if (found == places_.end()) return true;
  const auto place = found->second;
  places_.erase(found);
  any_.store(!places_.empty(), std::memory_order_release);
  const bool replaced = place.separated ? replace_pages(place.pages.data, place.pages.bytes)
                                        : arena_->segment().remove_alias(place.pages.data);
  if (!replaced) {
    base::log_warn("cannot replace shared memory by private memory: {} bytes are lost", place.piece.bytes);
    return false;
  }
  if (!place.separated) arena_->free(place.block);
  return true;
}

void Relocated::before_fork() {
  mutex_.lock();
  for (auto& [address, place] : places_) {
    if (place.users > 0 || place.separated) continue;
    place.separated = arena_->segment().separate_alias(place.pages.data);
    if (place.separated) arena_->free(place.block);
  }
}

void Relocated::after_fork() { mutex_.unlock(); }

Relocated::Place* Relocated::find(Piece piece) {
  auto next = places_.upper_bound(piece.data);
  if (next == places_.begin()) return nullptr;
  auto& place = std::prev(next)->second;
  return contains(place.piece, piece) ? &place : nullptr;
}

// The parts of `piece` that are before and after the whole pages of its place.
std::array<Piece, 2> Relocated::edges(const Place& place, Piece piece) {
  auto* const begin = place.pages.data;
  auto* const end = begin + place.pages.bytes;
  const Piece before = {place.piece.data, static_cast<size_t>(begin - place.piece.data)};
  const Piece after = {end, static_cast<size_t>(place.piece.data + place.piece.bytes - end)};
  return {common(before, piece), common(after, piece)};
}

std::optional<uint64_t> Relocated::enter(Piece piece) {
  if (!any_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  auto* const place = find(piece);
  if (place == nullptr || place->separated) return std::nullopt;
  const auto offset = place->offset + (piece.data - place->piece.data);
  if (arena_->segment().is_withdrawn({offset, piece.bytes})) return std::nullopt;
  for (const auto& edge : edges(*place, piece)) std::memcpy(place->shown(edge.data), edge.data, edge.bytes);
  ++place->users;
  return offset;
}

void Relocated::leave(Piece piece, bool has_results) {
  const std::lock_guard lock(mutex_);
  auto* const place = find(piece);
  if (place == nullptr) return;
  --place->users;
  if (!has_results) return;
  for (const auto& edge : edges(*place, piece)) std::memcpy(edge.data, place->shown(edge.data), edge.bytes);
}

}  // namespace lockstep::shm
