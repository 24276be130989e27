// The order in which the halves of operations run, and how an error ends all of them.
#include "hybrid/queue.h"

#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include <ATen/ATen.h>

#include "comm/from_tensors.h"
#include "hybrid/window.h"

namespace lockstep::hybrid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

class NoLink final : public comm::Link {
 public:
  comm::TransferPtr send(int, int, const std::byte*, size_t, Owner) override { return {}; }
  comm::TransferPtr receive(int, int, std::byte*, size_t, Owner) override { return {}; }
  void hang_up() noexcept override {}
};

struct Fixture {
  Topology topology{0, {{.rank = 0, .machine = "a"}}};
  Machine machine;
  NoLink link;
  Buffers buffers;
  std::mutex mutex;
  std::vector<std::string> log;

  void note(const std::string& what) {
    const std::lock_guard lock(mutex);
    log.push_back(what);
  }
};

// Notes its steps; each half may be told to wait or to throw.
class Scripted final : public Operation {
 public:
  Scripted(Fixture& at, const Task& task, std::string name, size_t steps)
      : Operation({at.topology, at.machine, at.link, at.buffers}, task),
        at_(at),
        name_(std::move(name)),
        steps_(steps) {}
  size_t steps() const override { return steps_; }
  void front(size_t step) override {
    at_.note(name_ + "f" + std::to_string(step));
    if (on_front) on_front(step);
  }
  void back(size_t step) override {
    if (on_back) on_back(step);
    at_.note(name_ + "b" + std::to_string(step));
  }
  std::function<void(size_t)> on_front, on_back;

 private:
  Fixture& at_;
  const std::string name_;
  const size_t steps_;
};

class QueueTest : public ::testing::Test {
 protected:
  Queue::EntryPtr entry(const std::string& name, size_t steps = 1, comm::Request request = {}) {
    auto made = std::make_shared<Queue::Entry>();
    made->request = std::move(request);
    made->request.kind = comm::Kind::AllReduce;
    made->operation =
        std::make_unique<Scripted>(fixture_, Task{made->request, 1, 0, [] { return false; }}, name, steps);
    return made;
  }
  static Scripted& script(const Queue::EntryPtr& entry) { return static_cast<Scripted&>(*entry->operation); }
  Queue make_queue() {
    return Queue([](Queue::Entry&) {},
                 [this](const Queue::Entry&) {
                   ++explained_;
                   return std::make_exception_ptr(Error("explained"));
                 });
  }
  size_t position(const std::string& what) {
    const auto found = std::find(fixture_.log.begin(), fixture_.log.end(), what);
    EXPECT_NE(found, fixture_.log.end()) << what;
    return static_cast<size_t>(found - fixture_.log.begin());
  }

  Fixture fixture_;
  std::atomic<int> explained_{0};
};

TEST_F(QueueTest, TheCallerExecutesACallThatIsAlone) {
  Queue queue = make_queue();
  const auto call = entry("a", 3);
  const auto caller = std::this_thread::get_id();
  script(call).on_back = [&](size_t) { EXPECT_EQ(std::this_thread::get_id(), caller); };
  queue.run(call);
  EXPECT_THAT(fixture_.log, ElementsAre("af0", "af1", "af2", "ab0", "ab1", "ab2"));
  EXPECT_TRUE(queue.is_complete(*call));
}

TEST_F(QueueTest, TheFrontHalfIsNeverMoreThanTheWindowAhead) {
  for (const bool by_threads : {false, true}) {
    fixture_.log.clear();
    Queue queue = make_queue();
    const auto call = entry("a", 4 * kWindow);
    std::atomic<size_t> backs{0};
    script(call).on_front = [&](size_t step) { EXPECT_LE(step, backs + kWindow); };
    script(call).on_back = [&](size_t) { ++backs; };
    if (by_threads) {
      queue.submit(call);
      queue.wait(*call);
    } else {
      queue.run(call);
    }
    EXPECT_EQ(fixture_.log.size(), 8 * kWindow);
  }
}

