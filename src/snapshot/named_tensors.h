// Tensors with their names, in order: the type in which detail::ModelView lists the parameters of a model.
// The .pt files and the optimizer states use the same type, so nothing has to be converted.
//
// A Document has Entry records instead (document.h): these are what a file stores, with unique names.
#pragma once

#include <lockstep/ddp.h>

namespace lockstep::snapshot {

using detail::NamedTensors;

}  // namespace lockstep::snapshot
