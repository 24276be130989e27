// A group whose ranks have devices of their own: tensors go to the transport of their device, and nothing
// that trains a model on a device reads or writes its memory from the host. The device "meta" plays the part
// of a CUDA device: its tensors have no memory at all.
#include "comm/by_device.h"

#include <ATen/ATen.h>

#include <lockstep/lockstep.h>

#include "comm/checks.h"
#include "comm/generation.h"
#include "comm/group.h"
#include "comm/request.h"
#include "support/message_of.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Done final : Work::State {
  using State::State;
  void complete() override {}
  bool is_done() override { return true; }
};

// Notes what it is asked for.
class DeviceTransport final : public comm::Transport {
 public:
  bool averages(c10::ScalarType dtype, c10::Device) const override { return dtype == at::kFloat; }
  bool carries(c10::Device device) const override { return device.is_meta(); }
  void run(comm::Request& request) override { note(request); }
  std::shared_ptr<Work::State> start(comm::Request&& request) override {
    note(request);
    return std::make_shared<Done>(std::move(request));
  }
  void fail(const Error& why) noexcept override { failure = why.what(); }

  std::vector<std::string> calls;
  std::string failure;
  bool broken = false;

 private:
  void note(const comm::Request& request) {
    if (broken) throw Error("the device is broken");
    EXPECT_TRUE(request.device.is_meta());
    EXPECT_FALSE(request.keep.empty()) << "a device uses the memory after the call has returned";
    calls.push_back(comm::describe(request));
  }
};

// Gives the group such a device.
std::shared_ptr<DeviceTransport> add_device(ProcessGroup& group) {
  auto device = std::make_shared<DeviceTransport>();
  auto& impl = *comm::generation_of(group);
  impl.transport = std::make_shared<comm::ByDevice>(std::move(impl.transport), device);
  impl.device = c10::kMeta;
  return device;
}

at::Tensor on_meta(at::IntArrayRef sizes) { return at::empty(sizes, at::kMeta); }

TEST(ByDevice, TensorsGoToTheTransportOfTheirDevice) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    const auto device = add_device(group);
    auto tensor = at::ones({4});
    group.all_reduce(tensor);
    EXPECT_EQ(tensor[0].item<int>(), 2);
    EXPECT_TRUE(device->calls.empty());
    group.all_reduce(on_meta({4}), ReduceOp::Avg);
    group.broadcast_async(on_meta({3, 2}).t()).wait();
    EXPECT_THAT(device->calls,
                ElementsAre("all_reduce of 4 Float, Avg on META", "broadcast of 6 Float, root 0 on META"));
    EXPECT_TRUE(group.empty({2}, at::device(at::kMeta)).is_meta());
    group.barrier();
    EXPECT_EQ(group.device(), c10::Device("meta"));
  });
}

TEST(ByDevice, OtherDevicesAreRefused) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    const auto host_only = message_of<UsageError>([&] { group.all_reduce(on_meta({1})); });
    EXPECT_THAT(host_only, HasSubstr("a tensor is on meta, and backend shm does not support this device"));
    EXPECT_THAT(host_only, HasSubstr("hint: move it to the CPU first"));
    const auto device = add_device(group);
    const auto mixed =
        message_of<UsageError>([&] { group.all_gather_into_tensor(at::empty({4}), on_meta({2})); });
    EXPECT_THAT(mixed, HasSubstr("its tensors are on different devices: cpu and meta"));
    // Another device of the same kind.
    comm::generation_of(group)->device = c10::Device("cuda:1");
    auto& impl = *comm::generation_of(group);
    EXPECT_THAT(comm::refusal_of(impl, c10::Device("cuda:0")).evidence, "the device of this rank is cuda:1");
    EXPECT_THAT(comm::refusal_of(impl, c10::Device("cuda:0")).hint, HasSubstr("group->device()"));
    group.barrier();  // the group still works
  });
}

