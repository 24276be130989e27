#include "launch/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep::launch {

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const auto& candidate : candidates) {
    // A prefix of the candidate, with or without its last letter, counts as one edit.
    if (word.size() > 5 && candidate.starts_with(word.substr(0, word.size() - 1)) && best_distance > 1) {
      best = candidate;
      best_distance = 1;
    }
    // Levenshtein distance, one row at a time.
    std::vector<size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < word.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i + 1);
      for (size_t j = 0; j < candidate.size(); ++j) {
        const size_t replaced = diagonal + (word[i] == candidate[j] ? 0 : 1);
        diagonal = row[j + 1];
        row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
      }
    }
    if (row.back() < best_distance) {
      best = candidate;
      best_distance = row.back();
    }
  }
  return best;
}

}  // namespace lockstep::launch
