#include "shm/mesh.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fmt/format.h>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/host.h"
#include "base/log.h"
#include "base/rank_list.h"
#include "base/token.h"
#include "base/unix_socket.h"
#include "rendezvous/meet.h"
#include "shm/handshake.h"
#include "shm/peer_address.h"
#include "shm/peer_end.h"

namespace lockstep::shm {

namespace {

using namespace std::chrono_literals;

// After this many ranks without an address, a pass stops reading: the store serves all ranks.
constexpr int kMissesPerPass = 4;
// Connections of other processes that are accepted in one pass, in addition to those of the ranks.
constexpr int kExtraConnections = 64;

}  // namespace

// One run of connect(). It never waits for a single peer: each pass does everything that is possible now, and
// then sleeps until something may have changed. A peer is complete when this rank has read its address, has
// received its descriptors, and has sent its own.
class Mesh::Connector {
 public:
  Connector(Mesh& mesh, base::Deadline deadline, const std::atomic<bool>& cancelled)
      : mesh_(mesh),
        rank_(mesh.rank_),
        world_size_(static_cast<int>(mesh.peers_.size())),
        deadline_(deadline),
        cancelled_(cancelled),
        partners_(mesh.peers_.size()) {
    partners_[rank_].handshake_sent = true;
  }

  void run() {
    for (;;) {
      if (cancelled_.load()) {
        throw Error(base::compose({.what = "connecting the ranks was cancelled", .where = where()}));
      }
      read_addresses(kMissesPerPass);
      connect_to_lower_ranks();
      accept_higher_ranks();
      receive_answers();
      if (unfinished().empty()) return;
      // Before looking for ended ranks: if all ranks time out at once, each should report the ranks that it
      // was waiting for, not the one that was faster.
      if (deadline_.expired()) throw_timeout();
      look_for_ended_ranks();
      sleep();
    }
  }

 private:
  struct Partner {
    std::optional<PeerAddress> address;
    bool handshake_sent = false;           // it has our descriptors
    bool ended_before_connecting = false;  // it had ended when we read its address
    bool end_seen = false;                 // it had ended in the previous pass
  };

  const RankNames& names() const { return mesh_.names_; }
  std::string where() const {
    return fmt::format("rank {}/{}, host {}", names().of(rank_), names().world_size, base::host_name());
  }

  bool known(int other) const { return other == rank_ || partners_[other].address.has_value(); }
  bool complete(int other) const {
    return known(other) && partners_[other].handshake_sent && mesh_.peers_[other].segment != nullptr;
  }
  template <class Predicate>
  std::vector<int> ranks_where(Predicate&& matches) const {
    std::vector<int> ranks;
    for (int other = 0; other < world_size_; ++other) {
      if (matches(other)) ranks.push_back(other);
    }
    return ranks;
  }
  std::vector<int> unfinished() const {
    return ranks_where([&](int other) { return !complete(other); });
  }
  std::vector<int> unknown() const {
    return ranks_where([&](int other) { return !known(other); });
  }

  // Stops after `misses` ranks without an address, and continues with the other ranks in the next pass.
  void read_addresses(int misses) {
    const auto ranks = unknown();
    for (size_t i = 0; i < ranks.size() && misses > 0; ++i) {
      if (!read_address(ranks[next_read_ % ranks.size()])) --misses;
      ++next_read_;
    }
  }

  bool read_address(int other) {
    if (known(other)) return true;
    const auto& mine = mesh_.peers_[rank_].facts;
    auto address = find_address(*mesh_.store_, names().of(other), mine);
    if (!address) return false;
    pause_ = 1ms;
    check_address(other, *address);
    Peer& peer = mesh_.peers_[other];
    peer.facts = address->facts;
    if (peer.facts.pid_namespace == mine.pid_namespace && peer.facts.pid != mine.pid) {
      peer.process = base::Fd(static_cast<int>(::syscall(SYS_pidfd_open, peer.facts.pid, 0)));
      partners_[other].ended_before_connecting = !peer.process && errno == ESRCH;
    }
    partners_[other].address = std::move(address);
    return true;
  }

  void check_address(int other, const PeerAddress& address) const {
    const auto& mine = mesh_.peers_[rank_].facts;
    const auto& theirs = address.facts;
    if (theirs.rank != names().of(other) || theirs.world_size != mine.world_size) {
      throw MismatchError(base::compose(
          {.what = "the ranks of a group disagree about rank or world size",
           .evidence = fmt::format("{} of {} found {} of {} in the place of rank {}", mine.describe(),
                                   mine.world_size, theirs.describe(), theirs.world_size, names().of(other)),
           .hint = "give every process the same WORLD_SIZE and its own RANK"}));
    }
    if (theirs.machine != mine.machine) {
      throw UsageError(
          base::compose({.what = "shared memory can connect ranks on one machine only",
                         .evidence = fmt::format(
                             "{} and {} are on different machines, or in containers without a common network",
                             mine.describe(), theirs.describe()),
                         .hint = "use the backend gloo"}));
    }
    // In another pid namespace, the same user may have another uid. There, the socket's credentials decide.
    if (address.user != ::geteuid() && theirs.pid_namespace == mine.pid_namespace) {
      throw_other_user(other, address.user);
    }
  }

