// The keys and values of the store. Not thread-safe.
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
  // The values of all keys; nullopt if one of them does not exist.
  std::optional<std::vector<std::string>> get(const std::vector<std::string>& keys) const;
  // A value that is not a number counts as 0.
  int64_t add(const std::string& key, int64_t amount);
  bool has(const std::vector<std::string>& keys) const;
  bool erase(const std::string& key) { return values_.erase(key) != 0; }
  int64_t count() const { return static_cast<int64_t>(values_.size()); }
  // One of `holders` releases the keys with this prefix. The last release erases them, and the count of the
  // releases as well. Returns whether this was the last one.
  bool forget(const std::string& prefix, int64_t holders);

 private:
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> releases_;  // by prefix
};

}  // namespace lockstep::store
