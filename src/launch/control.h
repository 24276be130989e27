// What the agents of a job's nodes say to each other: one JSON object per line over TCP. Node 0's agent
// leads.
//
//   challenge  leader -> follower   prove that you know the job's token
//   hello      follower -> leader   my proof, and who I am              answered with ack or refused
//   ack        leader -> follower   you are in, and here is my proof; wait for the others
//   welcome    leader -> follower   all are here: ranks and port
//   refused    leader -> follower   you are not part of this job, or the job cannot start
//   event      follower -> leader   what happened on my node
//   order      leader -> follower   what all nodes do now
//   alive      both ways            nothing happened, but I am here
//
// A proof answers the other side's nonce (base::Token). Nothing is encrypted.
//
// Text from the network is data: decoding gives nullopt for whatever is not exactly as expected, and what it
// gives may be shown on a terminal (shown.h).
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
// Shorter, an agent that is held up for a moment on a busy machine would be taken for a lost one.
constexpr int64_t kLeastNodeTimeoutMs = 1000;

// The roles of the two sides in base::Token's proofs.
constexpr std::string_view kLeader = "agent leader";
constexpr std::string_view kFollower = "agent follower";

struct Challenge {
  int version = kProtocolVersion;
  std::string nonce;
  bool has_token = false;  // the job has one

  bool operator==(const Challenge&) const = default;
};

struct Hello {
  int version = kProtocolVersion;
  std::string nonce;
  std::string proof;
  bool has_token = false;  // this node was given one
  std::string run_id;
  int nnodes = 1;
  std::optional<int> node_rank;  // none: in order of arrival
  int nproc = 1;
  int64_t grace_ms = 0;  // that its workers have to end
  std::string host;
  std::string problem;  // why this node cannot take part although it is here; empty when it can
  int problem_status = 1;

  bool operator==(const Hello&) const = default;
};

struct Ack {
  std::string proof;

  bool operator==(const Ack&) const = default;
};

struct Welcome {
  int node_rank = 0;
  std::vector<int> nprocs;         // of each node, in order of node rank
  std::vector<std::string> hosts;  // likewise
  int max_restarts = 0;
  int64_t node_timeout_ms = 0;  // an agent that is silent for so long is lost

  bool operator==(const Welcome&) const = default;
};

struct Refused {
  std::string message;
  int status = 1;  // for the refused agent to exit with

  bool operator==(const Refused&) const = default;
};

struct Event {
  // Left: a worker ended with status 0. Finished: all of the node have.
  enum class Kind { Failed, Left, Finished, Stopped, Interrupted };
  Kind kind = Kind::Finished;
  int attempt = 0;
  std::optional<RankEnd> failure;  // Failed
  int rank = 0;                    // Left
  int64_t pid = 0;                 // Left
  int signal = 0;                  // Interrupted: one that asks to stop, or SIGKILL

  bool operator==(const Event&) const = default;
};

struct Order {
  enum class Kind { Start, Stop, End };
  Kind kind = Kind::Start;
  int attempt = 0;
  int signal = 0;                  // Stop: what the workers get, as above
  std::optional<RankEnd> failure;  // Stop: because of it
  bool restart = false;            // Stop: all start again afterwards
  std::string reason;              // in words, when it is not a failure
  int status = 0;                  // End

  bool operator==(const Order&) const = default;
};

// Without the newline. Text that is not UTF-8 is made so.
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