  [[noreturn]] void throw_other_user(int other, uid_t user) const {
    throw UsageError(base::compose({.what = "ranks of different users cannot share memory",
                                    .where = where(),
                                    .evidence = fmt::format("rank {} runs as user {}, this one as user {}",
                                                            names().of(other), user, ::geteuid()),
                                    .hint = "start all ranks as the same user, or use the backend gloo"}));
  }

  // Ranks that have published their address and are stopped. The others wait for them; for rank 0 in any
  // case, because it hosts the store.
  std::vector<int> stopped() const {
    return ranks_where([&](int other) {
      const auto& facts = mesh_.peers_[other].facts;
      // In another pid namespace, the pid is that of another process here.
      return partners_[other].address && facts.pid_namespace == mesh_.peers_[rank_].facts.pid_namespace &&
             rendezvous::is_stopped(facts.pid);
    });
  }
  std::vector<int> ended() {
    auto ranks = mesh_.ended_ranks();
    for (int other = 0; other < world_size_; ++other) {
      const bool new_one = std::find(ranks.begin(), ranks.end(), other) == ranks.end();
      if (partners_[other].ended_before_connecting && new_one) ranks.push_back(other);
    }
    return ranks;
  }
  std::string describe(const std::vector<int>& ranks) const {
    std::string text;
    for (const int rank : ranks) {
      text += fmt::format("{}{}", text.empty() ? "" : ", ", mesh_.peers_[rank].facts.describe());
    }
    return text;
  }

  [[noreturn]] void throw_lost(int other, const std::string& evidence) {
    // A rank that ended before it published its address is known to the store only, which then throws.
    read_addresses(world_size_);
    const auto moment = base::Deadline::in(kBetweenCloseAndEnd);
    const auto end = mesh_.describe_end(other, moment);
    // If that rank gave up waiting for a stopped rank, the stopped rank is the cause.
    if (const auto culprits = stopped(); !culprits.empty()) {
      throw TimeoutError(base::compose({.what = "not all ranks of the group connected",
                                        .where = where(),
                                        .evidence = fmt::format("stopped: {}; {} {}", describe(culprits),
                                                                mesh_.peers_[other].facts.describe(),
                                                                end.empty() ? "gave up" : end),
                                        .hint = "continue the stopped rank (kill -CONT) or end the job"}),
                         names().of(culprits));
    }
    // It may have given up because of another one; which of them was the first is not known.
    std::vector<int> lost{other};
    std::string others;
    for (const int rank : ended()) {
      const auto how = mesh_.describe_end(rank, moment);
      if (rank == other || how == kExitedNormally) continue;
      lost.push_back(rank);
      others += fmt::format("; {} has ended, too{}{}", mesh_.peers_[rank].facts.describe(),
                            how.empty() ? "" : ": ", how);
    }
    throw PeerLostError(
        base::compose({.what = fmt::format("{} was lost while the ranks were connecting",
                                           mesh_.peers_[other].facts.describe()),
                       .where = where(),
                       .evidence = (end.empty() ? evidence : end) + others,
                       .hint = lost.size() == 1
                                   ? "look at the output of that rank"
                                   : "look at the output of these ranks: one of them ended first"}),
        names().of(lost));
  }

  void connect_to_lower_ranks() {
    for (int other = 0; other < rank_; ++other) {
      if (!partners_[other].address) continue;
      if (!mesh_.peers_[other].socket) connect_to(other);
      if (mesh_.peers_[other].socket) send_handshake_to(other);
    }
  }

  void connect_to(int other) {
    auto socket = base::unix_socket(SOCK_SEQPACKET);
    const int result = base::connect_unix(socket, partners_[other].address->socket_name);
    if (result == EAGAIN || result == EINTR) return;  // its backlog is full; the next pass tries again
    if (result == ECONNREFUSED) throw_lost(other, "it published its address, but does not listen any more");
    if (result != 0)
      base::throw_socket_error(fmt::format("cannot connect to the Unix socket of rank {}", names().of(other)),
                               result);
    if (const auto user = base::user_behind(socket); user != ::geteuid()) throw_other_user(other, user);
    mesh_.peers_[other].socket = std::move(socket);
  }

