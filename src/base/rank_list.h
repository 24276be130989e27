// Lists of ranks in messages.
#pragma once

#include <string>
#include <vector>

namespace lockstep::base {

// "0-2, 5, 7-8". `sorted_ranks` is in ascending order.
std::string describe_ranks(const std::vector<int>& sorted_ranks);

}  // namespace lockstep::base
