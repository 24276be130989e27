// Agents that stop responding: SIGSTOP stands for a power failure, which looks the same to the peers.
#include <csignal>
#include <fmt/format.h>

#include "launch/contact.h"
#include "nodes.h"

namespace lockstep::launch::testing {
namespace {

class SilenceTest : public NodesTest {
 protected:
  // Starts a job of two nodes and waits until their workers run.
  void begin(const Words& probe) {
    Words words{"--node-timeout", "2", "--grace-period", "1", "PROBE"};
    words.insert(words.end(), probe.begin(), probe.end());
    first_ = node(0, 2, words);
    second_ = node(1, 2, words);
    ASSERT_TRUE(first_->wait_for_text("ready") && second_->wait_for_text("ready"));
  }
  std::unique_ptr<Process> first_;
  std::unique_ptr<Process> second_;
};

TEST_F(SilenceTest, AFrozenNodeIsLost) {
  begin({"say=ready", "hang"});
  const pid_t frozen = agent_of(*second_);
  ::kill(frozen, SIGSTOP);
  EXPECT_EQ(first_->wait(), 1);
  EXPECT_TRUE(has(first_->err(), ") is lost: it sent nothing for 2 s")) << first_->err();
  // Once it continues, it finds its connection closed.
  ::kill(frozen, SIGCONT);
  EXPECT_EQ(second_->wait(), 1);
}

TEST_F(SilenceTest, AFrozenNodeDoesNotDelayTheEnd) {
  begin({"leave=TERM", "say=ready", "hang"});
  const pid_t frozen = agent_of(*second_);
  ::kill(frozen, SIGSTOP);
  first_->signal(SIGTERM);
  EXPECT_EQ(first_->wait(), 143);
  EXPECT_TRUE(has(first_->out(), "got TERM")) << first_->out();
  EXPECT_TRUE(has(first_->err(), "node 1 (")) << first_->err();
  EXPECT_TRUE(has(first_->err(), ") is lost: it sent nothing for 2 s")) << first_->err();
  ::kill(frozen, SIGCONT);
  second_->wait();
}

TEST_F(SilenceTest, AFrozenNodeZeroDoesNotDelayCtrlC) {
  begin({"leave=INT", "say=ready", "hang"});
  const pid_t frozen = agent_of(*first_);
  ::kill(frozen, SIGSTOP);
  second_->signal(SIGINT);
  EXPECT_EQ(second_->wait(), 130);
  EXPECT_TRUE(has(second_->err(), "node 0 (")) << second_->err();
  ::kill(frozen, SIGCONT);
  first_->wait();
}

TEST_F(SilenceTest, AFrozenNodeZeroIsLost) {
  begin({"say=ready", "hang"});
  const pid_t frozen = agent_of(*first_);
  ::kill(frozen, SIGSTOP);
  EXPECT_EQ(second_->wait(), 1);
  EXPECT_TRUE(has(second_->err(), ") is lost: it sent nothing for 2 s")) << second_->err();
  ::kill(frozen, SIGCONT);
  EXPECT_EQ(first_->wait(), 1);
}

TEST_F(SilenceTest, CtrlZIsNotSilence) {
  // Longer than the node timeout: the agents keep communicating while the workers of one node are stopped.
  begin({"say=ready", "r0:await=" + path("stopped"), "r0:sleep=3000", "r0:touch=" + path("go"),
         "await=" + path("go"), "say=done"});
  second_->signal(SIGTSTP);
  std::filesystem::create_directory(path("stopped"));
  ASSERT_TRUE(first_->wait_for_text("done"));
  second_->signal(SIGCONT);
  EXPECT_EQ(second_->wait(), 0) << second_->err();
  EXPECT_EQ(first_->wait(), 0) << first_->err();
  EXPECT_EQ(first_->err() + second_->err(), "");
}

TEST_F(SilenceTest, AStoppedAgentHandlesAStopSignal) {
  auto job = run({"PROBE", "say=ready", "hang"});
  ASSERT_TRUE(job->wait_for_text("ready"));
  ::kill(agent_of(*job), SIGSTOP);
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(), 143);
}

class ContactTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    std::vector<std::unique_ptr<Connection>> connections(2);
    connections[1] = std::make_unique<Connection>(base::Fd(ends[0]));
    peer_ = std::make_unique<Connection>(base::Fd(ends[1]));
    contact_ = Contact(std::move(connections), 100ms);
  }
  std::vector<Contact::Lost> receive() {
    return contact_.receive([this](size_t peer, const std::string& line) {
      lines_.push_back(fmt::format("{} {}", peer, line));
      return line != "nonsense";
    });
  }
  std::unique_ptr<Connection> peer_;
  Contact contact_;
  Words lines_;
};

TEST_F(ContactTest, SendsAndReceivesKeepalives) {
  int signs = 0;
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(receive().empty());
    peer_->receive();
    while (const auto line = peer_->next_line()) signs += decode_alive(*line) ? 1 : 0;
    peer_->send(encode_alive());
    return signs > 8;  // more than are sent within two timeouts
  }));
  EXPECT_EQ(lines_, Words{});
}

TEST_F(ContactTest, LinesThatArrivedDuringAPauseOfOursCount) {
  peer_->send("word");
  const auto enough = base::Deadline::in(150ms);
  eventually([&] { return enough.expired(); });
  EXPECT_TRUE(receive().empty());
  EXPECT_EQ(lines_, Words{"1 word"});
}

TEST_F(ContactTest, SilenceInvalidLinesAndTheEndAreLosses) {
  std::vector<Contact::Lost> lost;
  ASSERT_TRUE(eventually([&] {
    lost = receive();
    return !lost.empty();
  }));
  EXPECT_EQ(lost.front().peer, 1U);
  EXPECT_TRUE(lost.front().why.starts_with("it sent nothing for 0.1 s")) << lost.front().why;
  EXPECT_TRUE(receive().empty());
  SetUp();
  peer_->send("nonsense");
  EXPECT_EQ(receive().at(0).why, "it sent a line that is not part of the protocol");
  SetUp();
  peer_->close();
  EXPECT_EQ(receive().at(0).why, "");
}

}  // namespace
}  // namespace lockstep::launch::testing
