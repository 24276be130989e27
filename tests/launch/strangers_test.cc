// Callers at node 0's port: who is admitted, and that strangers cannot harm the job.
#include <fmt/format.h>
#include <fstream>
#include <sys/stat.h>

#include "nodes.h"

namespace lockstep::launch::testing {
namespace {

class StrangersTest : public NodesTest {
 protected:
  static void send(const base::Fd& socket, const std::string& text) {
    static_cast<void>(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL));
  }
  std::string token_file(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    ::chmod(path(name).c_str(), 0600);
    return path(name);
  }
};

TEST_F(StrangersTest, GarbageOnTheControlPortDoesNoHarm) {
  auto first = node(0, 2, {"PROBE", "say=fine"});
  const auto silent = connect();
  const auto http = connect();
  send(http, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto endless = connect();
  for (int i = 0; i < 40; ++i) send(endless, std::string(16 * 1024, 'x'));
  { const auto gone = connect(); }
  EXPECT_TRUE(first->wait_for_text("is not from a lockstep agent"));
  EXPECT_TRUE(first->wait_for_text("too long"));
  auto second = node(1, 2, {"PROBE", "say=fine"});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
}

TEST_F(StrangersTest, RefusedNodesDoNotExtendTheTimeout) {
  auto first = node(0, 2, {"--timeout", "1", "PROBE"});
  // They do not close their connections after the refusal.
  std::vector<std::unique_ptr<Connection>> callers;
  for (int i = 0; i < 60 && first->running(); ++i) {
    callers.push_back(caller({.run_id = "another", .nnodes = 2, .node_rank = 1, .host = "other"}));
  }
  EXPECT_EQ(first->wait(8s), 1);
  EXPECT_TRUE(has(first->err(), "not all nodes arrived within 1.0 s")) << first->err();
}

TEST_F(StrangersTest, SilentConnectionsDoNotKeepNodesOut) {
  auto first = node(0, 2, {"--timeout", "6", "PROBE", "say=fine"});
  std::vector<base::Fd> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(connect());
  auto second = node(1, 2, {"--timeout", "6", "PROBE", "say=fine"});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_TRUE(has(first->err(), "there are too many such connections")) << first->err();
  // The number of warnings is limited.
  EXPECT_LE(lines_of(first->err()).size(), 30U) << first->err();
}

TEST_F(StrangersTest, WhenDescriptorsRunOutTheOldestIsDropped) {
  auto first =
      start({"/bin/sh", "-c",
             fmt::format("ulimit -n 100; exec {} run --nnodes 2 --node-rank 0 --master-addr 127.0.0.1 "
                         "--master-port {} --timeout 6 {} say=fine",
                         LOCKSTEP_BINARY, port(), PROBE_BINARY)},
            {.environment = {{"LOCKSTEP_TOKEN", kToken}}});
  std::vector<base::Fd> silent;
  for (int i = 0; i < 110; ++i) silent.push_back(connect());
  ASSERT_TRUE(first->wait_for_text("Too many open files"));
  auto second = node(1, 2, {"--timeout", "6", "PROBE", "say=fine"});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
}

TEST_F(StrangersTest, AMemberThatSendsBeforeTheStartIsDropped) {
  auto first = node(0, 3, {"PROBE", "say=fine"});
  const auto loud = member({.nnodes = 3, .node_rank = 1, .host = "loud"});
  const std::string newlines(64 * 1024, '\n');
  for (int i = 0; i < 100; ++i) {
    static_cast<void>(::send(loud->fd(), newlines.data(), newlines.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
  }
  EXPECT_TRUE(first->wait_for_text("node 1 (loud) sent an unexpected line and was dropped"));
  auto second = node(1, 3, {"PROBE", "say=fine"});
  auto third = node(2, 3, {"PROBE", "say=fine"});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_EQ(third->wait(), 0) << third->err();
}

TEST_F(StrangersTest, TheTokenAdmitsAndReachesTheWorkers) {
  const std::string secret = "0123456789abcdef0123456789abcdef";
  const auto file = token_file("token", secret + "\n");
  // The flag takes precedence over the variable.
  auto first = node(0, 2, {"--token-file", file, "PROBE", "env"}, "another token than the file has");
  auto second = run({"--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1", "--master-port",
                     port(), "PROBE", "env"},
                    {.environment = {{"LOCKSTEP_TOKEN_FILE", file}}});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_EQ(first->err() + second->err(), "");
  EXPECT_TRUE(has(first->out(), "[rank 0] LOCKSTEP_TOKEN=" + secret + "\n")) << first->out();
  EXPECT_TRUE(has(second->out(), "[rank 1] LOCKSTEP_TOKEN=" + secret + "\n")) << second->out();
  EXPECT_FALSE(has(first->out() + second->out(), "LOCKSTEP_TOKEN_FILE=")) << second->out();
}

TEST_F(StrangersTest, AWrongTokenIsRefusedAndTheJobContinues) {
  const std::string wrong = "not the token of these tests";
  auto first = node(0, 2, {"PROBE", "say=fine"});
  auto impostor = node(1, 2, {"PROBE", "say=inside"}, wrong);
  EXPECT_EQ(impostor->wait(), 2);
  EXPECT_TRUE(has(impostor->err(), "refused this node: its token is not that of this job"))
      << impostor->err();
  EXPECT_TRUE(has(impostor->err(), "hint: give all nodes the same token: --token-file")) << impostor->err();
  auto without = node(1, 2, {"PROBE", "say=inside"}, "");
  EXPECT_EQ(without->wait(), 2);
  EXPECT_TRUE(has(without->err(), "it has no token, and this job has one")) << without->err();
  auto second = node(1, 2, {"PROBE", "say=fine"});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_TRUE(has(first->err(), "from 127.0.0.1 was refused: its token is not that of this job"))
      << first->err();
  EXPECT_TRUE(has(first->err(), "from 127.0.0.1 was refused: it has no token")) << first->err();
  const auto all = first->err() + impostor->err() + without->err() + second->err();
  EXPECT_FALSE(has(all, kToken) || has(all, wrong)) << all;
}

TEST_F(StrangersTest, ANodeWithATokenDoesNotJoinAJobWithoutOne) {
  auto first = node(0, 2, {"--timeout", "2", "PROBE", "say=fine"}, "");
  auto second = node(1, 2, {"PROBE", "say=fine"});
  EXPECT_EQ(second->wait(), 2);
  EXPECT_TRUE(has(second->err(), "it has a token, and node 0 has none")) << second->err();
  EXPECT_EQ(first->wait(), 1);
}

TEST_F(StrangersTest, WithoutATokenTheJobRunsAndWarnsOnce) {
  auto first = node(0, 2, {"PROBE", "env"}, "");
  auto second = node(1, 2, {"PROBE", "env"}, "");
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_EQ(second->err(), "");
  EXPECT_EQ(count(first->err(), "this job has no token"), 1U) << first->err();
  EXPECT_TRUE(has(first->err(), "hint: make one with: ")) << first->err();
  EXPECT_FALSE(has(first->out() + second->out(), "LOCKSTEP_TOKEN"));
}

TEST_F(StrangersTest, AProgramOnThePortWithoutTheTokenIsNotNodeZero) {
  const base::Fd listener = base::listen_on(base::Reach::Everyone, reservation_.port());
  auto second = node(1, 2, {"--timeout", "1", "PROBE", "say=inside"});
  // Sends everything that node 0 would send, as far as it can without the token.
  Connection impostor(base::Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  impostor.send(encode(Challenge{.nonce = base::make_nonce(), .has_token = true}));
  const auto line = impostor.wait_for_line(base::Deadline::in(10s));
  const auto hello = line ? decode_hello(*line) : std::nullopt;
  ASSERT_TRUE(hello);
  impostor.send(encode(Ack{hello->proof}));
  impostor.send(
      encode(Welcome{.node_rank = 1, .nprocs = {1, 1}, .hosts = {"a", "b"}, .node_timeout_ms = 10'000}));
  impostor.send(encode(Order{.kind = Order::Kind::Start}));
  EXPECT_EQ(second->wait(), 1);
  EXPECT_EQ(second->out(), "");
  EXPECT_TRUE(has(second->err(), "found no agent of this job")) << second->err();
}

TEST_F(StrangersTest, TextOfAnotherNodeIsEscaped) {
  auto first = node(0, 2, {"PROBE", "say=ready", "hang"});
  const auto evil = member({.nnodes = 2, .node_rank = 1, .host = "evil"});
  ASSERT_TRUE(first->wait_for_text("ready"));
  RankEnd failure{.rank = 1, .host = "evil", .pid = 1, .wait_status = as_wait_status(3)};
  failure.note = base::Note{"Error\x1b[2J", "words\nlockstep run: forged\x1b]0;title\x07", {}};
  failure.last_lines = {"line\nlockstep run: forged", "\x1b[31mred\x9b"};
  evil->send(encode(Event{.kind = Event::Kind::Failed, .failure = failure}));
  // A real node would answer the order to stop; closing the connection ends the job, too.
  ASSERT_TRUE(first->wait_for_text("rank 1 exited with status 3"));
  evil->close();
  EXPECT_EQ(first->wait(), 3);
  const auto err = first->err();
  EXPECT_EQ(err.find('\x1b'), std::string::npos) << err;
  EXPECT_TRUE(has(err, "\\x1b[31mred")) << err;
  for (const auto& line : lines_of(err)) EXPECT_FALSE(line.starts_with("lockstep run: forged")) << err;
}

}  // namespace
}  // namespace lockstep::launch::testing
