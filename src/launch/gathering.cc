#include "launch/gathering.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <lockstep/error.h>

#include "base/address.h"
#include "base/error_text.h"
#include "base/host.h"
#include "launch/program.h"

namespace lockstep::launch {

namespace {

using namespace std::chrono_literals;
using base::compose;
using base::Deadline;

// Warnings about members are limited, because without a token anyone can cause them.
constexpr size_t kMostMemberWarnings = 20;
// For the members to receive the reason why the job does not start.
constexpr auto kRefuseAllTime = 1s;

class Gathering {
 public:
  Gathering(const JoinRequest& request, base::Fd listener, const Warn& warn)
      : request_(request),
        warn_(warn),
        lobby_(std::move(listener), request.port, request.token, warn),
        members_(static_cast<size_t>(request.nnodes)),
        deadline_(Deadline::in(request.join_timeout())) {
    members_[0].hello = Hello{.run_id = request.run_id,
                              .nnodes = request.nnodes,
                              .node_rank = 0,
                              .nproc = request.nproc,
                              .grace_ms = request.grace.count(),
                              .host = base::host_name(),
                              .problem = request.problem,
                              .problem_status = request.problem_status};
    if (request.token.empty() && request.problem.empty()) {
      warn(compose(
          {.what =
               fmt::format("this job has no token: anyone who can reach port {} can join it", request.port),
           .hint = "make one with: (umask 077; openssl rand -hex 32 > job.token), copy the file to all "
                   "nodes, and start each of them with --token-file job.token"}));
    }
  }

  Membership run() {
    while (!complete()) {
      if (deadline_.expired()) give_up();
      wait();
      for (auto& caller : lobby_.serve()) admit(std::move(caller));
      check_members();
    }
    refuse_all_if_there_is_a_problem();
    return welcome_all();
  }

 private:
  struct Member {
    std::optional<Hello> hello;
    std::unique_ptr<Connection> connection;  // null for node 0 itself
  };

  bool complete() const {
    return std::all_of(members_.begin(), members_.end(),
                       [](const auto& member) { return member.hello.has_value(); });
  }

  void wait() {
    std::vector<pollfd> waiting;
    lobby_.add_to(waiting);
    for (const auto& member : members_) {
      if (member.connection) waiting.push_back({member.connection->fd(), POLLIN, 0});
    }
    ::poll(waiting.data(), waiting.size(), deadline_.poll_timeout(lobby_.longest_wait()));
  }

  // A member that disconnects before the job starts may join again. A member that sends anything before the
  // start is dropped, so that its lines do not accumulate here.
  void check_members() {
    for (size_t rank = 1; rank < members_.size(); ++rank) {
      auto& member = members_[rank];
      if (!member.connection) continue;
      member.connection->receive();
      const bool sent_line = member.connection->next_line().has_value();
      if (member.connection->open() && !sent_line) continue;
      warn_limited(fmt::format("node {} ({}) {} before the job started", rank, member.hello->host,
                               sent_line ? "sent an unexpected line and was dropped" : "disconnected"));
      member = {};
    }
  }

  void admit(Caller caller) {
    const auto& hello = caller.hello;
    const auto refuse = [&](const std::string& why, const std::string& hint) {
      const auto text = fmt::format("{} was refused: {}", hello.host.empty() ? "a node" : hello.host, why);
      if (refusals_.size() < kMostMemberWarnings) refusals_.push_back(text);
      warn_limited(text);
      lobby_.refuse(std::move(caller.connection), why, hint);
    };
    if (hello.run_id != request_.run_id) {
      return refuse(
          fmt::format("it belongs to job \"{}\", this is job \"{}\"", hello.run_id, request_.run_id),
          "give all nodes the same --rdzv-id, and each job its own port");
    }
    if (hello.nnodes != request_.nnodes) {
      return refuse(fmt::format("it has --nnodes {}, node 0 has --nnodes {}", hello.nnodes, request_.nnodes),
                    "give all nodes the same --nnodes");
    }
    const auto rank = rank_for(hello);
    if (!rank) {
      return refuse(hello.node_rank ? fmt::format("node rank {} is taken", *hello.node_rank)
                                    : "all nodes have joined already",
                    "give each node its own --node-rank from 0 to nnodes - 1");
    }
    caller.connection->send(encode(Ack{caller.proof}));
    members_[*rank] = {hello, std::move(caller.connection)};
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

  void warn_limited(const std::string& text) {
    if (++warnings_ <= kMostMemberWarnings) warn_(text);
  }

  void refuse_all(const Refused& refused) {
    lobby_.close();
    std::vector<std::unique_ptr<Connection>> connections;
    for (auto& member : members_) {
      if (member.connection) member.connection->send(encode(refused));
      connections.push_back(std::move(member.connection));
    }
    close_all_gracefully(connections, Deadline::in(kRefuseAllTime));
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
         .where = "node 0 at " + base::host_port(request_.address, request_.port),
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
    membership.welcome.node_timeout_ms = request_.node_timeout.count();
    for (const auto& member : members_) {
      membership.longest_grace =
          std::max(membership.longest_grace, std::chrono::milliseconds(member.hello->grace_ms));
      membership.welcome.nprocs.push_back(member.hello->nproc);
      membership.welcome.hosts.push_back(member.hello->host);
    }
    // Free the port for rank 0's store before the other nodes start their workers.
    lobby_.close();
    membership.reservation = std::make_unique<base::PortReservation>(base::Reach::Everyone, request_.port);
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
  Lobby lobby_;
  std::vector<Member> members_;
  std::vector<std::string> refusals_;
  size_t warnings_ = 0;
  Deadline deadline_;
};

}  // namespace

Membership gather(const JoinRequest& request, base::Fd listener, const Warn& warn) {
  return Gathering(request, std::move(listener), warn).run();
}

}  // namespace lockstep::launch
