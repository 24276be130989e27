// Detects that samples are requested ahead of the training.
//
// A loader of LibTorch's with workers requests several batches before it returns the first, and then one for
// each batch it returns. A loader without workers requests a batch when the loop needs it, so the loop trains
// between two requests. Training leaves a trace: autograd numbers the nodes it creates, per thread. A loop
// that skips its first batches is taken for one with workers.
#pragma once

#include <cstdint>
#include <thread>

#include <ATen/SequenceNumber.h>

namespace lockstep::data {

class LookAhead {
 public:
  // handed_out: samples were left to return.
  void asked(bool handed_out) {
    if (asked_) {
      if (trained_since_last()) {
        ++trained_;
      } else if (trained_ == 0) {
        in_a_row_ = true;
      }
    }
    asked_ = true;
    if (handed_out) ++handed_out_;
    thread_ = std::this_thread::get_id();
    nodes_ = at::sequence_number::peek();
  }

  // Whether fewer batches were trained on than handed out. Detects training in the calling thread only.
  bool ahead() const { return in_a_row_ && handed_out_ > trained_ + (trained_since_last() ? 1 : 0); }
  uint64_t batches() const { return handed_out_; }

 private:
  // Nothing is known about other threads, so they are assumed to have trained.
  bool trained_since_last() const {
    return thread_ != std::this_thread::get_id() || nodes_ != at::sequence_number::peek();
  }

  bool asked_ = false;
  bool in_a_row_ = false;                  // two requests without training in between, at the start
  uint64_t handed_out_ = 0, trained_ = 0;  // batches
  std::thread::id thread_;
  uint64_t nodes_ = 0;
};

}  // namespace lockstep::data
