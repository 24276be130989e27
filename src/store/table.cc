#include "store/table.h"

#include "base/env.h"

namespace lockstep::store {

std::string Table::compare_set(const std::string& key, const std::string& expected, std::string wanted) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    // Like c10d's stores: a missing key matches an empty expected value, and is not created for any other.
    if (!expected.empty()) return expected;
    return values_[key] = std::move(wanted);
  }
  if (found->second == expected) found->second = std::move(wanted);
  return found->second;
}

std::optional<std::vector<std::string>> Table::get(const std::vector<std::string>& keys) const {
  std::vector<std::string> values;
  for (const auto& key : keys) {
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    values.push_back(found->second);
  }
  return values;
}

int64_t Table::add(const std::string& key, int64_t amount) {
  auto& value = values_[key];
  // Unsigned, because signed overflow is undefined.
  const auto sum = static_cast<uint64_t>(base::parse_int(value).value_or(0)) + static_cast<uint64_t>(amount);
  value = std::to_string(static_cast<int64_t>(sum));
  return static_cast<int64_t>(sum);
}

bool Table::has(const std::vector<std::string>& keys) const {
  for (const auto& key : keys) {
    if (!values_.contains(key)) return false;
  }
  return true;
}

bool Table::forget(const std::string& prefix, int64_t holders) {
  if (++releases_[prefix] < holders) return false;
  const auto erase_from = [&](auto& map) {
    auto first = map.lower_bound(prefix);
    auto last = first;
    while (last != map.end() && last->first.starts_with(prefix)) ++last;
    map.erase(first, last);
  };
  erase_from(values_);
  erase_from(releases_);
  return true;
}

}  // namespace lockstep::store
