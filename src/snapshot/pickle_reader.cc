#include "snapshot/pickle_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <fmt/format.h>
#include <unordered_map>
#include <utility>

#include "base/printable.h"

namespace lockstep::snapshot {

namespace {

using Kind = PickleValue::Kind;

// A value takes some hundred bytes. The pickle of a hundred thousand tensors has fewer than two million.
constexpr size_t kMostValues = 4'000'000;
// Python writes at least three bytes for most values, but one for an empty list. Small pickles are exempt.
constexpr size_t kBytesPerValue = 3, kFreeValues = 100'000;
// The length of "module.name".
constexpr size_t kLongestGlobal = 1000;

// With the names that Python's pickletools uses.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kBinFloat = 'G',
  kBinUnicode = 'X',
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinString = 'T',
  kShortBinString = 'U',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kBinBytes8 = 0x8e,
  kByteArray8 = 0x96,
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kEmptyList = ']',
  kList = 'l',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyDict = '}',
  kDict = 'd',
  kSetItem = 's',
  kSetItems = 'u',
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kGlobal = 'c',
  kStackGlobal = 0x93,
  kReduce = 'R',
  kNewObj = 0x81,
  kNewObjEx = 0x92,
  kBuild = 'b',
  kBinPersId = 'Q',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kMemoize = 0x94,
  kProto = 0x80,
  kFrame = 0x95,
};

}  // namespace

// The stack machine that executes a pickle, with all calls left out.
class Pickle::Machine {
 public:
  Machine(Pickle& pickle, const std::function<bool(std::string_view)>& allowed)
      : values_(pickle.values_),
        globals_(pickle.globals_),
        most_values_(std::min(kMostValues, kFreeValues + pickle.bytes_.size() / kBytesPerValue)),
        rest_(pickle.bytes_),
        allowed_(allowed) {}

  const PickleValue* run() {
    for (;;) {
      const auto opcode = static_cast<uint8_t>(take(1).front());
      if (opcode == kStop) return pop();
      step(opcode);
    }
  }