TEST_F(QueueTest, TheFrontHalfGoesOnWhileTheBackHalfWaits) {
  Queue queue = make_queue();
  const auto first = entry("a"), second = entry("b");
  std::promise<void> second_began;
  script(second).on_front = [&](size_t) { second_began.set_value(); };
  script(first).on_back = [&](size_t) {
    EXPECT_EQ(second_began.get_future().wait_for(10s), std::future_status::ready);
  };
  queue.submit(first);
  queue.submit(second);
  queue.wait(*second);
  EXPECT_TRUE(queue.is_complete(*first));
  EXPECT_LT(position("ab0"), position("bb0"));
}

TEST_F(QueueTest, ACallWaitsForWhatAnEarlierOneStillWrites) {
  auto tensor = at::zeros({4}), other = at::zeros({4});
  Queue queue = make_queue();
  const auto first = entry("a", 1, comm::all_reduce_of(tensor, ReduceOp::Sum));
  const auto second = entry("b", 1, comm::all_reduce_of(tensor, ReduceOp::Sum));
  std::promise<void> all_submitted;
  script(first).on_back = [&](size_t) { all_submitted.get_future().wait(); };
  queue.submit(first);
  queue.submit(second);
  all_submitted.set_value();
  queue.wait(*second);
  EXPECT_LT(position("ab0"), position("bf0"));
}

TEST_F(QueueTest, TheFirstErrorEndsEverything) {
  Queue queue = make_queue();
  const auto first = entry("a"), second = entry("b");
  script(first).on_back = [](size_t) { throw std::runtime_error("as the engine says it"); };
  queue.submit(first);
  EXPECT_THROW(queue.wait(*first), Error);
  const auto expect_explained = [](auto&& call) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "explained");
    }
  };
  expect_explained([&] { queue.wait(*first); });
  expect_explained([&] { queue.submit(second); });
  expect_explained([&] { queue.run(second); });
  EXPECT_EQ(explained_, 1);
  EXPECT_TRUE(queue.is_complete(*first));
}

// The caller may use its memory again after the error.
TEST_F(QueueTest, AnErrorIsReportedWhenNoStepRunsAnyMore) {
  Queue queue = make_queue();
  const auto first = entry("a"), second = entry("b");
  std::promise<void> failing;
  std::atomic<bool> ended{false};
  script(first).on_back = [&](size_t) {
    failing.get_future().wait();
    throw std::runtime_error("fails");
  };
  script(second).on_front = [&](size_t) {
    failing.set_value();
    std::this_thread::sleep_for(50ms);
    ended = true;
  };
  queue.submit(first);
  queue.submit(second);
  EXPECT_THROW(queue.wait(*first), Error);
  EXPECT_TRUE(ended);
  EXPECT_THROW(queue.wait(*second), Error);
}

TEST_F(QueueTest, AnErrorFromOutsideEndsWaits) {
  Queue queue = make_queue();
  const auto call = entry("a");
  std::promise<void> begun;
  script(call).on_back = [&](size_t) {
    begun.set_value();
    while (!queue.has_failed()) std::this_thread::yield();
    throw std::runtime_error("the wait was given up");
  };
  queue.submit(call);
  begun.get_future().wait();
  queue.fail(std::make_exception_ptr(TimeoutError("from outside")));
  EXPECT_THROW(queue.wait(*call), TimeoutError);
  EXPECT_EQ(explained_, 0);
}

TEST_F(QueueTest, ItsEndWaitsForCallsThatNobodyWaitsFor) {
  {
    Queue queue = make_queue();
    for (int i = 0; i < 20; ++i) queue.submit(entry(std::to_string(i), 3));
  }
  EXPECT_EQ(fixture_.log.size(), 20 * 3 * 2);
}

}  // namespace
}  // namespace lockstep::hybrid