  void send_handshake_to(int other) {
    if (partners_[other].handshake_sent) return;
    Handshake handshake{.rank = rank_};
    const auto& token = other < rank_ ? partners_[other].address->token : mesh_.token_;
    std::copy_n(token.begin(), std::min(token.size(), kTokenBytes), handshake.token.begin());
    const int error = send_handshake(mesh_.peers_[other].socket, handshake, mesh_.peers_[rank_].segment->fd(),
                                     mesh_.peers_[rank_].memory->fd());
    // The kernel limits the number of descriptors in flight per user; the next pass tries again.
    if (error == EAGAIN || error == EINTR || error == ENOBUFS || error == ETOOMANYREFS) return;
    if (error == EPIPE || error == ECONNRESET) throw_lost(other, "it closed the connection");
    if (error != 0)
      base::throw_socket_error(
          fmt::format("cannot send the descriptors of shared memory to rank {}", names().of(other)), error);
    partners_[other].handshake_sent = true;
  }

  void accept_higher_ranks() {
    if (rank_ + 1 == world_size_) return;
    // Limited, so that a process that keeps connecting cannot keep this rank from checking the deadline.
    for (int accepted = 0; accepted < world_size_ + kExtraConnections; ++accepted) {
      base::Fd socket(::accept4(mesh_.listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket && (errno == EINTR || errno == ECONNABORTED)) continue;
      if (!socket && errno == EAGAIN) break;
      if (!socket) base::throw_socket_error("cannot accept a connection from a Unix socket", errno);
      if (const auto user = base::user_behind(socket); user != ::geteuid()) {
        if (!std::exchange(warned_, true)) {
          base::log_warn("rejected a connection of user {} to the socket of rank {}", user,
                         names().of(rank_));
        }
      } else {
        pending_.push_back(std::move(socket));
      }
    }
    for (auto& socket : pending_) {
      auto received = receive_handshake(socket);
      if (received.what == Received::What::Nothing) continue;
      if (received.what == Received::What::Handshake && is_expected(received.handshake)) {
        add_peer(received.handshake.rank, std::move(socket), received);
      } else {
        socket.reset();
      }
    }
    std::erase_if(pending_, [](const base::Fd& socket) { return !socket; });
    for (int other = rank_ + 1; other < world_size_; ++other) {
      if (mesh_.peers_[other].socket) send_handshake_to(other);
    }
  }

  bool is_expected(const Handshake& handshake) const {
    return handshake.matches(mesh_.token_) && handshake.rank > rank_ && handshake.rank < world_size_ &&
           !mesh_.peers_[handshake.rank].socket;
  }

  void receive_answers() {
    for (int other = 0; other < rank_; ++other) {
      if (!partners_[other].handshake_sent || mesh_.peers_[other].segment != nullptr) continue;
      Peer& peer = mesh_.peers_[other];
      auto received = receive_handshake(peer.socket);
      if (received.what == Received::What::Nothing) continue;
      if (received.what == Received::What::Closed) throw_lost(other, "it closed the connection");
      if (received.what == Received::What::Malformed || received.handshake.rank != other ||
          !received.handshake.matches(partners_[other].address->token)) {
        throw MismatchError(base::compose(
            {.what = fmt::format("{} sent an invalid handshake", peer.facts.describe()), .where = where()}));
      }
      add_peer(other, std::move(peer.socket), received);
    }
  }

  void add_peer(int other, base::Fd socket, Received& received) {
    if (!received.segment || !received.memory)
      base::throw_socket_error(fmt::format("cannot receive the shared memory of rank {}", names().of(other)),
                               EMFILE);
    Peer& peer = mesh_.peers_[other];
    peer.socket = std::move(socket);
    peer.segment = Segment::attach(std::move(received.segment));
    peer.memory = Segment::attach(std::move(received.memory));
    read_address(other);  // it published its address before it connected
  }

  // A rank may end as soon as it has connected to all others; what it has sent is still in the sockets. So a
  // rank is reported as lost only if it had already ended in the previous pass.
  void look_for_ended_ranks() {
    for (const int other : ended()) {
      if (complete(other) && unknown().empty()) continue;
      if (!partners_[other].end_seen) {
        partners_[other].end_seen = skip_sleep_ = true;
        continue;
      }
      // If it ended after all ranks had connected, the addresses of all ranks are in the store.
      if (complete(other)) read_addresses(world_size_);
      const auto missing = unknown();
      if (complete(other) && missing.empty()) continue;
      std::string evidence = "its process ended or it gave up";
      if (!missing.empty()) {
        evidence += fmt::format("; rank {} had not published its address by then",
                                base::describe_ranks(names().of(missing)));
      }
      throw_lost(other, evidence);
    }
  }

  [[noreturn]] void throw_timeout() {
    read_addresses(world_size_);
    std::string unconnected;
    for (const int other : unfinished()) {
      if (!known(other)) continue;
      unconnected += fmt::format("; {} published its address, but is not connected",
                                 mesh_.peers_[other].facts.describe());
    }
    const auto culprits = stopped();
    throw TimeoutError(
        base::compose(
            {.what = fmt::format("not all ranks of the group connected within {:.1f} s",
                                 static_cast<double>(deadline_.budget().count()) / 1000.0),
             .where = where(),
             .evidence = culprits.empty()
                             ? fmt::format("missing: rank {}{}",
                                           base::describe_ranks(names().of(unfinished())), unconnected)
                             : fmt::format("stopped: {}", describe(culprits)),
             .hint = culprits.empty()
                         ? "look at the output of the missing ranks; a slow start needs a longer timeout"
                         : "continue the stopped rank (kill -CONT) or end the job"}),
        names().of(culprits.empty() ? unfinished() : culprits));
  }

  void sleep() {
    if (std::exchange(skip_sleep_, false)) return;
    bool must_retry = false;  // something must be tried again that poll() does not report
    std::vector<pollfd> polled;
    for (const int other : unfinished()) {
      const Peer& peer = mesh_.peers_[other];
      if (!known(other) || (other < rank_ && !partners_[other].handshake_sent) ||
          (other > rank_ && peer.segment != nullptr)) {
        must_retry = true;
      }
      if (other < rank_ && partners_[other].handshake_sent) polled.push_back({peer.socket.get(), POLLIN, 0});
      polled.push_back({peer.process.get(), POLLIN, 0});
    }
    for (const auto& socket : pending_) polled.push_back({socket.get(), POLLIN, 0});
    if (rank_ + 1 < world_size_) polled.push_back({mesh_.listener_.get(), POLLIN, 0});
    ::poll(polled.data(), polled.size(), deadline_.poll_timeout(must_retry ? pause_ : 20ms));
    pause_ = std::min(pause_ * 2, std::chrono::milliseconds(5));
  }

  Mesh& mesh_;
  const int rank_;
  const int world_size_;
  const base::Deadline deadline_;
  const std::atomic<bool>& cancelled_;
  std::vector<Partner> partners_;
  std::vector<base::Fd> pending_;  // accepted sockets without a handshake so far
  size_t next_read_ = 0;
  bool skip_sleep_ = false;
  bool warned_ = false;  // about a connection of another user; only once, as there may be many
  std::chrono::milliseconds pause_{1};
};

Mesh::Mesh(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, std::shared_ptr<Segment> segment,
           std::shared_ptr<Segment> memory, std::optional<RankNames> names)
    : store_(std::move(store)),
      rank_(rank),
      names_(names.value_or(RankNames(world_size))),
      token_(base::make_nonce()),
      peers_(world_size) {
  // Before the socket uses a descriptor: without one, the machine could not be identified.
  peers_[rank].facts = rendezvous::facts_of_this_process(names_.of(rank), names_.world_size);
  peers_[rank].segment = std::move(segment);
  peers_[rank].memory = std::move(memory);
  const auto name = "lockstep-" + base::make_nonce();
  listener_ = base::unix_socket(SOCK_SEQPACKET);
  if (const int error = base::listen_unix(listener_, name, world_size + kExtraConnections); error != 0) {
    base::throw_socket_error("cannot listen on a Unix socket", error);
  }
  publish_address(*store_,
                  {.facts = peers_[rank].facts, .socket_name = name, .token = token_, .user = ::geteuid()});
}

// In a forked child, a store of LibTorch's must not be destroyed (rendezvous/foreign_store.h).
Mesh::~Mesh() {
  if (store_ && peers_[rank_].segment->inherited()) store_.release();
}

void Mesh::connect(base::Deadline deadline, const std::atomic<bool>& cancelled) {
  if (!listener_) throw UsageError("a mesh can be connected only once");
  const auto close = [&] {
    listener_.reset();
    store_.reset();
  };
  try {
    Connector(*this, deadline, cancelled).run();
  } catch (...) {
    close();
    for (int other = 0; other < static_cast<int>(peers_.size()); ++other) {
      if (other != rank_) peers_[other] = {};
    }
    throw;
  }
  close();
}

std::vector<int> Mesh::ended_ranks() {
  std::vector<pollfd> polled;
  polled.reserve(2 * peers_.size());
  for (const auto& peer : peers_) {
    polled.push_back({peer.socket.get(), POLLRDHUP, 0});
    polled.push_back({peer.process.get(), POLLIN, 0});
  }
  std::vector<int> ranks;
  if (::poll(polled.data(), polled.size(), 0) <= 0) return ranks;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (polled[2 * i].revents != 0 || polled[2 * i + 1].revents != 0) ranks.push_back(static_cast<int>(i));
  }
  return ranks;
}

std::string Mesh::describe_end(int rank, base::Deadline until) const {
  const Peer& peer = peers_[rank];
  return describe_peer_end(peer.process, peer.facts.pid, until);
}

}  // namespace lockstep::shm