 private:
  void step(uint8_t opcode) {
    switch (opcode) {
      case kProto:
        take(1);
        return;
      case kFrame:
        take(8);
        return;
      case kMark:
        return marks_.push_back(stack_.size());
      case kPop:
        pop();
        return;
      case kPopMark:
        pop_to_mark();
        return;
      case kDup:
        return push(top());

      case kNone:
        return push(none_);
      case kNewTrue:
        return push(true_);
      case kNewFalse:
        return push(false_);
      case kBinInt:
        return push_integer(static_cast<int32_t>(number(4)));
      case kBinInt1:
        return push_small(number(1));
      case kBinInt2:
        return push_integer(static_cast<int64_t>(number(2)));
      case kLong1:
        return push_long(take(number(1)));
      case kLong4:
        return push_long(take(number(4)));
      case kBinFloat:
        return push_real();
      case kShortBinUnicode:
      case kShortBinString:
        return push_text(Kind::Text, take(number(1)));
      case kBinUnicode:
      case kBinString:
        return push_text(Kind::Text, take(number(4)));
      case kBinUnicode8:
        return push_text(Kind::Text, take(number(8)));
      case kShortBinBytes:
        return push_text(Kind::Bytes, take(number(1)));
      case kBinBytes:
        return push_text(Kind::Bytes, take(number(4)));
      case kBinBytes8:
      case kByteArray8:
        return push_text(Kind::Bytes, take(number(8)));

      case kEmptyTuple:
        return push(empty_tuple_);
      case kTuple:
        return push_items(Kind::Tuple, pop_to_mark());
      case kTuple1:
        return push_items(Kind::Tuple, pop_some(1));
      case kTuple2:
        return push_items(Kind::Tuple, pop_some(2));
      case kTuple3:
        return push_items(Kind::Tuple, pop_some(3));
      case kEmptyList:
        return push_items(Kind::List, {});
      case kList:
        return push_items(Kind::List, pop_to_mark());
      case kAppend:
        return add_items(Kind::List, pop_some(1));
      case kAppends:
        return add_items(Kind::List, pop_to_mark());
      case kEmptyDict:
        return push_items(Kind::Dict, {});
      case kDict:
        return push_pairs(pop_to_mark());
      case kSetItem:
        return add_items(Kind::Dict, pop_some(2));
      case kSetItems:
        return add_items(Kind::Dict, pop_to_mark());
      case kEmptySet:
        return push_items(Kind::Other, {});
      case kAddItems:
        return add_items(Kind::Other, pop_to_mark());
      case kFrozenSet:
        return push_items(Kind::Other, pop_to_mark());

      case kGlobal: {
        const auto module = line();
        return push_global(module, line());
      }
      case kStackGlobal: {
        const auto names = pop_some(2);
        if (names[0]->kind != Kind::Text || names[1]->kind != Kind::Text) fail("a global without a name");
        return push_global(names[0]->text, names[1]->text);
      }
      case kReduce:
      case kNewObj: {
        const auto* arguments = pop();
        return push_call(pop(), arguments);
      }
      case kNewObjEx: {
        pop();  // keyword arguments
        const auto* arguments = pop();
        return push_call(pop(), arguments);
      }
      case kBuild:
        pop();  // attributes, such as the _metadata of a state dict
        return;
      case kBinPersId: {
        const auto* name = pop();
        if (name->kind != Kind::Tuple) fail("a persistent id that is not a tuple");
        return push_tuple(Kind::Persistent, name);
      }

      case kBinGet:
        return push(remembered(number(1)));
      case kLongBinGet:
        return push(remembered(number(4)));
      case kBinPut:
        return remember(number(1));
      case kLongBinPut:
        return remember(number(4));
      case kMemoize:
        return remember(memo_.size());
      default:
        fail(fmt::format("the opcode {:#04x}, which is not known here", opcode));
    }
  }

  [[noreturn]] static void fail(const std::string& found) { throw PickleError("its pickle has " + found); }

