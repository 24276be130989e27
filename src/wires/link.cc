#include "wires/link.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <stdexcept>
#include <sys/socket.h>
#include <sys/uio.h>
#include <utility>

#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::wires {

namespace {

using namespace std::chrono_literals;

// How long a waiting thread tries before it sleeps: longer than a message takes at 1 Gbit/s. An idle CPU
// takes a part of that to wake.
constexpr auto kSpin = 100us;
constexpr auto kSpinPerByte = 10ns;
// After so many waits that were longer than that, only one of as many tries at all.
constexpr int kMostWasted = 8;
// How often a sleeping thread asks whether its wait is hopeless.
constexpr int kSliceMs = 100;
constexpr size_t kScratchBytes = size_t{64} << 10;

}  // namespace

class Link::Receipt final : public comm::Transfer {
 public:
  Receipt(Link& link, Wire& wire, std::shared_ptr<Awaited> awaited)
      : link_(link), wire_(wire), awaited_(std::move(awaited)) {}
  void wait(const std::function<bool()>& hopeless) override {
    Lock lock(link_.mutex_);
    link_.wait(lock, wire_, awaited_->bytes, hopeless, [this] { return awaited_->done; });
  }

 private:
  Link& link_;
  Wire& wire_;
  const std::shared_ptr<Awaited> awaited_;
};

// A message that has been copied to the socket, or behind others that do not fit into it.
class Link::Dispatch final : public comm::Transfer {
 public:
  Dispatch(Link& link, Wire& wire) : link_(link), wire_(wire) {}
  void wait(const std::function<bool()>& hopeless) override {
    Lock lock(link_.mutex_);
    if (!wire_.unsent.empty())
      link_.wait(lock, wire_, wire_.unsent.size(), hopeless, [this] { return wire_.unsent.empty(); });
  }

 private:
  Link& link_;
  Wire& wire_;
};

