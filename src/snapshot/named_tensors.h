// Tensors with their names, in order: the type in which a detail::ModelView lists a model's parameters. The
// .pt files and the optimizer states use the same one, so that nothing is converted on the way.
//
// A Document holds Entry records instead (document.h): those are what one file stores, each name once.
#pragma once

#include <lockstep/ddp.h>

namespace lockstep::snapshot {

using detail::NamedTensors;

}  // namespace lockstep::snapshot
