// Between the parts of a training run and the document that a file holds.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/snapshot.h>

#include "snapshot/document.h"
#include "snapshot/named_tensors.h"

namespace lockstep::snapshot {

// generators: the random state of each rank. The document refers to the live tensors.
Document capture(const std::vector<SnapshotPart>& parts, const Position& position,
                 const std::vector<at::Tensor>& generators);

// A document that later steps do not change.
Document copy_of(const Document& document);

// Checks that the document fits the parts, and returns what puts its values there: nothing has changed until
// that is called, and it only copies between memory that is there already, so that it does not fail halfway.
// The document must live until then. Throws SnapshotError saying what does not fit.
std::function<void()> prepare_restore(const std::vector<SnapshotPart>& parts, const Document& document,
                                      int rank);

// A model's tensors under the names that the module gives them, those of shared parameters too. SnapshotError
// in the words of `lockstep snapshot export --model` if there is no such model.
std::vector<Entry> model_in(const Document& document, const std::string& model);

// A snapshot of one model that another program trained. It has no optimizer and no sampler, and resuming from
// it leaves those as they are. Tensors that are the same memory under several names are stored once.
Document import_model(const NamedTensors& tensors);

}  // namespace lockstep::snapshot
