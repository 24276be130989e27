// The streams of a device, with a device that only notes what is asked of it.
#include "reducer/streams.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace lockstep::reducer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr auto kType = c10::DeviceType::PrivateUse1;

c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, 0), id); }

c10::Stream current = stream(0);
std::vector<std::string> waits;

struct NotingDevice final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kType, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return current; }
  c10::Stream exchangeStream(c10::Stream other) const noexcept override {
    return std::exchange(current, other);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag) const override {
    *event = new c10::StreamId(on.id());
  }
  void block(void* event, const c10::Stream& waiting) const override {
    waits.push_back(std::to_string(waiting.id()) + " waits for " +
                    std::to_string(*static_cast<c10::StreamId*>(event)));
  }
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<c10::StreamId*>(event);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NotingDevice);

class StreamsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    current = stream(0);
    waits.clear();
  }
  void write_on(c10::StreamId id) {
    current = stream(id);
    streams.note(c10::Device(kType, 0));
  }

  Streams streams;
};

TEST_F(StreamsTest, TheCurrentOneWaitsForAllOthers) {
  write_on(1);
  write_on(2);
  write_on(1);
  write_on(3);
  streams.join();
  EXPECT_THAT(waits, UnorderedElementsAre("3 waits for 1", "3 waits for 2"));
}

TEST_F(StreamsTest, OneStreamNeedsNoWait) {
  write_on(1);
  write_on(1);
  streams.join();
  EXPECT_THAT(waits, IsEmpty());
}

TEST_F(StreamsTest, AreForgottenAfterwards) {
  write_on(1);
  current = stream(2);
  streams.join();
  EXPECT_THAT(waits, ElementsAre("2 waits for 1"));
  current = stream(3);
  streams.join();
  write_on(4);
  streams.forget();
  current = stream(5);
  streams.join();
  EXPECT_THAT(waits, ElementsAre("2 waits for 1"));
}

TEST_F(StreamsTest, TheCpuHasNone) {
  streams.note(c10::kCPU);
  streams.join();
  EXPECT_THAT(waits, IsEmpty());
}

}  // namespace
}  // namespace lockstep::reducer
