// Converts between the parts of a training run and the document stored in a file.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/snapshot.h>

#include "snapshot/document.h"
#include "snapshot/named_tensors.h"

namespace lockstep::snapshot {

// The parts as rank 0 saves them: in place of a sharded optimizer, LibTorch's with the state of all ranks,
// and its float copies of parameters. All ranks must call it; it blocks. The other ranks get the parts
// unchanged.
struct Gathered {
  std::vector<SnapshotPart> parts;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> made;
  std::vector<std::pair<at::Tensor, at::Tensor>> masters;  // of these parameters
};
Gathered gather(const std::vector<SnapshotPart>& parts);

// generators: the random state of each rank. The document refers to the tensors of the parts; it does not
// copy them.
Document capture(const Gathered& gathered, const Position& position,
                 const std::vector<at::Tensor>& generators);

// A copy that later training steps do not change.
Document copy_of(const Document& document);

// Checks that the document matches the parts, and returns a function that restores them. Nothing changes
// until that function is called. It only copies between memory that is already allocated, so it does not fail
// halfway; except that a sharded optimizer allocates memory for the state. The document must outlive it.
// Throws SnapshotError that names the differences.
std::function<void()> prepare_restore(const std::vector<SnapshotPart>& parts, const Document& document,
                                      int rank);

// The tensors of a model under the names that the module gives them, including the aliases of shared
// parameters. Throws SnapshotError, worded for `lockstep snapshot export --model`, if there is no such model.
std::vector<Entry> model_in(const Document& document, const std::string& model);

// A document for one model that another program has trained. It has neither an optimizer nor a sampler;
// resuming from it leaves those of the run unchanged. A tensor with several names is stored once.
Document import_model(const NamedTensors& tensors);

}  // namespace lockstep::snapshot
