// A call in progress, to which the public Work refers.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/process_group.h>
#include <lockstep/work.h>

#include "comm/request.h"

namespace lockstep {

// Created by a transport (comm/transport.h), which implements the virtual functions.
struct Work::State {
  using Clock = std::chrono::steady_clock;

  explicit State(comm::Request&& described) : request(std::move(described)) {}
  virtual ~State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Blocks until the transport has done its part; for a device with streams, only makes the current stream
  // wait for it. Throws the error of the call, and again if called again.
  virtual void complete() = 0;
  // Advances the call if the transport needs polling. Returns whether the transport has done its part, so
  // that complete() would not block.
  virtual bool is_done() = 0;
  // When the transport finished its part; nullopt while that is unknown.
  virtual std::optional<Clock::time_point> ended() const { return std::nullopt; }

  comm::Request request;

  // The rest is set for calls of the public interface.
  std::shared_ptr<ProcessGroup::Impl> group;
  std::function<void()> finish;    // copies results into the caller's tensors; may be empty
  std::vector<at::Tensor> result;  // what Work::result() returns
  std::exception_ptr error;        // what the first wait() threw
  bool waited = false;
};

namespace comm {

// Whether the call blocks until it is complete. If so, only copies need to be kept alive.
enum class Returns : uint8_t { WhenComplete, AtOnce };

// A call of the public interface: the request, and what remains to be done for the caller.
struct Prepared {
  struct Results {
    std::function<void()> finish;  // copies them into the caller's tensors; may be empty
    std::vector<at::Tensor> made;  // new tensors that the call fills
  };
  Request request;
  std::unique_ptr<Results> results = {};  // null: the call leaves them where its caller wants them

  Results& needs_results() {
    if (!results) results = std::make_unique<Results>();
    return *results;
  }
};

// Executes the call; blocks until it is complete on this rank.
void run(ProcessGroup::Impl& group, Prepared& call);
void run(ProcessGroup::Impl& group, Request& request);
// Starts the call and returns immediately.
Work start(const std::shared_ptr<ProcessGroup::Impl>& group, Prepared&& call);

}  // namespace comm

}  // namespace lockstep