  std::string_view take(uint64_t count) {
    if (rest_.size() < count) throw PickleError("its pickle ends too early");
    const auto taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  uint64_t number(int bytes) {
    uint64_t value = 0;
    int shift = 0;
    for (const char byte : take(bytes)) {
      value |= uint64_t{static_cast<uint8_t>(byte)} << shift;
      shift += 8;
    }
    return value;
  }
  std::string_view line() {
    const auto end = rest_.find('\n');
    if (end == std::string_view::npos) throw PickleError("its pickle ends too early");
    const auto text = take(end);
    take(1);
    return text;
  }

  PickleValue* make(Kind kind) {
    if (values_.size() >= most_values_) fail("too many values");
    auto& value = values_.emplace_back();
    value.kind = kind;
    return &value;
  }
  void push(PickleValue* value) { stack_.push_back(value); }
  void push_integer(int64_t integer) {
    auto* value = make(Kind::Integer);
    value->integer = integer;
    push(value);
  }
  void push_small(uint64_t integer) {
    auto*& value = small_[integer];
    if (!value) {
      value = make(Kind::Integer);
      value->integer = static_cast<int64_t>(integer);
    }
    push(value);
  }
  void push_long(std::string_view bytes) {  // two's complement, little-endian, of any length
    if (bytes.size() > 8) {
      push(make(Kind::Other));
      return;
    }
    uint64_t value = !bytes.empty() && (bytes.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
    push_integer(static_cast<int64_t>(value));
  }
  void push_real() {  // big-endian
    uint64_t bits = 0;
    for (const char byte : take(8)) bits = bits << 8 | static_cast<uint8_t>(byte);
    auto* value = make(Kind::Real);
    value->real = std::bit_cast<double>(bits);
    push(value);
  }
  void push_text(Kind kind, std::string_view text) {
    auto* value = make(kind);
    value->text = text;
    push(value);
  }
  void push_items(Kind kind, std::vector<PickleValue*> items) {
    auto* value = make(kind);
    value->items = std::move(items);
    push(value);
  }
  // Refers to the tuple instead of copying its items, because many values may refer to the same tuple.
  void push_tuple(Kind kind, const PickleValue* tuple) {
    auto* value = make(kind);
    value->tuple = tuple;
    push(value);
  }
  void push_pairs(const std::vector<PickleValue*>& items) {
    push_items(Kind::Dict, {});
    add_items(Kind::Dict, items);
  }
  void push_global(std::string_view module, std::string_view name) {
    if (module.size() + name.size() >= kLongestGlobal) fail("a global with a very long name");
    const auto& full_name = *globals_.insert(fmt::format("{}.{}", module, name)).first;
    if (!allowed_(full_name)) {
      throw PickleError(fmt::format("it needs the Python object {}", base::quote(full_name)));
    }
    auto* value = make(Kind::Global);
    value->text = full_name;
    push(value);
  }
  void push_call(const PickleValue* function, const PickleValue* arguments) {
    if (function->kind != Kind::Global || arguments->kind != Kind::Tuple) fail("a call of something else");
    // Dicts are filled by later opcodes, like plain ones.
    const bool ordered = function->text == "collections.OrderedDict";
    if (ordered && !arguments->items.empty()) fail("an OrderedDict as Python 2 writes it");
    if (ordered || function->text == "collections.defaultdict") return push_items(Kind::Dict, {});
    push_tuple(Kind::Call, arguments);
    stack_.back()->text = function->text;
  }
  void add_items(Kind kind, const std::vector<PickleValue*>& items) {
    auto* to = top();
    if (to->kind != kind) fail("items for a value that cannot hold them");
    if (kind == Kind::Dict && items.size() % 2 != 0) fail("a key without a value");
    to->items.insert(to->items.end(), items.begin(), items.end());
  }

  // Values below a mark cannot be accessed until the mark is removed.
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleValue* top() {
    if (stack_.size() <= floor()) fail("too little on its stack");
    return stack_.back();
  }
  PickleValue* pop() {
    auto* value = top();
    stack_.pop_back();
    return value;
  }
  std::vector<PickleValue*> pop_some(size_t count) {
    if (stack_.size() - floor() < count) fail("too little on its stack");
    std::vector<PickleValue*> taken(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return taken;
  }
  std::vector<PickleValue*> pop_to_mark() {
    if (marks_.empty()) fail("no mark where one is expected");
    auto taken = pop_some(stack_.size() - floor());
    marks_.pop_back();
    return taken;
  }

  void remember(uint64_t key) {
    memo_[key] = top();
    // Python stores each value once, after creating it.
    if (memo_.size() > values_.size()) fail("more references than values");
  }
  PickleValue* remembered(uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) fail("a reference to nothing");
    return found->second;
  }

  std::deque<PickleValue>& values_;
  std::set<std::string>& globals_;
  const size_t most_values_;
  std::string_view rest_;
  const std::function<bool(std::string_view)>& allowed_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleValue*> memo_;
  // Shared, because they are immutable.
  std::array<PickleValue*, 256> small_ = {};
  PickleValue* none_ = make(Kind::None);
  PickleValue* true_ = make_bool(true);
  PickleValue* false_ = make_bool(false);
  PickleValue* empty_tuple_ = make(Kind::Tuple);

  PickleValue* make_bool(bool yes) {
    auto* value = make(Kind::Bool);
    value->integer = yes ? 1 : 0;
    return value;
  }
};

Pickle::Pickle(std::string bytes, const std::function<bool(std::string_view)>& allowed)
    : bytes_(std::move(bytes)), root_(Machine(*this, allowed).run()) {}

}  // namespace lockstep::snapshot
