// A link for small messages between a few ranks, over sockets of lockstep's own. All other messages take
// another link.
//
// An engine such as Gloo wakes a thread for every message, and that thread wakes the one that waits: at least
// as expensive as some ten thousand bytes. Here, a message is written by the thread that sends it and read by
// the thread that waits for it. That thread tries for a short time, yielding to other threads, if that has
// been worth it before; then it sleeps until something arrives.
//
// Every thread that waits or sends moves the bytes of all messages; without one, nothing moves.
//
// Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fd.h"
#include "comm/link.h"

namespace lockstep::wires {

class Link final : public comm::Link {
 public:
  // Messages of up to this size take the wires.
  static constexpr size_t kLargestBytes = size_t{64} << 10;

  // `sockets`: by rank; connected, non-blocking; none for ranks that are reached over `other`. `timeout`: of
  // a wait. Throws SystemError.
  Link(std::vector<base::Fd> sockets, std::shared_ptr<comm::Link> other, std::chrono::milliseconds timeout);
  ~Link() override;

  comm::TransferPtr send(int to, int tag, const std::byte* data, size_t bytes, Owner owner) override;
  comm::TransferPtr send_with_next(int to, int tag, const std::byte* data, size_t bytes,
                                   Owner owner) override;
  comm::TransferPtr receive(int from, int tag, std::byte* data, size_t bytes, Owner owner) override;
  void hang_up() noexcept override;

 private:
  class Receipt;
  class Dispatch;
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  struct Header {
    int32_t tag;
    uint32_t bytes;
  };
  struct Awaited {
    std::byte* data;
    size_t bytes;
    Owner owner;
    bool done = false;
  };
  struct Wire {
    base::Fd socket;
    std::vector<std::byte> unsent;                                // held back, or too much for the socket
    std::vector<std::byte> received;                              // the beginning of a message
    std::map<int, std::deque<std::shared_ptr<Awaited>>> awaited;  // by tag
    std::map<int, std::deque<std::vector<std::byte>>> early;      // messages that nobody has asked for yet
    std::string fault;                                            // why the connection has ended
  };

  enum class Sent { Now, WithNext };
  comm::TransferPtr send(Wire& wire, int tag, const std::byte* data, size_t bytes, Sent sent);
  Wire* wire_to(int rank, size_t bytes);
  // All functions below: with the lock held.
  bool move_bytes();
  bool flush(Wire& wire);
  bool read(Wire& wire);
  void deliver(Wire& wire, const Header& header, const std::byte* data);
  [[noreturn]] void throw_fault(const Wire& wire) const;
  template <class Done>
  void wait(Lock& lock, const Wire& wire, size_t bytes, const std::function<bool()>& hopeless,
            const Done& done);
  void sleep(Lock& lock, bool writes);

  const std::shared_ptr<comm::Link> other_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable moved_;
  std::vector<Wire> wires_;  // by rank
  bool sleeping_ = false;    // a thread sleeps until something arrives
  int spins_wasted_ = 0;     // in a row
};

}  // namespace lockstep::wires
