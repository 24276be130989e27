// Reads a Python pickle (protocols 2 to 5) as data. Imports, creates and calls nothing: a call in the pickle
// becomes a value that describes it. For any input, the result is a value or a PickleError, and the memory
// used is proportional to the size of the input.
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
    Global,      // an object of a Python module
    Call,        // a call of a global
    Persistent,  // an object outside the pickle, identified by a tuple
    Other,       // sets, integers of more than 64 bits
  };
  Kind kind = Kind::None;
  int64_t integer = 0;  // of Integer and Bool
  double real = 0;
  std::string_view text;  // of Text and Bytes; the full name of a Global, or of the function of a Call
  std::vector<PickleValue*> items;     // of a Tuple or List; alternating keys and values of a Dict
  const PickleValue* tuple = nullptr;  // the arguments of a Call; the id of a Persistent
};

class PickleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Owns the bytes and the values. Values may form cycles.
class Pickle {
 public:
  // allowed: whether the pickle may contain this global ("collections.OrderedDict").
  Pickle(std::string bytes, const std::function<bool(std::string_view global)>& allowed);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return *root_; }

 private:
  class Machine;

  const std::string bytes_;
  std::set<std::string> globals_;  // the names of all globals
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace lockstep::snapshot
