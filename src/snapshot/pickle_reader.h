// Reads a Python pickle (protocols 2 to 5) as data. Nothing is imported, made or called: what a pickle would
// call becomes a value that says so. Whatever the bytes are, the outcome is a value or a PickleError, and the
// memory it takes is in proportion to them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::snapshot {

struct PickleValue {
  enum class Kind {
    None,
    Bool,
    Integer,
    Real,
    Text,
    Bytes,
    Tuple,
    List,
    Dict,
    Global,      // something of a Python module
    Call,        // of a global
    Persistent,  // something outside of the pickle, named by a tuple
    Other,       // sets, integers of more than 64 bits
  };
  Kind kind = Kind::None;
  int64_t integer = 0;  // of Integer and Bool
  double real = 0;
  std::string_view text;            // of Text and Bytes; the full name of a Global and of what a Call calls
  std::vector<PickleValue*> items;  // of a Tuple or List; a Dict's keys and values in turn
  const PickleValue* tuple = nullptr;  // a Call's arguments; what names a Persistent
};

class PickleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Owns the bytes and the values. Values may refer to each other in circles.
class Pickle {
 public:
  // allowed: says whether a global ("collections.OrderedDict") may be in it.
  Pickle(std::string bytes, const std::function<bool(std::string_view global)>& allowed);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return *root_; }

 private:
  class Machine;

  const std::string bytes_;
  std::set<std::string> globals_;  // the names of all
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace lockstep::snapshot
