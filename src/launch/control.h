// What the agents of a job's nodes say to each other: one JSON object per line over TCP. Node 0's agent
// leads.
//
//   hello    follower -> leader   who I am                          answered with ack or refused
//   ack      leader -> follower   you are in; wait for the others
//   welcome  leader -> follower   all are here: ranks and port
//   refused  leader -> follower   you are not part of this job, or the job cannot start
//   event    follower -> leader   what happened on my node
//   order    leader -> follower   what all nodes do now
//
// Text from the network is data: decoding gives nullopt for whatever is not exactly as expected.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/verdict.h"

namespace lockstep::launch {

constexpr int kProtocolVersion = 1;
constexpr int kMostNodes = 4096;
constexpr int kMostWorkersPerNode = 4096;

struct Hello {
  int version = kProtocolVersion;
  std::string run_id;
  int nnodes = 1;
  std::optional<int> node_rank;  // none: in order of arrival
  int nproc = 1;
  std::string host;
  std::string problem;  // why this node cannot take part although it is here; empty when it can
  int problem_status = 1;

  bool operator==(const Hello&) const = default;
};

struct Welcome {
  int node_rank = 0;
  std::vector<int> nprocs;         // of each node, in order of node rank
  std::vector<std::string> hosts;  // likewise
  int max_restarts = 0;

  bool operator==(const Welcome&) const = default;
};

struct Refused {
  std::string message;
  int status = 1;  // for the refused agent to exit with

  bool operator==(const Refused&) const = default;
};

struct Event {
  enum class Kind { Failed, Finished, Stopped, Interrupted };
  Kind kind = Kind::Finished;
  int attempt = 0;
  std::optional<Failure> failure;  // Failed
  int signal = 0;                  // Interrupted

  bool operator==(const Event&) const = default;
};

struct Order {
  enum class Kind { Start, Stop, End };
  Kind kind = Kind::Start;
  int attempt = 0;
  int signal = 0;                  // Stop: what the workers get
  std::optional<Failure> failure;  // Stop: because of it
  bool restart = false;            // Stop: all start again afterwards
  std::string reason;              // Stop: in words, when it is not a failure
  int status = 0;                  // End

  bool operator==(const Order&) const = default;
};

// Without the newline. Text that is not UTF-8 is made so.
std::string encode(const Hello& hello);
std::string encode_ack();
std::string encode(const Welcome& welcome);
std::string encode(const Refused& refused);
std::string encode(const Event& event);
std::string encode(const Order& order);

std::optional<Hello> decode_hello(std::string_view line);
bool decode_ack(std::string_view line);
std::optional<Welcome> decode_welcome(std::string_view line);
std::optional<Refused> decode_refused(std::string_view line);
std::optional<Event> decode_event(std::string_view line);
std::optional<Order> decode_order(std::string_view line);

}  // namespace lockstep::launch
