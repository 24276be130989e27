// Detects programs that run without errors but train incorrectly: ranks that get the same batches, optimizers
// that differ.
//
// A check costs a collective of a few numbers and a digest of the parameters. It takes place only after the
// synchronised backward passes 1, 2, 16, 256, 4096 …; passes are counted, not forwards, because all ranks
// make the same passes. Each kind of finding is reported once, as a warning on rank 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/ddp.h>

namespace lockstep::ddp {

using detail::NamedTensors;

class Sanity {
 public:
  // Whether the next pass will be checked.
  bool looks_next() const { return is_look(passes_ + 1); }
  // Records the inputs of forward in this pass.
  void note_inputs(const std::vector<at::Tensor>& inputs);
  // All ranks must call it after each of their synchronised passes. Returns whether this pass was checked.
  bool after_pass(ProcessGroup& group, const NamedTensors& parameters, bool compare_parameters);
  // Must be called when the parameters have been replaced.
  void forget_parameters() { probe_ = {}; }

 private:
  static bool is_look(int64_t pass);
  void look(ProcessGroup& group, const NamedTensors& parameters, bool compare_parameters);
  void keep_probe(const NamedTensors& parameters);
  void warn_of_inputs(ProcessGroup& group);
  void warn_of_parameters(ProcessGroup& group, const NamedTensors& parameters,
                          const std::vector<double>& moved);

  // A small parameter before the last step: how far each rank moves it depends on its learning rate.
  struct Probe {
    size_t index = 0;
    at::Tensor before;
  };

  int64_t passes_ = 0;
  int64_t inputs_ = 0;       // their digest; 0: nothing to compare
  std::string first_input_;  // for the warning
  int equal_inputs_ = 0;     // consecutive checks in which all ranks had the same inputs
  Probe probe_;
  bool warned_of_inputs_ = false, warned_of_parameters_ = false;
};

}  // namespace lockstep::ddp
