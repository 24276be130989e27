#include "launch/membership.h"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <numeric>
#include <poll.h>
#include <sys/socket.h>
#include <thread>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/host.h"
#include "base/net.h"
#include "launch/program.h"

namespace lockstep::launch {

namespace {

using namespace std::chrono_literals;
using base::compose;
using base::Deadline;
using base::Reach;

// A caller that has not introduced itself by then is not one of ours.
constexpr auto kHelloTime = 10s;
constexpr size_t kMostStrangers = 256;
// A node with a problem tries this long to tell the others.
constexpr auto kProblemTime = 5s;

std::string own_name(const JoinRequest& request) {
  return request.node_rank ? fmt::format("node {}", *request.node_rank) : "this node";
}

// Node 0's side: collects one hello from each of the other nodes.
class Gathering {
 public:
  Gathering(const JoinRequest& request, base::Fd listener, const Warn& warn)
      : request_(request),
        warn_(warn),
        listener_(std::move(listener)),
        members_(static_cast<size_t>(request.nnodes)),
        deadline_(Deadline::in(request.problem.empty()
                                   ? request.timeout
                                   : std::min<std::chrono::milliseconds>(request.timeout, kProblemTime))) {
    members_[0].hello = Hello{.run_id = request.run_id,
                              .nnodes = request.nnodes,
                              .node_rank = 0,
                              .nproc = request.nproc,
                              .host = base::host_name(),
                              .problem = request.problem,
                              .problem_status = request.problem_status};
  }

  Membership run() {
    while (!complete()) {
      if (deadline_.expired()) give_up();
      wait();
      accept_all();
      hear_strangers();
      hear_members();
    }
    refuse_all_if_there_is_a_problem();
    return welcome_all();
  }

 private:
  struct Member {
    std::optional<Hello> hello;
    std::unique_ptr<Connection> connection;  // null for ourselves
  };
  struct Stranger {
    std::unique_ptr<Connection> connection;
    Deadline until;
  };

  bool complete() const {
    return std::all_of(members_.begin(), members_.end(),
                       [](const auto& member) { return member.hello.has_value(); });
  }

  void wait() {
    std::vector<pollfd> waiting{{listener_.get(), POLLIN, 0}};
    for (const auto& stranger : strangers_) waiting.push_back({stranger.connection->fd(), POLLIN, 0});
    for (const auto& member : members_) {
      if (member.connection) waiting.push_back({member.connection->fd(), POLLIN, 0});
    }
    ::poll(waiting.data(), waiting.size(), deadline_.poll_timeout(500ms));
  }

  void accept_all() {
    for (size_t turn = 0; turn < kMostStrangers; ++turn) {
      pollfd ready{listener_.get(), POLLIN, 0};
      if (::poll(&ready, 1, 0) <= 0) return;
      base::Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket) return;
      if (strangers_.size() >= kMostStrangers) continue;  // closed again at once
      strangers_.push_back({std::make_unique<Connection>(std::move(socket)), Deadline::in(kHelloTime)});
    }
  }

  void hear_strangers() {
    auto strangers = std::move(strangers_);
    strangers_.clear();
    for (auto& stranger : strangers) {
      stranger.connection->receive();
      if (const auto line = stranger.connection->next_line()) {
        admit(*line, std::move(stranger.connection));
      } else if (!stranger.connection->open()) {
        warn_(
            fmt::format("a connection to port {} closed without introducing itself{}", request_.port,
                        stranger.connection->trouble().empty() ? "" : ": " + stranger.connection->trouble()));
      } else if (stranger.until.expired()) {
        warn_(fmt::format("a connection to port {} said nothing for {} s and was dropped", request_.port,
                          kHelloTime.count()));
      } else {
        strangers_.push_back(std::move(stranger));
      }
    }
  }

  // A member that goes away before the job starts may come again.
  void hear_members() {
    for (size_t rank = 1; rank < members_.size(); ++rank) {
      auto& member = members_[rank];
      if (!member.connection) continue;
      member.connection->receive();
      if (member.connection->open()) continue;
      warn_(fmt::format("node {} ({}) went away before the job started", rank, member.hello->host));
      member = {};
    }
  }

