// LibTorch's NCCL as a transport, for tensors on the CUDA device of this rank.
//
// NCCL only queues calls: a wait makes the current stream wait and returns at once. So a rank that ends does
// not end the waits of the others, but their device waits forever, and with it the next call of theirs that
// reads from the device. A thread therefore checks the other ranks while the device has calls to execute, and
// aborts them if they cannot complete. The group has failed then.
//
// The backend is created by the first call, so that a group whose ranks use only the CPU occupies no memory
// of the devices.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "foreign/transport.h"
#include "nccl/engine.h"

namespace lockstep::nccl {

class Transport final : public foreign::Transport {
 public:
  // `group` owns the transport. `device`: that of this rank; without a number, any of this type.
  Transport(ProcessGroup::Impl& group, c10::Device device, Engine engine);
  // Blocks until the device has executed the calls that were waited for.
  ~Transport() override;

  bool averages(c10::ScalarType dtype, c10::Device device) const override;
  bool carries(c10::Device device) const override;
  // Throws UsageError for what NCCL cannot do: bitwise reductions, messages with tags.
  std::shared_ptr<Work::State> start(comm::Request&& request) override;
  void fail(const Error& why) noexcept override;

 protected:
  void begin(foreign::Started& call) override;
  void wait(foreign::Started& call) override;
  c10::ScalarType wire_dtype(const comm::Request& request) const override;

 private:
  void connect();
  void note_wait(std::function<bool()> reached);
  bool is_idle();  // while holding the mutex
  void watch();
  void give_up() noexcept;
  void abort() noexcept;

  const c10::Device device_;
  const Engine engine_;

  std::mutex mutex_;
  std::condition_variable changed_;
  int under_way_ = 0;              // calls that were started and not waited for
  std::function<bool()> reached_;  // whether the device has executed those that were; empty: it has
  bool aborted_ = false;
  bool ends_ = false;
  std::thread watcher_;
};

}  // namespace lockstep::nccl
