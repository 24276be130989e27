// Several nodes on this machine, over loopback: real agents, and connections that a test opens itself.
#pragma once

#include <sys/socket.h>

#include "base/net.h"
#include "base/port.h"
#include "base/token.h"
#include "harness.h"
#include "launch/connection.h"
#include "launch/control.h"

namespace lockstep::launch::testing {

using namespace std::chrono_literals;

class NodesTest : public LaunchTest {
 protected:
  static constexpr const char* kToken = "the token of these tests";

  // Starts one node of `nnodes`; `rest` is passed to lockstep run.
  std::unique_ptr<Process> node(int rank, int nnodes, const Words& rest, const std::string& token = kToken) {
    Words words{"--nnodes",  std::to_string(nnodes), "--node-rank", std::to_string(rank), "--master-addr",
                "127.0.0.1", "--master-port",        port()};
    words.insert(words.end(), rest.begin(), rest.end());
    return run(words, {.environment = {{"LOCKSTEP_TOKEN", token}}});
  }
  std::unique_ptr<Process> arriving(int nnodes, const Words& rest) {
    Words words{"--nnodes",        std::to_string(nnodes),
                "--rdzv-endpoint", "127.0.0.1:" + port(),
                "--rdzv-backend",  "c10d"};
    words.insert(words.end(), rest.begin(), rest.end());
    return run(words, {.environment = {{"LOCKSTEP_TOKEN", kToken}}});
  }
  std::string port() const { return std::to_string(reservation_.port()); }

  // Connects to node 0's port.
  base::Fd connect() const {
    return base::connect_to("127.0.0.1", reservation_.port(), base::Deadline::in(10s));
  }
  // A connection that has sent this hello with a valid proof.
  std::unique_ptr<Connection> caller(Hello hello, const std::string& token = kToken) const {
    auto connection = std::make_unique<Connection>(connect());
    const auto line = connection->wait_for_line(base::Deadline::in(10s));
    const auto challenge = line ? decode_challenge(*line) : std::nullopt;
    EXPECT_TRUE(challenge);
    if (!challenge) return connection;
    if (hello.run_id.empty()) hello.run_id = "none";
    hello.nonce = base::make_nonce();
    hello.proof = base::Token(token).prove(kFollower, challenge->nonce, hello.nonce);
    hello.has_token = true;
    connection->send(encode(hello));
    return connection;
  }
  // The same, after it has been admitted.
  std::unique_ptr<Connection> member(const Hello& hello) const {
    auto connection = caller(hello);
    const auto answer = connection->wait_for_line(base::Deadline::in(10s));
    EXPECT_TRUE(answer && decode_ack(*answer));
    return connection;
  }

  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  // Held for the whole test: the kernel gives the port to nobody else, and the agents can still listen on it.
  base::PortReservation reservation_{base::Reach::Everyone};
};

}  // namespace lockstep::launch::testing
