// What a typing error on the command line most likely meant. Pure.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launch {

// The candidate nearest to `word`; empty when none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace lockstep::launch
