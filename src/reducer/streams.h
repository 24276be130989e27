// The streams on which the gradients of a bucket were written. Autograd computes the gradient of a parameter
// on the stream of its forward, so a program that uses several streams gets the gradients of a bucket on
// several.
#pragma once

#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace lockstep::reducer {

class Streams {
 public:
  // Call after writing to memory of this device. On the CPU, everything is written when a call returns.
  void note(c10::Device device);
  // Makes the current stream wait for what has been written, and forgets it.
  void join();
  void forget() { streams_.clear(); }

 private:
  std::vector<c10::Stream> streams_;
};

}  // namespace lockstep::reducer
