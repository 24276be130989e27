// Suggests a correction for a typo on the command line. No side effects.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launch {

// The candidate most similar to `word`; empty if none is similar.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace lockstep::launch
