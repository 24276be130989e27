#include "launch/control.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "launch/connection.h"

namespace lockstep::launch {
namespace {

Failure some_failure() {
  Failure failure{
      .rank = 5, .local_rank = 1, .host = "h", .pid = 12, .wait_status = 11, .last_lines = {"a\"b", "c"}};
  failure.note = base::Note{"TimeoutError", "rank 3 is missing"};
  return failure;
}

TEST(Control, MessagesSurviveTheTrip) {
  const Hello hello{.run_id = "j",
                    .nnodes = 3,
                    .node_rank = 2,
                    .nproc = 4,
                    .host = "h",
                    .problem = "p",
                    .problem_status = 127};
  EXPECT_EQ(decode_hello(encode(hello)), hello);
  const Hello by_arrival{.run_id = "j", .nnodes = 3, .nproc = 4, .host = "h"};
  EXPECT_EQ(decode_hello(encode(by_arrival)), by_arrival);
  const Welcome welcome{.node_rank = 1, .nprocs = {4, 2}, .hosts = {"a", "b"}, .max_restarts = 3};
  EXPECT_EQ(decode_welcome(encode(welcome)), welcome);
  EXPECT_TRUE(decode_ack(encode_ack()));
  const Refused refused{"no", 2};
  EXPECT_EQ(decode_refused(encode(refused)), refused);
  const Event event{.kind = Event::Kind::Failed, .attempt = 2, .failure = some_failure()};
  EXPECT_EQ(decode_event(encode(event)), event);
  const Order order{.kind = Order::Kind::Stop,
                    .attempt = 1,
                    .signal = 15,
                    .failure = some_failure(),
                    .restart = true,
                    .reason = "r",
                    .status = 3};
  EXPECT_EQ(decode_order(encode(order)), order);
}

TEST(Control, ALineIsOneLine) {
  Order order{.kind = Order::Kind::Stop, .failure = some_failure()};
  order.failure->last_lines = {"with\nnewline", std::string("\xff\x00\x80", 3)};
  EXPECT_EQ(encode(order).find('\n'), std::string::npos);
  EXPECT_TRUE(decode_order(encode(order)));
}

TEST(Control, WhatIsNotExactlyRightIsRefused) {
  const Hello hello{.run_id = "j", .nnodes = 3, .nproc = 4, .host = "h"};
  for (const std::string& line :
       {std::string(), std::string("{}"), std::string("[1]"), std::string("GET / HTTP/1.1"),
        std::string("{\"type\":\"hello\"}"), std::string("{\"magic\":\"lockstep-agent\",\"type\":\"hello\"}"),
        std::string(10000, '['), encode_ack()}) {
    EXPECT_FALSE(decode_hello(line)) << line.substr(0, 60);
  }
  const auto changed = [&](const std::string& from, const std::string& to) {
    auto line = encode(hello);
    return line.replace(line.find(from), from.size(), to);
  };
  EXPECT_FALSE(decode_hello(changed("\"nproc\":4", "\"nproc\":0")));
  EXPECT_FALSE(decode_hello(changed("\"nproc\":4", "\"nproc\":1e99")));
  EXPECT_FALSE(decode_hello(changed("\"nproc\":4", "\"nproc\":\"4\"")));
  EXPECT_FALSE(decode_hello(changed("\"nnodes\":3", "\"nnodes\":-3")));
  EXPECT_FALSE(decode_hello(changed("\"node_rank\":null", "\"node_rank\":1000000")));
  // Another version is understood as far as is needed to say so.
  EXPECT_EQ(decode_hello("{\"magic\":\"lockstep-agent\",\"type\":\"hello\",\"version\":9}")->version, 9);
}

class ConnectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    a_ = std::make_unique<Connection>(base::Fd(ends[0]));
    b_ = std::make_unique<Connection>(base::Fd(ends[1]));
  }
  std::unique_ptr<Connection> a_;
  std::unique_ptr<Connection> b_;
};

TEST_F(ConnectionTest, LinesInOrder) {
  a_->send("one");
  a_->send("two");
  const auto deadline = base::Deadline::in(std::chrono::seconds(5));
  EXPECT_EQ(b_->wait_for_line(deadline), "one");
  EXPECT_EQ(b_->wait_for_line(deadline), "two");
  EXPECT_EQ(b_->wait_for_line(base::Deadline::in(std::chrono::milliseconds(1))), std::nullopt);
  EXPECT_TRUE(b_->open());
}

TEST_F(ConnectionTest, LinesBeforeTheEndAreStillRead) {
  a_->send("last");
  a_->close();
  b_->receive();
  EXPECT_FALSE(b_->open());
  EXPECT_EQ(b_->next_line(), "last");
}

TEST_F(ConnectionTest, AnEndlessLineIsCutOff) {
  const std::string much(64 * 1024, 'x');
  for (int i = 0; i < 100 && b_->open(); ++i) {
    static_cast<void>(::send(a_->fd(), much.data(), much.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
    b_->receive();
  }
  EXPECT_FALSE(b_->open());
  EXPECT_NE(b_->trouble().find("too long"), std::string::npos);
}

TEST_F(ConnectionTest, MoreThanTheKernelHoldsIsSentBitByBit) {
  const std::string big(200 * 1024, 'x');
  for (int i = 0; i < 10; ++i) a_->send(big);
  EXPECT_TRUE(a_->wants_to_write());
  int lines = 0;
  for (int i = 0; i < 10000 && lines < 10; ++i) {
    a_->flush();
    b_->receive();
    while (const auto line = b_->next_line()) {
      EXPECT_EQ(*line, big);
      ++lines;
    }
  }
  EXPECT_EQ(lines, 10);
}

}  // namespace
}  // namespace lockstep::launch
