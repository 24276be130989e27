// The messages between the agents of a job: one JSON object per line over TCP. Node 0's agent is the leader.
//
//   challenge  leader -> follower   asks for a proof that the follower knows the job's token
//   hello      follower -> leader   the follower's proof and properties; answered with ack or refused
//   ack        leader -> follower   the node is admitted, with the leader's proof; it waits for the other
//   nodes welcome    leader -> follower   all nodes have joined: ranks and hosts refused    leader ->
//   follower   the node does not belong to the job, or the job cannot start event      follower -> leader
//   what happened on the follower's node order      leader -> follower   what all nodes have to do alive both
//   ways            keepalive
//
// A proof answers the other side's nonce (base::Token). Nothing is encrypted.
//
// Text from the network is untrusted: decoding returns nullopt for every line that is not exactly as
// expected, and decoded text is safe to show on a terminal (shown.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/verdict.h"

namespace lockstep::launch {

constexpr int kProtocolVersion = 2;
constexpr int kMostNodes = 4096;
constexpr int kMostWorkersPerNode = 4096;
// With a shorter timeout, an agent that a busy machine delays for a moment would count as lost.
constexpr int64_t kLeastNodeTimeoutMs = 1000;

// The roles in base::Token's proofs.
constexpr std::string_view kLeader = "agent leader";
constexpr std::string_view kFollower = "agent follower";

struct Challenge {
  int version = kProtocolVersion;
  std::string nonce;
  bool has_token = false;  // whether the job has a token

  bool operator==(const Challenge&) const = default;
};

struct Hello {
  int version = kProtocolVersion;
  std::string nonce;
  std::string proof;
  bool has_token = false;  // whether this node has a token
  std::string run_id;
  int nnodes = 1;
  std::optional<int> node_rank;  // nullopt: assigned in order of arrival
  int nproc = 1;
  int64_t grace_ms = 0;  // grace period of its workers
  std::string host;
  std::string problem;  // why this node cannot run its part of the job; empty if it can
  int problem_status = 1;

  bool operator==(const Hello&) const = default;
};

struct Ack {
  std::string proof;

  bool operator==(const Ack&) const = default;
};

struct Welcome {
  int node_rank = 0;
  std::vector<int> nprocs;         // by node rank
  std::vector<std::string> hosts;  // by node rank
  int max_restarts = 0;
  int64_t node_timeout_ms = 0;  // an agent that is silent for this long is lost

  bool operator==(const Welcome&) const = default;
};

struct Refused {
  std::string message;
  int status = 1;  // exit status of the refused agent

  bool operator==(const Refused&) const = default;
};

struct Event {
  // Left: a worker ended with status 0. Finished: all workers of the node have ended. Stopped: they have
  // ended after an order to stop. Interrupted: the user sent a signal.
  enum class Kind { Failed, Left, Finished, Stopped, Interrupted };
  Kind kind = Kind::Finished;
  int attempt = 0;
  std::optional<RankEnd> failure;  // Failed
  int rank = 0;                    // Left
  int64_t pid = 0;                 // Left
  int signal = 0;                  // Interrupted: a stop signal or SIGKILL

  bool operator==(const Event&) const = default;
};

struct Order {
  enum class Kind { Start, Stop, End };
  Kind kind = Kind::Start;
  int attempt = 0;
  int signal = 0;                  // Stop: for the workers; a stop signal or SIGKILL
  std::optional<RankEnd> failure;  // Stop: the reason, if a rank failed
  bool restart = false;            // Stop: whether all workers are started again
  std::string reason;              // Stop, End: the reason, if it is not a failure
  int status = 0;                  // End

  bool operator==(const Order&) const = default;
};

// Without the newline. Bytes that are not UTF-8 are replaced.
std::string encode(const Challenge& challenge);
std::string encode(const Hello& hello);
std::string encode(const Ack& ack);
std::string encode(const Welcome& welcome);
std::string encode(const Refused& refused);
std::string encode(const Event& event);
std::string encode(const Order& order);
std::string encode_alive();

std::optional<Challenge> decode_challenge(std::string_view line);
std::optional<Hello> decode_hello(std::string_view line);
std::optional<Ack> decode_ack(std::string_view line);
std::optional<Welcome> decode_welcome(std::string_view line);
std::optional<Refused> decode_refused(std::string_view line);
std::optional<Event> decode_event(std::string_view line);
std::optional<Order> decode_order(std::string_view line);
bool decode_alive(std::string_view line);

}  // namespace lockstep::launch