Link::Link(std::vector<base::Fd> sockets, std::shared_ptr<comm::Link> other,
           std::chrono::milliseconds timeout)
    : other_(std::move(other)), timeout_(timeout), wires_(sockets.size()) {
  for (size_t rank = 0; rank < sockets.size(); ++rank) {
    const int room = 4 * kLargestBytes;
    if (sockets[rank]) ::setsockopt(sockets[rank].get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    wires_[rank].socket = std::move(sockets[rank]);
  }
}

Link::~Link() = default;

Link::Wire* Link::wire_to(int rank, size_t bytes) {
  auto& wire = wires_.at(rank);
  return wire.socket && bytes <= kLargestBytes ? &wire : nullptr;
}

comm::TransferPtr Link::send(int to, int tag, const std::byte* data, size_t bytes, Owner owner) {
  auto* const wire = wire_to(to, bytes);
  if (wire == nullptr) return other_->send(to, tag, data, bytes, std::move(owner));
  return send(*wire, tag, data, bytes, Sent::Now);
}

comm::TransferPtr Link::send_with_next(int to, int tag, const std::byte* data, size_t bytes, Owner owner) {
  auto* const wire = wire_to(to, bytes);
  if (wire == nullptr) return other_->send_with_next(to, tag, data, bytes, std::move(owner));
  return send(*wire, tag, data, bytes, Sent::WithNext);
}

comm::TransferPtr Link::send(Wire& wire, int tag, const std::byte* data, size_t bytes, Sent sent) {
  Header header{.tag = tag, .bytes = static_cast<uint32_t>(bytes)};
  const Lock lock(mutex_);
  if (!wire.fault.empty()) throw_fault(wire);
  size_t written = 0;
  if (sent == Sent::Now) {
    const iovec parts[] = {{wire.unsent.data(), wire.unsent.size()},
                           {&header, sizeof header},
                           {const_cast<std::byte*>(data), bytes}};
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = std::size(parts);
    const auto result = ::sendmsg(wire.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (result > 0) written = static_cast<size_t>(result);
  }
  // The rest, also after an error, which the next attempt repeats.
  const size_t before = std::min(written, wire.unsent.size());
  wire.unsent.erase(wire.unsent.begin(), wire.unsent.begin() + static_cast<std::ptrdiff_t>(before));
  written -= before;
  const auto keep = [&](const void* from, size_t length) {
    const size_t skipped = std::min(written, length);
    written -= skipped;
    const auto* const begin = static_cast<const std::byte*>(from);
    wire.unsent.insert(wire.unsent.end(), begin + skipped, begin + length);
  };
  keep(&header, sizeof header);
  keep(data, bytes);
  return std::make_unique<Dispatch>(*this, wire);
}

comm::TransferPtr Link::receive(int from, int tag, std::byte* data, size_t bytes, Owner owner) {
  auto* const wire = wire_to(from, bytes);
  if (wire == nullptr) return other_->receive(from, tag, data, bytes, std::move(owner));
  auto awaited = std::make_shared<Awaited>(Awaited{data, bytes, std::move(owner)});
  const Lock lock(mutex_);
  wire->awaited[tag].push_back(awaited);
  if (const auto early = wire->early.find(tag); early != wire->early.end()) {
    const auto message = std::move(early->second.front());
    early->second.pop_front();
    if (early->second.empty()) wire->early.erase(early);
    deliver(*wire, {.tag = tag, .bytes = static_cast<uint32_t>(message.size())}, message.data());
  }
  return std::make_unique<Receipt>(*this, *wire, std::move(awaited));
}

void Link::hang_up() noexcept {
  for (const auto& wire : wires_) {
    if (wire.socket) ::shutdown(wire.socket.get(), SHUT_RDWR);
  }
  other_->hang_up();
}

// ---- Moving bytes

bool Link::move_bytes() {
  bool moved = false;
  for (auto& wire : wires_) {
    if (!wire.socket || !wire.fault.empty()) continue;
    if (!wire.unsent.empty()) moved |= flush(wire);
    moved |= read(wire);
  }
  if (moved) moved_.notify_all();
  return moved;
}

bool Link::flush(Wire& wire) {
  const auto sent =
      ::send(wire.socket.get(), wire.unsent.data(), wire.unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    wire.fault = "Connection closed by peer: " + base::errno_text(errno);
    return true;
  }
  wire.unsent.erase(wire.unsent.begin(), wire.unsent.begin() + sent);
  return true;
}

bool Link::read(Wire& wire) {
  std::byte scratch[kScratchBytes];
  const auto got = ::recv(wire.socket.get(), scratch, sizeof scratch, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    wire.fault = "Connection closed by peer" + (got < 0 ? ": " + base::errno_text(errno) : std::string());
    return true;
  }
  const std::byte* from = scratch;
  size_t left = static_cast<size_t>(got);
  if (!wire.received.empty()) {
    wire.received.insert(wire.received.end(), from, from + left);
    from = wire.received.data();
    left = wire.received.size();
  }
  for (Header header{}; left >= sizeof header;) {
    std::memcpy(&header, from, sizeof header);
    if (header.bytes > kLargestBytes) {
      wire.fault = fmt::format("Connection closed by peer: it announced a message of {} bytes", header.bytes);
      return true;
    }
    if (left < sizeof header + header.bytes) break;
    deliver(wire, header, from + sizeof header);
    from += sizeof header + header.bytes;
    left -= sizeof header + header.bytes;
  }
  if (!wire.received.empty()) {
    wire.received.erase(wire.received.begin(), wire.received.end() - static_cast<std::ptrdiff_t>(left));
  } else {
    wire.received.assign(from, from + left);
  }
  return true;
}

void Link::deliver(Wire& wire, const Header& header, const std::byte* data) {
  const auto found = wire.awaited.find(header.tag);
  if (found == wire.awaited.end()) {
    wire.early[header.tag].emplace_back(data, data + header.bytes);
    return;
  }
  const auto awaited = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) wire.awaited.erase(found);
  if (awaited->bytes != header.bytes) {
    wire.fault =
        fmt::format("a message of {} bytes arrived instead of one of {}", header.bytes, awaited->bytes);
    return;
  }
  std::memcpy(awaited->data, data, header.bytes);
  awaited->done = true;
}

void Link::throw_fault(const Wire& wire) const {
  throw comm::LinkError(static_cast<int>(&wire - wires_.data()), wire.fault);
}

// ---- Waiting

template <class Done>
void Link::wait(Lock& lock, const Wire& wire, size_t bytes, const std::function<bool()>& hopeless,
                const Done& done) {
  const auto begin = Clock::now();
  const bool spins = spins_wasted_ < kMostWasted || spins_wasted_ % kMostWasted == 0;
  bool slept = false;
  for (;;) {
    move_bytes();
    if (done()) break;
    if (!wire.fault.empty()) throw_fault(wire);
    const auto waited = Clock::now() - begin;
    if (spins && waited < kSpin + bytes * kSpinPerByte) {
      lock.unlock();
      ::sched_yield();
      lock.lock();
      continue;
    }
    if (waited >= timeout_) throw std::runtime_error(fmt::format("timed out after {} ms", timeout_.count()));
    slept = true;
    sleep(lock, !wire.unsent.empty());
    lock.unlock();
    const bool given_up = hopeless();
    lock.lock();
    if (given_up) throw std::runtime_error("the wait was given up");
  }
  spins_wasted_ = slept ? spins_wasted_ + 1 : 0;
}

// One thread sleeps in poll(2), the others until that one has moved something.
void Link::sleep(Lock& lock, bool writes) {
  if (sleeping_) {
    moved_.wait_for(lock, std::chrono::milliseconds(kSliceMs));
    return;
  }
  sleeping_ = true;
  std::vector<pollfd> polled;
  for (const auto& wire : wires_) {
    if (!wire.socket || !wire.fault.empty()) continue;
    polled.push_back(
        {wire.socket.get(), static_cast<short>(POLLIN | (writes && !wire.unsent.empty() ? POLLOUT : 0)), 0});
  }
  lock.unlock();
  ::poll(polled.data(), polled.size(), kSliceMs);
  lock.lock();
  sleeping_ = false;
  moved_.notify_all();  // another one has to sleep in poll(2), if this one's wait is over
}

}  // namespace lockstep::wires
