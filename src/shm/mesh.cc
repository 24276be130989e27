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

// How many ranks that are not there yet are asked for in one pass: the store serves all ranks.
constexpr int kVainLooks = 4;
constexpr int kStrangersAtOnce = 64;

std::string where_is(int rank, int world_size) {
  return fmt::format("rank {}/{}, host {}", rank, world_size, base::host_name());
}

}  // namespace

// One run of connect(). It never waits for one peer alone: it goes round, does whatever can be done now, and
// sleeps until something can change. A pair is complete for a rank when it has read the other's address,
// has the other's memfd, and has handed its own over.
class Mesh::Meeting {
 public:
  Meeting(Mesh& mesh, base::Deadline deadline, const std::atomic<bool>& cancelled)
      : mesh_(mesh),
        rank_(mesh.rank_),
        world_size_(static_cast<int>(mesh.peers_.size())),
        deadline_(deadline),
        cancelled_(cancelled),
        partners_(mesh.peers_.size()) {
    partners_[rank_].told = true;
  }

  void hold() {
    for (;;) {
      if (cancelled_.load()) {
        throw Error(base::compose(
            {.what = "connecting the ranks was given up", .where = where_is(rank_, world_size_)}));
      }
      look_for_addresses(kVainLooks);
      connect_to_lower_ranks();
      answer_callers();
      hear_answers();
      if (unfinished().empty()) return;
      // First: when all give up at one time, each should say what it waited for, not who was quicker.
      if (deadline_.expired()) give_up();
      find_losses();
      sleep();
    }
  }

 private:
  struct Partner {
    std::optional<PeerAddress> address;
    bool told = false;          // has our memfd
    bool ended_unseen = false;  // its process was gone when we read its address
    bool seen_ending = false;   // it was gone one pass ago
  };

  bool known(int other) const { return other == rank_ || partners_[other].address.has_value(); }
  bool complete(int other) const {
    return known(other) && partners_[other].told && mesh_.peers_[other].segment != nullptr;
  }
  template <class Holds>
  std::vector<int> ranks_where(Holds&& holds) const {
    std::vector<int> ranks;
    for (int other = 0; other < world_size_; ++other) {
      if (holds(other)) ranks.push_back(other);
    }
    return ranks;
  }
  std::vector<int> unfinished() const {
    return ranks_where([&](int other) { return !complete(other); });
  }
  std::vector<int> unknown() const {
    return ranks_where([&](int other) { return !known(other); });
  }

  // Gives up for this pass after as many ranks that are not there, and begins with others the next time.
  void look_for_addresses(int vain_looks) {
    const auto ranks = unknown();
    for (size_t i = 0; i < ranks.size() && vain_looks > 0; ++i) {
      if (!look_for(ranks[next_look_ % ranks.size()])) --vain_looks;
      ++next_look_;
    }
  }

  bool look_for(int other) {
    if (known(other)) return true;
    const auto& mine = mesh_.peers_[rank_].facts;
    auto address = find_address(*mesh_.store_, other, mine);
    if (!address) return false;
    pause_ = 1ms;
    check(other, *address);
    Peer& peer = mesh_.peers_[other];
    peer.facts = address->facts;
    if (peer.facts.pid_namespace == mine.pid_namespace && peer.facts.pid != mine.pid) {
      peer.process = base::Fd(static_cast<int>(::syscall(SYS_pidfd_open, peer.facts.pid, 0)));
      partners_[other].ended_unseen = !peer.process && errno == ESRCH;
    }
    partners_[other].address = std::move(address);
    return true;
  }