TEST(ByDevice, TheReasonForNoCudaIsGiven) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    auto& impl = *comm::generation_of(group);
    impl.no_cuda = {"2 ranks on host a share 1 CUDA device", "start one rank"};
    const auto refusal = comm::refusal_of(impl, c10::Device("cuda:0"));
    EXPECT_EQ(refusal.evidence,
              "backend shm does not support this device: 2 ranks on host a share 1 CUDA device");
    EXPECT_EQ(refusal.hint, "start one rank; or use the CPU");
  });
}

TEST(ByDevice, AFailureOfOneEndsTheOther) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    auto own = group.new_group({0, 1});
    const auto device = add_device(*own);
    device->broken = true;
    EXPECT_THAT(message_of<Error>([&] { own->all_reduce(on_meta({1})); }), HasSubstr("the device is broken"));
    EXPECT_THAT(message_of<Error>([&] { own->all_reduce(at::ones({1})); }),
                HasSubstr("the device is broken"));

    auto other = group.new_group({0, 1});
    const auto second = add_device(*other);
    if (group.rank() == 0) other->poison(Error("rank 0 gives up"));
    EXPECT_THAT(message_of<Error>([&] { other->all_reduce(at::ones({1})); }), HasSubstr("rank 0 gives up"));
    EXPECT_THAT(second->failure, HasSubstr("rank 0 gives up"));
    group.barrier();
  });
}

// ---- DistributedDataParallel

// LibTorch 1.13 cannot move a module to "meta".
struct Net : torch::nn::Module {
  Net()
      : weight(register_parameter("weight", on_meta({8, 6}))),
        bias(register_parameter("bias", on_meta({6}))),
        extra(register_parameter("extra", on_meta({6}))),
        scale(register_buffer("scale", on_meta({6}))) {}
  at::Tensor forward(const at::Tensor& x, bool with_extra = true) {
    const auto y = (x.mm(weight) + bias) * scale;
    return with_extra ? y * extra : y;
  }
  at::Tensor weight, bias, extra, scale;
};

TEST(DdpOnADevice, TrainsWithoutTouchingItsMemory) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    for (const bool as_view : {true, false}) {
      const auto own = group.new_group({0, 1});
      const auto device = add_device(*own);
      DistributedDataParallel ddp(std::make_shared<Net>(), own,
                                  {.gradient_as_bucket_view = as_view, .checks = false});
      EXPECT_FALSE(device->calls.empty()) << "parameters are broadcast on the device";
      for (int step = 0; step < 3; ++step) {
        device->calls.clear();
        ddp.zero_grad();
        ddp(on_meta({5, 8})).sum().backward();
        // Four tensors with padding, and equal parts for both ranks.
        EXPECT_THAT(device->calls, Contains("all_reduce of 96 Float, Avg on META"));
        for (const auto& parameter : ddp.parameters()) EXPECT_TRUE(parameter.grad().is_meta());
      }
    }
  });
}

TEST(DdpOnADevice, UnusedParametersHooksAndJoin) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    const auto device = add_device(group);
    DistributedDataParallel ddp(std::make_shared<Net>(), default_group(),
                                {.find_unused_parameters = true, .checks = false});
    ddp.register_comm_hook(hooks::bf16_compress());
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      device->calls.clear();
      ddp(on_meta({5, 8}), step > 0 && group.rank() == 0).sum().backward();
    }
    EXPECT_THAT(device->calls, Contains(HasSubstr("BFloat16, Sum on META")));
    EXPECT_TRUE(ddp->extra.grad().is_meta()) << "the average of rank 0's";
    Join join(ddp);
    for (int step = 0; step <= group.rank(); ++step) ddp(on_meta({5, 8})).sum().backward();
    join.finish();
  });
}

TEST(DdpOnADevice, AModelThatIsElsewhereIsRefusedBeforeAnythingIsSent) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    const auto message = message_of<UsageError>(
        [&] { DistributedDataParallel ddp(std::make_shared<Net>(), default_group(), {.checks = false}); });
    EXPECT_THAT(message, HasSubstr("the module is on meta, where it cannot be trained"));
    EXPECT_THAT(message, HasSubstr("'weight'): backend shm does not support this device"));
    group.barrier();
  });
}

}  // namespace
}  // namespace lockstep::testing