  void admit(const std::string& line, std::unique_ptr<Connection> connection) {
    const auto hello = decode_hello(line);
    if (!hello) {
      warn_(
          fmt::format("a connection to port {} is not from a lockstep agent and was dropped", request_.port));
      return;
    }
    const auto refuse = [&](const std::string& why, const std::string& hint) {
      connection->send(
          encode(Refused{compose({.what = fmt::format("node 0 ({}) refused this node", base::host_name()),
                                  .evidence = why,
                                  .hint = hint}),
                         2}));
      connection->close_gracefully(Deadline::in(200ms));
      const auto text = fmt::format("{} was refused: {}", hello->host.empty() ? "a node" : hello->host, why);
      refusals_.push_back(text);
      warn_(text);
    };
    if (hello->version != kProtocolVersion) {
      return refuse(fmt::format("it speaks protocol {}, this one {}", hello->version, kProtocolVersion),
                    "install the same version of lockstep on all nodes");
    }
    if (hello->run_id != request_.run_id) {
      return refuse(
          fmt::format("it belongs to job \"{}\", this is job \"{}\"", hello->run_id, request_.run_id),
          "give all nodes the same --rdzv-id, and each job a port of its own");
    }
    if (hello->nnodes != request_.nnodes) {
      return refuse(
          fmt::format("it says --nnodes {}, node 0 says --nnodes {}", hello->nnodes, request_.nnodes),
          "give all nodes the same --nnodes");
    }
    const auto rank = rank_for(*hello);
    if (!rank) {
      return refuse(hello->node_rank ? fmt::format("node rank {} is taken", *hello->node_rank)
                                     : "all nodes have arrived already",
                    "give each node its own --node-rank from 0 to nnodes - 1");
    }
    connection->send(encode_ack());
    members_[*rank] = {hello, std::move(connection)};
  }

  std::optional<size_t> rank_for(const Hello& hello) const {
    if (hello.node_rank) {
      const auto rank = static_cast<size_t>(*hello.node_rank);
      if (rank >= members_.size() || members_[rank].hello) return std::nullopt;
      return rank;
    }
    for (size_t rank = 1; rank < members_.size(); ++rank) {
      if (!members_[rank].hello) return rank;
    }
    return std::nullopt;
  }

  void refuse_all(const Refused& refused) {
    for (auto& member : members_) {
      if (!member.connection) continue;
      member.connection->send(encode(refused));
      member.connection->close_gracefully(Deadline::in(1s));
    }
  }

  [[noreturn]] void give_up() {
    refuse_all_if_there_is_a_problem();
    std::vector<size_t> missing;
    std::string here;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      if (!members_[rank].hello) {
        missing.push_back(rank);
      } else {
        here += fmt::format("{}node {} on {}", here.empty() ? "" : ", ", rank, members_[rank].hello->host);
      }
    }
    std::string evidence = request_.node_rank
                               ? fmt::format("missing: node {}", fmt::join(missing, ", "))
                               : fmt::format("{} of {} nodes missing", missing.size(), members_.size());
    evidence += "; here: " + here;
    if (!refusals_.empty()) evidence += fmt::format("; {}", fmt::join(refusals_, "; "));
    const auto message = compose(
        {.what = fmt::format("not all nodes arrived within {:.1f} s", deadline_.budget().count() / 1000.0),
         .where = fmt::format("node 0 at {}:{}", request_.address, request_.port),
         .evidence = evidence,
         .hint = "start lockstep run on every node, and check that the missing ones reach this address; "
                 "--timeout SECONDS waits longer"});
    refuse_all({message, 1});
    throw TimeoutError(message);
  }

  void refuse_all_if_there_is_a_problem() {
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      const auto& hello = members_[rank].hello;
      if (!hello || hello->problem.empty()) continue;
      const auto message =
          fmt::format("node {} ({}) cannot take part: {}", rank, hello->host, hello->problem);
      const int status = hello->problem_status;
      refuse_all({message, status});
      throw CannotStart(status, message);
    }
  }

  Membership welcome_all() {
    Membership membership;
    membership.master_addr = request_.address;
    membership.master_port = request_.port;
    membership.welcome.max_restarts = request_.max_restarts;
    for (const auto& member : members_) {
      membership.welcome.nprocs.push_back(member.hello->nproc);
      membership.welcome.hosts.push_back(member.hello->host);
    }
    strangers_.clear();
    // From here the port belongs to rank 0's store. Only then may the others start their workers.
    listener_.reset();
    membership.reservation = std::make_unique<base::PortReservation>(Reach::Everyone, request_.port);
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      auto& connection = members_[rank].connection;
      if (connection) {
        membership.welcome.node_rank = static_cast<int>(rank);
        connection->send(encode(membership.welcome));
      }
      membership.connections.push_back(std::move(connection));
    }
    membership.welcome.node_rank = 0;
    return membership;
  }

  const JoinRequest& request_;
  const Warn& warn_;
  base::Fd listener_;
  std::vector<Member> members_;
  std::vector<Stranger> strangers_;
  std::vector<std::string> refusals_;
  Deadline deadline_;
};

// The other nodes' side.
class Arrival {
 public:
  Arrival(const JoinRequest& request)
      : request_(request),
        deadline_(Deadline::in(request.problem.empty()
                                   ? request.timeout
                                   : std::min<std::chrono::milliseconds>(request.timeout, kProblemTime))) {}

