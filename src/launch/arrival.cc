#include "launch/arrival.h"

#include <algorithm>
#include <fmt/format.h>
#include <thread>

#include <lockstep/error.h>

#include "base/address.h"
#include "base/error_text.h"
#include "base/host.h"
#include "base/net.h"
#include "launch/program.h"

namespace lockstep::launch {

namespace {

using namespace std::chrono_literals;
using base::compose;
using base::Deadline;

// For each message of the handshake.
constexpr auto kAnswerTime = 10s;

std::string own_name(const JoinRequest& request) {
  return request.node_rank ? fmt::format("node {}", *request.node_rank) : "this node";
}

class Arrival {
 public:
  explicit Arrival(const JoinRequest& request)
      : request_(request), deadline_(Deadline::in(request.join_timeout())) {}

  Membership run() {
    std::string why;
    while (auto connection = connect(why)) {
      if (auto membership = introduce(std::move(connection), why)) return std::move(*membership);
      if (deadline_.expired()) break;
      std::this_thread::sleep_for(200ms);
    }
    throw TimeoutError(
        compose({.what = fmt::format("{} found no agent of this job at {} within {:.1f} s",
                                     own_name(request_), base::host_port(request_.address, request_.port),
                                     deadline_.budget().count() / 1000.0),
                 .evidence = why,
                 .hint = "check that node 0 is running and that no other program uses its port"}));
  }

 private:
  std::unique_ptr<Connection> connect(std::string& why) {
    if (!why.empty() && deadline_.expired()) return nullptr;
    return std::make_unique<Connection>(base::connect_to(request_.address, request_.port, deadline_));
  }

  // The handshake. Returns nullopt, with the reason in `why`, if the peer is not node 0 of this job or has
  // closed the connection.
  std::optional<Membership> introduce(std::unique_ptr<Connection> connection, std::string& why) {
    const auto soon = [this] {
      return Deadline::in(std::min<std::chrono::milliseconds>(kAnswerTime, deadline_.remaining() + 1s));
    };
    const auto challenge_line = connection->wait_for_line(soon());
    const auto challenge = challenge_line ? decode_challenge(*challenge_line) : std::nullopt;
    if (!challenge) {
      why = challenge_line       ? "the program that listens there is not a lockstep agent"
            : connection->open() ? "the program that listens there does not answer"
                                 : "the connection was closed before an answer arrived";
      return std::nullopt;
    }
    Hello hello = own_hello();
    hello.proof = request_.token.prove(kFollower, challenge->nonce, hello.nonce);
    connection->send(encode(hello));
    const auto answer = connection->wait_for_line(soon());
    if (!answer) {
      why = connection->open() ? "node 0 does not answer"
                               : "the connection was closed before an answer arrived";
      return std::nullopt;
    }
    throw_if_refused(*answer);
    const auto ack = decode_ack(*answer);
    // The port may belong to another program, for example of another user.
    if (!ack || !request_.token.proves(ack->proof, kLeader, hello.nonce, challenge->nonce)) {
      why = "the program that listens there does not know this job's token";
      return std::nullopt;
    }
    connection->trust();
    // Wait longer than node 0, which may have started later: its message names the missing nodes.
    const auto welcome_line = connection->wait_for_line(Deadline::in(request_.timeout + 5s));
    if (!welcome_line) {
      why = connection->open() ? "node 0 does not start the job"
                               : "node 0 closed the connection before the job started";
      return std::nullopt;
    }
    throw_if_refused(*welcome_line);
    const auto welcome = decode_welcome(*welcome_line);
    if (!welcome || welcome->node_rank == 0 ||
        (request_.node_rank && *request_.node_rank != welcome->node_rank) ||
        welcome->nprocs[static_cast<size_t>(welcome->node_rank)] != request_.nproc) {
      why = "node 0 sent an invalid welcome";
      return std::nullopt;
    }
    Membership membership;
    membership.welcome = *welcome;
    membership.master_addr = request_.address;
    membership.master_port = request_.port;
    membership.connections.push_back(std::move(connection));
    return membership;
  }

  Hello own_hello() const {
    return {.nonce = base::make_nonce(),
            .has_token = !request_.token.empty(),
            .run_id = request_.run_id,
            .nnodes = request_.nnodes,
            .node_rank = request_.node_rank,
            .nproc = request_.nproc,
            .grace_ms = request_.grace.count(),
            .host = base::host_name(),
            .problem = request_.problem,
            .problem_status = request_.problem_status};
  }

  static void throw_if_refused(const std::string& line) {
    if (const auto refused = decode_refused(line)) throw CannotStart(refused->status, refused->message);
  }

  const JoinRequest& request_;
  Deadline deadline_;
};

}  // namespace

Membership arrive(const JoinRequest& request) { return Arrival(request).run(); }

}  // namespace lockstep::launch
