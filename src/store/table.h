// The store's keys and values. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::store {

class Table {
 public:
  void set(const std::string& key, std::string value) { values_[key] = std::move(value); }
  // As KeyValues::compare_set.
  std::string compare_set(const std::string& key, const std::string& expected, std::string wanted);
  // The values of all keys, or nothing while one of them is missing.
  std::optional<std::vector<std::string>> get(const std::vector<std::string>& keys) const;
  // A value that is no number counts as 0.
  int64_t add(const std::string& key, int64_t amount);
  bool has(const std::vector<std::string>& keys) const;
  bool erase(const std::string& key) { return values_.erase(key) != 0; }
  int64_t count() const { return static_cast<int64_t>(values_.size()); }
  // The word of one of `holders` that the keys with this prefix are not needed any more. After the last one's
  // they are gone, and so is the memory of the words. Returns whether this was the last one.
  bool forget(const std::string& prefix, int64_t holders);

 private:
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> words_;
};

}  // namespace lockstep::store
