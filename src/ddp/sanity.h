// Looks for programs that run well and train wrongly: ranks that get the same batches, optimizers that
// differ.
//
// A look costs a collective of a few numbers and a digest of the parameters, after the synchronised backward
// passes 1, 2, 16, 256, 4096 … only: passes, and not forwards, because all ranks make the same ones. What is
// found is a warning on rank 0, each kind once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/ddp.h>

namespace lockstep::ddp {

using detail::NamedTensors;

class Sanity {
 public:
  // Whether the pass to come is looked at.
  bool looks_next() const { return is_look(passes_ + 1); }
  // What forward was given, in this pass.
  void note_inputs(const std::vector<at::Tensor>& inputs);
  // All ranks must call it after each of their synchronised passes. Whether this was a look.
  bool after_pass(ProcessGroup& group, const NamedTensors& parameters, bool compare_parameters);
  // The parameters are others now.
  void forget_parameters() { probe_ = {}; }

 private:
  static bool is_look(int64_t pass);
  void look(ProcessGroup& group, const NamedTensors& parameters, bool compare_parameters);
  void keep_probe(const NamedTensors& parameters);
  void warn_of_inputs(ProcessGroup& group);
  void warn_of_parameters(ProcessGroup& group, const NamedTensors& parameters,
                          const std::vector<double>& moved);

  // A small parameter as it was before the last step: how far each rank moves it shows its learning rate.
  struct Probe {
    size_t index = 0;
    at::Tensor before;
  };

  int64_t passes_ = 0;
  int64_t inputs_ = 0;       // their digest; 0: nothing to compare
  std::string first_input_;  // for the warning
  int equal_inputs_ = 0;     // looks in a row at which all ranks had the same
  Probe probe_;
  bool warned_of_inputs_ = false, warned_of_parameters_ = false;
};

}  // namespace lockstep::ddp
