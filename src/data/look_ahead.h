// Notices that samples are handed out ahead of the training.
//
// A loader of LibTorch's with workers asks for several batches before it returns the first, and from then on
// for one with each that it returns; a loader without workers asks when the loop wants a batch. So between
// two requests of the latter the loop trains, which leaves a trace: the nodes that autograd makes are
// numbered, in each thread by itself. A loop that passes over its first batches looks like one with workers.
#pragma once

#include <cstdint>
#include <thread>

#include <ATen/SequenceNumber.h>

namespace lockstep::data {

class LookAhead {
 public:
  // handed_out: there were samples left.
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

  // Fewer batches were trained on than were handed out. Sees what the calling thread trained.
  bool ahead() const { return in_a_row_ && handed_out_ > trained_ + (trained_since_last() ? 1 : 0); }
  uint64_t batches() const { return handed_out_; }

 private:
  // Of another thread nothing is known, and nobody is accused.
  bool trained_since_last() const {
    return thread_ != std::this_thread::get_id() || nodes_ != at::sequence_number::peek();
  }

  bool asked_ = false;
  bool in_a_row_ = false;                  // two requests before anything was trained on
  uint64_t handed_out_ = 0, trained_ = 0;  // batches
  std::thread::id thread_;
  uint64_t nodes_ = 0;
};

}  // namespace lockstep::data
