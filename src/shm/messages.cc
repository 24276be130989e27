#include "shm/messages.h"

#include <algorithm>
#include <fmt/format.h>

#include "shm/copy.h"
#include "shm/mismatch.h"

namespace lockstep::shm {

namespace {

constexpr size_t kDeliveryBytes = 64;
// The arena keeps the pages of smaller blocks; larger ones would occupy too much memory.
constexpr size_t kSmallestKept = size_t{1} << 20;
constexpr size_t kLargestKept = size_t{64} << 20;

}  // namespace

std::string Message::describe() const {
  const char* type = c10::toString(dtype);
  const size_t count = piece.bytes / c10::elementSize(dtype);
  const int called = names == nullptr || peer == kAnyRank ? peer : names->of(peer);
  if (outgoing) return fmt::format("send of {} {} to rank {}, tag {}", count, type, called, tag);
  if (peer == kAnyRank) return fmt::format("recv of {} {} from any rank, tag {}", count, type, tag);
  return fmt::format("recv of {} {} from rank {}, tag {}", count, type, called, tag);
}

Arena::Block Messages::allocate(size_t bytes) {
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

void Messages::release(uint64_t offset) {
  const auto large = large_.extract(offset);
  if (large.empty() || spare_) {
    arena_.free(offset);
  } else {
    spare_ = large.mapped();
  }
}

DeliveryWords& Messages::delivery(int rank, uint64_t offset) const {
  return *reinterpret_cast<DeliveryWords*>(board_.segment(rank).at(offset, kDeliveryBytes));
}

void Messages::add(Message& message) {
  if (!message.outgoing) {
    receiving_.push_back(&message);
    ++open_;
    return;
  }
  const auto registered = board_.memory(board_.rank()).offset_of(message.piece.data, message.piece.bytes);
  const auto block = allocate(kDeliveryBytes + (registered ? 0 : message.piece.bytes));
  new (block.data) DeliveryWords{Delivery::Posted};
  message.delivery = block.offset;
  message.registered = registered.has_value();
  message.payload = registered ? *registered : block.offset + kDeliveryBytes;
  if (!registered && message.piece.bytes != 0) {
    copy_bytes(block.data + kDeliveryBytes, message.piece.data, message.piece.bytes);
  }
  boxes_[message.peer].unposted.push_back(&message);
  ++open_;
  post(message.peer);
}

bool Messages::post(int to) {
  auto& outbox = board_.outbox(board_.rank(), to);
  auto& unposted = boxes_[to].unposted;
  bool moved = false;
  while (!unposted.empty()) {
    const auto posted = outbox.posted.value.load(std::memory_order_relaxed);
    if (posted - outbox.taken.value.load(std::memory_order_seq_cst) == kEnvelopes) break;
    auto* message = unposted.front();
    unposted.pop_front();
    outbox.envelopes[posted % kEnvelopes] = {.tag = message->tag,
                                             .dtype = static_cast<uint8_t>(message->dtype),
                                             .registered = message->registered,
                                             .bytes = message->piece.bytes,
                                             .payload = message->payload,
                                             .delivery = message->delivery};
    outbox.posted.value.store(posted + 1, std::memory_order_seq_cst);
    sending_.push_back(message);
    moved = true;
  }
  if (moved) board_.ring(to);
  return moved;
}

bool Messages::collect(int from) {
  auto& outbox = board_.outbox(from, board_.rank());
  const auto taken = outbox.taken.value.load(std::memory_order_relaxed);
  const auto posted = outbox.posted.value.load(std::memory_order_seq_cst);
  if (taken == posted) return false;
  for (auto next = taken; next != posted; ++next)
    boxes_[from].envelopes.push_back(outbox.envelopes[next % kEnvelopes]);
  outbox.taken.value.store(posted, std::memory_order_seq_cst);
  board_.ring(from);
  return true;
}

bool Messages::deliver_from(int from, Message& message) {
  auto& envelopes = boxes_[from].envelopes;
  for (auto envelope = envelopes.begin(); envelope != envelopes.end(); ++envelope) {
    if (envelope->tag != message.tag) continue;
    if (envelope->bytes != message.piece.bytes) {
      throw Disagreement{.rank = from,
                         .here = message.describe(),
                         .there = fmt::format("send of {} bytes of {}", envelope->bytes,
                                              c10::toString(static_cast<c10::ScalarType>(envelope->dtype))),
                         .in_message = true};
    }
    if (envelope->bytes != 0) {
      auto& memory = envelope->registered ? board_.memory(from) : board_.segment(from);
      copy_bytes(message.piece.data, memory.at(envelope->payload, envelope->bytes), envelope->bytes);
    }
    if (board_.words(from).failure.present.load(std::memory_order_seq_cst) != 0) throw FailedPeer{from};
    delivery(from, envelope->delivery).state.store(Delivery::Received, std::memory_order_seq_cst);
    board_.ring(from);
    envelopes.erase(envelope);
    message.peer = from;
    return true;
  }
  return false;
}

bool Messages::deliver(Message& message) {
  if (message.peer != kAnyRank) return deliver_from(message.peer, message);
  for (int step = 1; step < board_.world_size(); ++step) {
    if (deliver_from((board_.rank() + step) % board_.world_size(), message)) return true;
  }
  return false;
}

bool Messages::step(std::vector<Operation*>& complete) {
  bool moved = false;
  for (int to = 0; to < board_.world_size(); ++to) moved |= post(to);
  for (auto it = sending_.begin(); it != sending_.end();) {
    auto* message = *it;
    if (delivery(board_.rank(), message->delivery).state.load(std::memory_order_seq_cst) !=
        Delivery::Received) {
      ++it;
      continue;
    }
    release(message->delivery);
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

std::vector<Message*> Messages::under_way() const {
  std::vector<Message*> messages(sending_.begin(), sending_.end());
  for (const auto& box : boxes_) messages.insert(messages.end(), box.unposted.begin(), box.unposted.end());
  messages.insert(messages.end(), receiving_.begin(), receiving_.end());
  return messages;
}

std::vector<Message*> Messages::remove_all() {
  auto messages = under_way();
  sending_.clear();
  receiving_.clear();
  for (auto& box : boxes_) box.unposted.clear();
  open_ = 0;
  return messages;
}

}  // namespace lockstep::shm