  void check(int other, const PeerAddress& address) const {
    const auto& mine = mesh_.peers_[rank_].facts;
    const auto& theirs = address.facts;
    if (theirs.rank != other || theirs.world_size != mine.world_size) {
      throw MismatchError(base::compose(
          {.what = "the ranks of a group do not agree who they are",
           .evidence = fmt::format("{} of {} found {} of {} in the place of rank {}", mine.describe(),
                                   mine.world_size, theirs.describe(), theirs.world_size, other),
           .hint = "give every process the same WORLD_SIZE and a RANK of its own"}));
    }
    if (theirs.machine != mine.machine) {
      throw UsageError(
          base::compose({.what = "shared memory connects the ranks of one machine only",
                         .evidence = fmt::format(
                             "{} and {} are on different machines, or in containers that share no network",
                             mine.describe(), theirs.describe()),
                         .hint = "use the backend gloo"}));
    }
    // In another pid namespace the same user may have another number. There the socket decides.
    if (address.user != ::geteuid() && theirs.pid_namespace == mine.pid_namespace) {
      refuse_user(other, address.user);
    }
  }

  [[noreturn]] void refuse_user(int other, uid_t user) const {
    throw UsageError(base::compose(
        {.what = "ranks of different users cannot share memory",
         .where = where_is(rank_, world_size_),
         .evidence = fmt::format("rank {} runs as user {}, this one as user {}", other, user, ::geteuid()),
         .hint = "start all ranks as one user, or use the backend gloo"}));
  }

  // Ranks that have introduced themselves and do not run. They hold everybody up, rank 0 even those who want
  // nothing of it: it hosts the store.
  std::vector<int> stopped() const {
    return ranks_where([&](int other) {
      return partners_[other].address && rendezvous::is_stopped(mesh_.peers_[other].facts.pid);
    });
  }
  std::string describe(const std::vector<int>& ranks) const {
    std::string text;
    for (const int rank : ranks) {
      text += fmt::format("{}{}", text.empty() ? "" : ", ", mesh_.peers_[rank].facts.describe());
    }
    return text;
  }

  [[noreturn]] void lose(int other, const std::string& evidence) const {
    const auto end = mesh_.how_ended(other);
    // A rank that gave up waiting for a stopped one is not what is wrong.
    if (const auto culprits = stopped(); !culprits.empty()) {
      throw TimeoutError(base::compose({.what = "not all ranks of the group connected",
                                        .where = where_is(rank_, world_size_),
                                        .evidence = fmt::format("stopped: {}; {} {}", describe(culprits),
                                                                mesh_.peers_[other].facts.describe(),
                                                                end.empty() ? "gave up" : end),
                                        .hint = "continue the stopped rank (kill -CONT) or end the job"}),
                         culprits);
    }
    throw PeerLostError(base::compose({.what = fmt::format("{} was lost while the ranks connected",
                                                           mesh_.peers_[other].facts.describe()),
                                       .where = where_is(rank_, world_size_),
                                       .evidence = end.empty() ? evidence : end,
                                       .hint = "look at the output of that rank"}),
                        {other});
  }

  void connect_to_lower_ranks() {
    for (int other = 0; other < rank_; ++other) {
      if (!partners_[other].address) continue;
      if (!mesh_.peers_[other].socket) reach(other);
      if (mesh_.peers_[other].socket) tell(other);
    }
  }

  void reach(int other) {
    auto socket = base::unix_socket(SOCK_SEQPACKET);
    const int result = base::connect_unix(socket, partners_[other].address->socket_name);
    if (result == EAGAIN || result == EINTR) return;  // too many at its door; the next pass tries again
    if (result == ECONNREFUSED) lose(other, "it published its address, but does not listen any more");
    if (result != 0)
      base::throw_socket_error(fmt::format("cannot connect to the Unix socket of rank {}", other), result);
    if (const auto user = base::user_behind(socket); user != ::geteuid()) refuse_user(other, user);
    mesh_.peers_[other].socket = std::move(socket);
  }

  void tell(int other) {
    if (partners_[other].told) return;
    Handshake handshake{.rank = rank_};
    const auto& token = other < rank_ ? partners_[other].address->token : mesh_.token_;
    std::copy_n(token.begin(), std::min(token.size(), kTokenLetters), handshake.token.begin());
    const int error = send_handshake(mesh_.peers_[other].socket, handshake, mesh_.peers_[rank_].segment->fd(),
                                     mesh_.peers_[rank_].memory->fd());
    // The kernel limits how many descriptors of a user may be on their way; they will arrive.
    if (error == EAGAIN || error == EINTR || error == ENOBUFS || error == ETOOMANYREFS) return;
    if (error == EPIPE || error == ECONNRESET) lose(other, "it closed the connection");
    if (error != 0)
      base::throw_socket_error(fmt::format("cannot hand shared memory over to rank {}", other), error);
    partners_[other].told = true;
  }

