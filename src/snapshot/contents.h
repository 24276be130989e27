// Between the parts of a training run and the document that a file holds.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <lockstep/snapshot.h>

#include "snapshot/document.h"

namespace lockstep::snapshot {

// generators: the random state of each rank. The document refers to the live tensors.
Document capture(const std::vector<SnapshotPart>& parts, const Position& position,
                 const std::vector<at::Tensor>& generators);

// A document that later steps do not change.
Document copy_of(const Document& document);

// Checks that the document fits the parts, and returns what puts its values there: nothing has changed until
// that is called. The document must live until then. Throws SnapshotError saying what does not fit.
std::function<void()> prepare_restore(const std::vector<SnapshotPart>& parts, const Document& document,
                                      int rank);

// What `about` says of the run. SnapshotError if it says nothing of the kind.
Position position_of(const nlohmann::json& about);
int world_size_of(const nlohmann::json& about);
std::chrono::system_clock::time_point saved_of(const nlohmann::json& about);

// A model's tensors under the names that the module gives them, those of shared parameters too.
std::vector<Entry> model_in(const Document& document, const std::string& model);
// The names of the models in it.
std::vector<std::string> models_in(const nlohmann::json& about);

// A snapshot of one model that another program trained. It has no optimizer and no sampler, and resuming from
// it leaves those as they are.
Document import_model(const detail::NamedTensors& tensors);

}  // namespace lockstep::snapshot
