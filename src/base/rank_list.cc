#include "base/rank_list.h"

#include <fmt/format.h>

namespace lockstep::base {

std::string describe_ranks(const std::vector<int>& sorted_ranks) {
  std::string text;
  for (size_t first = 0; first < sorted_ranks.size();) {
    size_t last = first;
    while (last + 1 < sorted_ranks.size() && sorted_ranks[last + 1] == sorted_ranks[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += last == first ? fmt::format("{}", sorted_ranks[first])
                          : fmt::format("{}-{}", sorted_ranks[first], sorted_ranks[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace lockstep::base