  Membership run() {
    std::string why;
    while (auto connection = reach(why)) {
      if (auto membership = introduce(std::move(connection), why)) return std::move(*membership);
      if (deadline_.expired()) break;
      std::this_thread::sleep_for(200ms);
    }
    throw TimeoutError(compose(
        {.what = fmt::format("{} found no agent of this job at {}:{} within {:.1f} s", own_name(request_),
                             request_.address, request_.port, deadline_.budget().count() / 1000.0),
         .evidence = why,
         .hint = "check that node 0 runs and that another program does not hold its port"}));
  }

 private:
  std::unique_ptr<Connection> reach(std::string& why) {
    if (!why.empty() && deadline_.expired()) return nullptr;
    return std::make_unique<Connection>(base::connect_to(request_.address, request_.port, deadline_));
  }

  // nullopt and the reason when this was not node 0 of a lockstep job, or it went away.
  std::optional<Membership> introduce(std::unique_ptr<Connection> connection, std::string& why) {
    connection->send(encode(Hello{.run_id = request_.run_id,
                                  .nnodes = request_.nnodes,
                                  .node_rank = request_.node_rank,
                                  .nproc = request_.nproc,
                                  .host = base::host_name(),
                                  .problem = request_.problem,
                                  .problem_status = request_.problem_status}));
    const auto answer = connection->wait_for_line(
        Deadline::in(std::min<std::chrono::milliseconds>(kHelloTime, deadline_.remaining() + 1s)));
    if (!answer) {
      why = connection->open() ? "whoever listens there does not answer"
                               : "the connection was closed before an answer came";
      return std::nullopt;
    }
    heed(*answer);
    if (!decode_ack(*answer)) {
      why = "whoever listens there is not a lockstep agent";
      return std::nullopt;
    }
    // Node 0 began to wait later than we did, perhaps, and knows better than we who is missing.
    const auto welcome_line = connection->wait_for_line(Deadline::in(request_.timeout + 5s));
    if (!welcome_line) {
      why = connection->open() ? "node 0 does not start the job" : "node 0 went away before the job started";
      return std::nullopt;
    }
    heed(*welcome_line);
    const auto welcome = decode_welcome(*welcome_line);
    if (!welcome || welcome->node_rank == 0 ||
        (request_.node_rank && *request_.node_rank != welcome->node_rank) ||
        welcome->nprocs[static_cast<size_t>(welcome->node_rank)] != request_.nproc) {
      why = "node 0 sent something that makes no sense";
      return std::nullopt;
    }
    Membership membership;
    membership.welcome = *welcome;
    membership.master_addr = request_.address;
    membership.master_port = request_.port;
    membership.connections.push_back(std::move(connection));
    return membership;
  }

  static void heed(const std::string& line) {
    if (const auto refused = decode_refused(line)) throw CannotStart(refused->status, refused->message);
  }

  const JoinRequest& request_;
  Deadline deadline_;
};

// Node 0's listening socket; empty when another agent of the job on this machine was faster.
base::Fd try_to_lead(const JoinRequest& request, const Warn& warn) {
  const bool here = base::is_this_machine(request.address);
  if (request.node_rank) {
    if (*request.node_rank != 0) return {};
    if (!here) {
      // It may be the name of a service in front of this machine.
      warn(fmt::format("this is node 0, but {} is not an address of this machine", request.address));
    }
    return base::listen_on(Reach::Everyone, request.port);
  }
  if (!here) return {};
  try {
    return base::listen_on(Reach::Everyone, request.port);
  } catch (const SystemError&) {
    return {};  // connecting will show who listens there
  }
}

}  // namespace

int Membership::first_rank() const {
  return std::accumulate(welcome.nprocs.begin(), welcome.nprocs.begin() + welcome.node_rank, 0);
}

int Membership::world_size() const {
  return std::accumulate(welcome.nprocs.begin(), welcome.nprocs.end(), 0);
}

Membership alone(int nproc, int max_restarts, uint16_t port) {
  Membership membership;
  membership.welcome = {
      .node_rank = 0, .nprocs = {nproc}, .hosts = {base::host_name()}, .max_restarts = max_restarts};
  membership.master_addr = "127.0.0.1";
  membership.reservation = std::make_unique<base::PortReservation>(Reach::ThisMachine, port);
  membership.master_port = membership.reservation->port();
  membership.connections.resize(1);
  return membership;
}

Membership join(const JoinRequest& request, const Warn& warn) {
  if (base::Fd listener = try_to_lead(request, warn))
    return Gathering(request, std::move(listener), warn).run();
  return Arrival(request).run();
}

}  // namespace lockstep::launch