  void answer_callers() {
    if (rank_ + 1 == world_size_) return;
    // Not without end: whoever keeps knocking must not keep us from looking at the clock.
    for (int knocks = 0; knocks < world_size_ + kStrangersAtOnce; ++knocks) {
      base::Fd caller(::accept4(mesh_.listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!caller && (errno == EINTR || errno == ECONNABORTED)) continue;
      if (!caller && errno == EAGAIN) break;
      if (!caller) base::throw_socket_error("cannot accept a connection from a Unix socket", errno);
      if (const auto user = base::user_behind(caller); user != ::geteuid()) {
        if (!std::exchange(warned_, true)) {
          base::log_warn("turned away a process of user {} from the socket of rank {}", user, rank_);
        }
      } else {
        callers_.push_back(std::move(caller));
      }
    }
    for (auto& caller : callers_) {
      auto received = receive_handshake(caller);
      if (received.what == Received::What::Nothing) continue;
      if (received.what == Received::What::Handshake && is_expected(received.handshake)) {
        take_in(received.handshake.rank, std::move(caller), received);
      } else {
        caller.reset();
      }
    }
    std::erase_if(callers_, [](const base::Fd& caller) { return !caller; });
    for (int other = rank_ + 1; other < world_size_; ++other) {
      if (mesh_.peers_[other].socket) tell(other);
    }
  }

  bool is_expected(const Handshake& handshake) const {
    return handshake.proves(mesh_.token_) && handshake.rank > rank_ && handshake.rank < world_size_ &&
           !mesh_.peers_[handshake.rank].socket;
  }

  void hear_answers() {
    for (int other = 0; other < rank_; ++other) {
      if (!partners_[other].told || mesh_.peers_[other].segment != nullptr) continue;
      Peer& peer = mesh_.peers_[other];
      auto received = receive_handshake(peer.socket);
      if (received.what == Received::What::Nothing) continue;
      if (received.what == Received::What::End) lose(other, "it closed the connection");
      if (received.what == Received::What::Nonsense || received.handshake.rank != other ||
          !received.handshake.proves(partners_[other].address->token)) {
        throw MismatchError(
            base::compose({.what = fmt::format("{} did not answer as a rank does", peer.facts.describe()),
                           .where = where_is(rank_, world_size_)}));
      }
      take_in(other, std::move(peer.socket), received);
    }
  }

  void take_in(int other, base::Fd socket, Received& received) {
    if (!received.segment || !received.memory)
      base::throw_socket_error(fmt::format("cannot receive the shared memory of rank {}", other), EMFILE);
    Peer& peer = mesh_.peers_[other];
    peer.socket = std::move(socket);
    peer.segment = Segment::attach(std::move(received.segment));
    peer.memory = Segment::attach(std::move(received.memory));
    look_for(other);  // it published its address before it called
  }

  // A rank that has connected to everybody may end at once; what it left in the sockets still counts. So one
  // pass goes by between the first sign of an end and the verdict.
  void find_losses() {
    auto gone = mesh_.gone();
    for (int other = 0; other < world_size_; ++other) {
      if (partners_[other].ended_unseen) gone.push_back(other);
    }
    for (const int other : gone) {
      if (complete(other) && unknown().empty()) continue;
      if (!partners_[other].seen_ending) {
        partners_[other].seen_ending = hurry_ = true;
        continue;
      }
      // One that left after all had connected leaves nobody behind who was never heard of.
      if (complete(other)) look_for_addresses(world_size_);
      const auto missing = unknown();
      if (complete(other) && missing.empty()) continue;
      std::string evidence = "its process ended or it gave up";
      if (!missing.empty()) {
        evidence += fmt::format("; rank {} had not come by then", base::describe_ranks(missing));
      }
      lose(other, evidence);
    }
  }

  [[noreturn]] void give_up() {
    look_for_addresses(world_size_);
    std::string silent;
    for (const int other : unfinished()) {
      if (!known(other)) continue;
      silent += fmt::format("; {} published its address, but is not connected",
                            mesh_.peers_[other].facts.describe());
    }
    const auto culprits = stopped();
    throw TimeoutError(
        base::compose(
            {.what = fmt::format("not all ranks of the group connected within {:.1f} s",
                                 static_cast<double>(deadline_.budget().count()) / 1000.0),
             .where = where_is(rank_, world_size_),
             .evidence = culprits.empty()
                             ? fmt::format("missing: rank {}{}", base::describe_ranks(unfinished()), silent)
                             : fmt::format("stopped: {}", describe(culprits)),
             .hint = culprits.empty()
                         ? "look at the output of the missing ranks; a slow start needs a longer timeout"
                         : "continue the stopped rank (kill -CONT) or end the job"}),
        culprits.empty() ? unfinished() : culprits);
  }

  void sleep() {
    if (std::exchange(hurry_, false)) return;
    bool asking = false;  // whether something must be tried again that no descriptor tells of
    std::vector<pollfd> polled;
    for (const int other : unfinished()) {
      const Peer& peer = mesh_.peers_[other];
      if (!known(other) || (other < rank_ && !partners_[other].told) ||
          (other > rank_ && peer.segment != nullptr)) {
        asking = true;
      }
      if (other < rank_ && partners_[other].told) polled.push_back({peer.socket.get(), POLLIN, 0});
      polled.push_back({peer.process.get(), POLLIN, 0});
    }
    for (const auto& caller : callers_) polled.push_back({caller.get(), POLLIN, 0});
    if (rank_ + 1 < world_size_) polled.push_back({mesh_.listener_.get(), POLLIN, 0});
    ::poll(polled.data(), polled.size(), deadline_.poll_timeout(asking ? pause_ : 20ms));
    pause_ = std::min(pause_ * 2, std::chrono::milliseconds(5));
  }

  Mesh& mesh_;
  const int rank_;
  const int world_size_;
  const base::Deadline deadline_;
  const std::atomic<bool>& cancelled_;
  std::vector<Partner> partners_;
  std::vector<base::Fd> callers_;  // accepted, and silent so far
  size_t next_look_ = 0;
  bool hurry_ = false;
  bool warned_ = false;  // of strangers, who may be many
  std::chrono::milliseconds pause_{1};
};

Mesh::Mesh(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, std::shared_ptr<Segment> segment,
           std::shared_ptr<Segment> memory)
    : store_(std::move(store)), rank_(rank), token_(base::make_nonce()), peers_(world_size) {
  // Before the socket: where descriptors are short, this must not mistake the machine for another one.
  peers_[rank].facts = rendezvous::facts_of_this_process(rank, world_size);
  peers_[rank].segment = std::move(segment);
  peers_[rank].memory = std::move(memory);
  const auto name = "lockstep-" + base::make_nonce();
  listener_ = base::unix_socket(SOCK_SEQPACKET);
  if (const int error = base::listen_unix(listener_, name, world_size + kStrangersAtOnce); error != 0) {
    base::throw_socket_error("cannot listen on a Unix socket", error);
  }
  publish_address(*store_,
                  {.facts = peers_[rank].facts, .socket_name = name, .token = token_, .user = ::geteuid()});
}

Mesh::~Mesh() = default;

void Mesh::connect(base::Deadline deadline, const std::atomic<bool>& cancelled) {
  if (!listener_) throw UsageError("a mesh connects once");
  try {
    Meeting(*this, deadline, cancelled).hold();
  } catch (...) {
    listener_.reset();
    for (int other = 0; other < static_cast<int>(peers_.size()); ++other) {
      if (other != rank_) peers_[other] = {};
    }
    throw;
  }
  listener_.reset();
}

std::vector<int> Mesh::gone() {
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

std::string Mesh::how_ended(int rank) const {
  const Peer& peer = peers_[rank];
  return how_it_ended(peer.process, peer.facts.pid);
}

}  // namespace lockstep::shm
