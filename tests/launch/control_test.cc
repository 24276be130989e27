#include "launch/control.h"

#include <csignal>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "launch/connection.h"

namespace lockstep::launch {
namespace {

RankEnd some_failure() {
  RankEnd failure{
      .rank = 5, .local_rank = 1, .host = "h", .pid = 12, .wait_status = 11, .last_lines = {"a\"b", "c"}};
  failure.note = base::Note{"TimeoutError", "rank 3 is missing\nhint: look", {3}, true};
  failure.culprits = {{.rank = 3, .local_rank = 1, .host = "i", .ended = true, .pid = 13}};
  return failure;
}

TEST(Control, DecodingReversesEncoding) {
  const Challenge challenge{.nonce = "0a", .has_token = true};
  EXPECT_EQ(decode_challenge(encode(challenge)), challenge);
  const Hello hello{.nonce = "1b",
                    .proof = "2c",
                    .has_token = true,
                    .run_id = "j",
                    .nnodes = 3,
                    .node_rank = 2,
                    .nproc = 4,
                    .grace_ms = 2'592'000'000,
                    .host = "h",
                    .problem = "p",
                    .problem_status = 127};
  EXPECT_EQ(decode_hello(encode(hello)), hello);
  const Hello by_arrival{.run_id = "j", .nnodes = 3, .nproc = 4, .host = "h"};
  EXPECT_EQ(decode_hello(encode(by_arrival)), by_arrival);
  const Welcome welcome{
      .node_rank = 1, .nprocs = {4, 2}, .hosts = {"a", "b"}, .max_restarts = 3, .node_timeout_ms = 10'000};
  EXPECT_EQ(decode_welcome(encode(welcome)), welcome);
  const Ack ack{"3d"};
  EXPECT_EQ(decode_ack(encode(ack)), ack);
  EXPECT_TRUE(decode_alive(encode_alive()));
  const Refused refused{"no", 2};
  EXPECT_EQ(decode_refused(encode(refused)), refused);
  const Event event{.kind = Event::Kind::Failed, .attempt = 2, .failure = some_failure()};
  EXPECT_EQ(decode_event(encode(event)), event);
  const Event left{.kind = Event::Kind::Left, .attempt = 2, .rank = 7, .pid = 99};
  EXPECT_EQ(decode_event(encode(left)), left);
  const Order order{.kind = Order::Kind::Stop,
                    .attempt = 1,
                    .signal = 15,
                    .failure = some_failure(),
                    .restart = true,
                    .reason = "r",
                    .status = 3};
  EXPECT_EQ(decode_order(encode(order)), order);
}

TEST(Control, AMessageIsOneLine) {
  Order order{.kind = Order::Kind::Stop, .signal = SIGTERM, .failure = some_failure()};
  order.failure->last_lines = {"with\nnewline", std::string("\xff\x00\x80", 3)};
  EXPECT_EQ(encode(order).find('\n'), std::string::npos);
  EXPECT_TRUE(decode_order(encode(order)));
}

TEST(Control, InvalidLinesAreRejected) {
  const Hello hello{.run_id = "j", .nnodes = 3, .nproc = 4, .host = "h"};
  for (const std::string& line :
       {std::string(), std::string("{}"), std::string("[1]"), std::string("GET / HTTP/1.1"),
        std::string("{\"type\":\"hello\"}"), std::string("{\"magic\":\"lockstep-agent\",\"type\":\"hello\"}"),
        std::string(10000, '['), encode(Ack{})}) {
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
  // Of another version, only the number is decoded, for the refusal.
  EXPECT_EQ(decode_hello("{\"magic\":\"lockstep-agent\",\"type\":\"hello\",\"version\":9}")->version, 9);
}

TEST(Control, OnlyStopSignalsAreAccepted) {
  const auto interrupted = [](int signal) {
    return decode_event(encode(Event{.kind = Event::Kind::Interrupted, .signal = signal})).has_value();
  };
  const auto stop = [](int signal) {
    return decode_order(encode(Order{.kind = Order::Kind::Stop, .signal = signal})).has_value();
  };
  for (int signal = -1; signal <= 65; ++signal) {
    const bool stops =
        signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT || signal == SIGKILL;
    EXPECT_EQ(interrupted(signal), stops) << signal;
    EXPECT_EQ(stop(signal), stops) << signal;
  }
}

TEST(Control, TextIsSafeToShow) {
  const std::string evil = "a\x1b[2J\nb";
  const auto refused = decode_refused(encode(Refused{evil, 2}));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->message, "a\\x1b[2J\n  b");
  EXPECT_EQ(decode_hello(encode(Hello{.host = "h", .problem = evil}))->problem, "a\\x1b[2J\n  b");
  // Names are rejected instead of escaped: no valid name contains such characters.
  EXPECT_FALSE(decode_hello(encode(Hello{.host = evil})));
  EXPECT_TRUE(decode_welcome(encode(Welcome{.nprocs = {1}, .hosts = {"h"}, .node_timeout_ms = 1000})));
  EXPECT_FALSE(decode_welcome(encode(Welcome{.nprocs = {1}, .hosts = {evil}, .node_timeout_ms = 1000})));
  Order order{.kind = Order::Kind::Stop, .signal = SIGTERM, .failure = RankEnd{}, .reason = evil};
  order.failure->note = base::Note{"Kind\n", evil, {}};
  order.failure->last_lines = {evil, std::string(1 << 20, 'x')};
  order.failure->not_started = evil;
  const auto decoded = decode_order(encode(order));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->reason, "a\\x1b[2J\\nb");
  EXPECT_EQ(decoded->failure->note->kind, "Kind\\n");
  EXPECT_EQ(decoded->failure->note->message, "a\\x1b[2J\nb");
  EXPECT_EQ(decoded->failure->last_lines[0], "a\\x1b[2J\\nb");
  EXPECT_LE(decoded->failure->last_lines[1].size(), 1000U);
  EXPECT_EQ(decoded->failure->not_started, "a\\x1b[2J\n  b");
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

TEST_F(ConnectionTest, LinesBeforeTheEndAreReadAlthoughSendingFails) {
  a_->send("last");
  a_->close();
  b_->send("too late");
  b_->send("too late");
  b_->receive();
  EXPECT_FALSE(b_->open());
  EXPECT_EQ(b_->close_reason(), "");
  EXPECT_EQ(b_->next_line(), "last");
}

TEST_F(ConnectionTest, AnEndlessLineIsCutOff) {
  const std::string much(64 * 1024, 'x');
  for (int i = 0; i < 100 && b_->open(); ++i) {
    static_cast<void>(::send(a_->fd(), much.data(), much.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
    b_->receive();
  }
  EXPECT_FALSE(b_->open());
  EXPECT_NE(b_->close_reason().find("too long"), std::string::npos);
}

TEST_F(ConnectionTest, UnreadLinesDoNotFillTheMemory) {
  const std::string newlines(64 * 1024, '\n');
  size_t sent = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto size = ::send(a_->fd(), newlines.data(), newlines.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size > 0) sent += static_cast<size_t>(size);
    b_->receive();
  }
  // What the kernel buffers, and a little more.
  EXPECT_LT(sent, size_t{8} * 1024 * 1024);
  EXPECT_TRUE(b_->open());
  EXPECT_EQ(b_->next_line(), "");
}

TEST_F(ConnectionTest, MoreThanTheKernelBuffersIsSentInPieces) {
  b_->trust();
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
