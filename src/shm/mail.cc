#include "shm/mail.h"

#include <algorithm>
#include <fmt/format.h>

#include "shm/copy.h"
#include "shm/mismatch.h"

namespace lockstep::shm {

namespace {

constexpr size_t kLetterBytes = 64;
// Smaller blocks keep their pages in the arena; larger ones are too much to keep.
constexpr size_t kSmallestKept = size_t{1} << 20;
constexpr size_t kLargestKept = size_t{64} << 20;

}  // namespace

std::string Message::describe() const {
  const char* type = c10::toString(dtype);
  const size_t count = piece.bytes / c10::elementSize(dtype);
  if (outgoing) return fmt::format("send of {} {} to rank {}, tag {}", count, type, peer, tag);
  if (peer == kAnyRank) return fmt::format("recv of {} {} from any rank, tag {}", count, type, tag);
  return fmt::format("recv of {} {} from rank {}, tag {}", count, type, peer, tag);
}

Arena::Block Mail::paper(size_t bytes) {
  if (bytes < kSmallestKept || bytes > kLargestKept) return arena_.allocate(bytes);
  if (spare_ && spare_->bytes < bytes) {
    arena_.free(spare_->offset);
    spare_.reset();
  }
  const auto block = spare_ ? *spare_ : arena_.allocate(bytes);
  spare_.reset();
  large_.emplace(block.offset, block);
  return block;
}

void Mail::discard(uint64_t offset) {
  const auto large = large_.extract(offset);
  if (large.empty() || spare_) {
    arena_.free(offset);
  } else {
    spare_ = large.mapped();
  }
}

LetterWords& Mail::letter(int rank, uint64_t offset) const {
  return *reinterpret_cast<LetterWords*>(board_.segment(rank).at(offset, kLetterBytes));
}

void Mail::add(Message& message) {
  if (!message.outgoing) {
    receiving_.push_back(&message);
    ++open_;
    return;
  }
  const auto registered = board_.segment(board_.rank()).offset_of(message.piece.data, message.piece.bytes);
  const auto block = paper(kLetterBytes + (registered ? 0 : message.piece.bytes));
  new (block.data) LetterWords{Letter::Posted};
  message.letter = block.offset;
  message.payload = registered ? *registered : block.offset + kLetterBytes;
  if (!registered && message.piece.bytes != 0) {
    copy_bytes(block.data + kLetterBytes, message.piece.data, message.piece.bytes);
  }
  boxes_[message.peer].unposted.push_back(&message);
  ++open_;
  post(message.peer);
}

bool Mail::post(int to) {
  auto& outbox = board_.outbox(board_.rank(), to);
  auto& unposted = boxes_[to].unposted;
  bool moved = false;
  while (!unposted.empty()) {
    const auto posted = outbox.posted.value.load(std::memory_order_relaxed);
    if (posted - outbox.taken.value.load(std::memory_order_seq_cst) == kNotes) break;
    auto* message = unposted.front();
    unposted.pop_front();
    outbox.notes[posted % kNotes] = {.tag = message->tag,
                                     .dtype = static_cast<uint8_t>(message->dtype),
                                     .bytes = message->piece.bytes,
                                     .payload = message->payload,
                                     .letter = message->letter};
    outbox.posted.value.store(posted + 1, std::memory_order_seq_cst);
    sending_.push_back(message);
    moved = true;
  }
  if (moved) board_.ring(to);
  return moved;
}

bool Mail::collect(int from) {
  auto& outbox = board_.outbox(from, board_.rank());
  const auto taken = outbox.taken.value.load(std::memory_order_relaxed);
  const auto posted = outbox.posted.value.load(std::memory_order_seq_cst);
  if (taken == posted) return false;
  for (auto next = taken; next != posted; ++next) boxes_[from].notes.push_back(outbox.notes[next % kNotes]);
  outbox.taken.value.store(posted, std::memory_order_seq_cst);
  board_.ring(from);
  return true;
}

bool Mail::deliver_from(int from, Message& message) {
  auto& notes = boxes_[from].notes;
  for (auto note = notes.begin(); note != notes.end(); ++note) {
    if (note->tag != message.tag) continue;
    if (note->bytes != message.piece.bytes) {
      throw Disagreement{.rank = from,
                         .here = message.describe(),
                         .there = fmt::format("send of {} bytes of {}", note->bytes,
                                              c10::toString(static_cast<c10::ScalarType>(note->dtype))),
                         .in_message = true};
    }
    if (note->bytes != 0) {
      copy_bytes(message.piece.data, board_.segment(from).at(note->payload, note->bytes), note->bytes);
    }
    if (board_.control(from).failure.present.load(std::memory_order_seq_cst) != 0) throw Tainted{from};
    letter(from, note->letter).state.store(Letter::Received, std::memory_order_seq_cst);
    board_.ring(from);
    notes.erase(note);
    message.peer = from;
    return true;
  }
  return false;
}

bool Mail::deliver(Message& message) {
  if (message.peer != kAnyRank) return deliver_from(message.peer, message);
  for (int step = 1; step < board_.world_size(); ++step) {
    if (deliver_from((board_.rank() + step) % board_.world_size(), message)) return true;
  }
  return false;
}

bool Mail::step(std::vector<Operation*>& complete) {
  bool moved = false;
  for (int to = 0; to < board_.world_size(); ++to) moved |= post(to);
  for (auto it = sending_.begin(); it != sending_.end();) {
    auto* message = *it;
    if (letter(board_.rank(), message->letter).state.load(std::memory_order_seq_cst) != Letter::Received) {
      ++it;
      continue;
    }
    discard(message->letter);
    complete.push_back(message);
    --open_;
    it = sending_.erase(it);
    moved = true;
  }
  if (receiving_.empty()) return moved;
  for (int from = 0; from < board_.world_size(); ++from) moved |= collect(from);
  for (auto it = receiving_.begin(); it != receiving_.end();) {
    if (!deliver(**it)) {
      ++it;
      continue;
    }
    complete.push_back(*it);
    --open_;
    it = receiving_.erase(it);
    moved = true;
  }
  return moved;
}

std::vector<Message*> Mail::under_way() const {
  std::vector<Message*> messages(sending_.begin(), sending_.end());
  for (const auto& box : boxes_) messages.insert(messages.end(), box.unposted.begin(), box.unposted.end());
  messages.insert(messages.end(), receiving_.begin(), receiving_.end());
  return messages;
}

std::vector<Message*> Mail::give_up() {
  auto messages = under_way();
  sending_.clear();
  receiving_.clear();
  for (auto& box : boxes_) box.unposted.clear();
  open_ = 0;
  return messages;
}

}  // namespace lockstep::shm
