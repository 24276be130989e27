#include "snapshot/pt_reader.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <optional>
#include <set>
#include <span>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "snapshot/pickle_reader.h"
#include "snapshot/pt_dtypes.h"
#include "snapshot/safetensors.h"
#include "snapshot/zip_reader.h"

namespace lockstep::snapshot {

namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kTensor = "torch._utils._rebuild_tensor_v2",
                           kOldTensor = "torch._utils._rebuild_tensor",
                           kParameter = "torch._utils._rebuild_parameter",
                           kParameterWithState = "torch._utils._rebuild_parameter_with_state",
                           kWithAttributes = "torch._tensor._rebuild_from_type_v2";

// What checkpoints hold beside tensors and plain values. None of it is looked at.
constexpr std::array<std::string_view, 14> kHarmless = {"collections.OrderedDict",
                                                        "collections.defaultdict",
                                                        "collections.Counter",
                                                        "_codecs.encode",
                                                        "argparse.Namespace",
                                                        "pathlib.PosixPath",
                                                        "numpy.dtype",
                                                        "numpy.core.multiarray.scalar",
                                                        "numpy._core.multiarray.scalar",
                                                        "torch.Size",
                                                        "torch.device",
                                                        "torch.Tensor",
                                                        "torch.nn.parameter.Parameter",
                                                        "torch.nn.parameter.Buffer"};
constexpr std::array<std::string_view, 10> kBuiltins = {"set",  "frozenset", "dict", "list", "int",
                                                        "long", "float",     "bool", "str",  "bytes"};
// torch.float32 and its like, as values.
constexpr std::array<std::string_view, 12> kDtypes = {"float32", "float64", "float16",   "bfloat16",
                                                      "int64",   "int32",   "int16",     "int8",
                                                      "uint8",   "bool",    "complex64", "complex128"};

// A pickle of this size describes some hundred thousand tensors.
constexpr uint64_t kLargestPickle = uint64_t{64} << 20;
constexpr size_t kMostDimensions = 64;

std::optional<at::ScalarType> dtype_of_storage(std::string_view global) {
  for (const std::string_view prefix : {"torch.cuda.", "torch."}) {
    if (!global.starts_with(prefix)) continue;
    for (const auto& known : kPtDtypes) {
      if (global.substr(prefix.size()) == known.storage) return known.dtype;
    }
  }
  return std::nullopt;
}

bool allowed(std::string_view global) {
  constexpr std::array kRebuild = {kTensor, kOldTensor, kParameter, kParameterWithState, kWithAttributes};
  const auto among = [&](std::string_view module, const auto& names) {
    return global.starts_with(module) &&
           std::find(names.begin(), names.end(), global.substr(module.size())) != names.end();
  };
  return among("", kRebuild) || among("", kHarmless) || among("torch.", kDtypes) ||
         dtype_of_storage(global) || among("builtins.", kBuiltins) || among("__builtin__.", kBuiltins);
}

using Arguments = std::span<PickleValue* const>;

// The arguments of the call that makes the tensor itself: (storage, offset, sizes, strides, …). Nothing for
// what is not a tensor.
std::optional<Arguments> tensor_in(const PickleValue* value) {
  constexpr int kMostWrappers = 4;
  for (int i = 0; i < kMostWrappers && value->kind == Kind::Call; ++i) {
    const auto& items = value->tuple->items;
    if (value->text == kTensor || value->text == kOldTensor) return items;
    if (value->text == kWithAttributes) {
      const bool plain = items.size() == 4 && items[0]->kind == Kind::Global && items[0]->text == kTensor &&
                         items[2]->kind == Kind::Tuple;
      if (!plain) return std::nullopt;
      return items[2]->items;
    }
    if ((value->text != kParameter && value->text != kParameterWithState) || items.empty())
      return std::nullopt;
    value = items[0];
  }
  return std::nullopt;
}

bool is_state_dict(const PickleValue& value) {
  if (value.kind != Kind::Dict || value.items.empty()) return false;
  for (size_t i = 0; i < value.items.size(); i += 2) {
    if (value.items[i]->kind != Kind::Text || !tensor_in(value.items[i + 1])) return false;
  }
  return true;
}

std::string describe(const PickleValue& value) {
  switch (value.kind) {
    case Kind::None:
      return "None";
    case Kind::Bool:
      return "a bool";
    case Kind::Integer:
      return "an int";
    case Kind::Real:
      return "a float";
    case Kind::Text:
      return "a str";
    case Kind::Bytes:
      return "bytes";
    case Kind::Tuple:
      return fmt::format("a tuple of {}", value.items.size());
    case Kind::List:
      return fmt::format("a list of {}", value.items.size());
    case Kind::Dict:
      return fmt::format("{} of {}", is_state_dict(value) ? "a state dict" : "a dict",
                         value.items.size() / 2);
    case Kind::Call:
      return tensor_in(&value) ? "a tensor" : printable(value.text);
    case Kind::Global:
      return printable(value.text);
    case Kind::Persistent:
      return "a storage";
    case Kind::Other:
      break;
  }
  return "another object";
}

class PtReader {
 public:
  explicit PtReader(const std::filesystem::path& path) : path_(path), zip_(path) {
    const auto& first = zip_.first_name();
    prefix_ = first.substr(0, first.find('/') + 1);
    if (zip_.contains(prefix_ + "constants.pkl")) {
      fail("it is a TorchScript archive, as torch.jit.save and torch::save of C++ write them",
           "save its state dict in Python: torch.save(torch.jit.load('model.pt').state_dict(), 'new.pt')");
    }
    if (prefix_.empty() || !zip_.contains(prefix_ + "data.pkl")) {
      fail("it is a zip, but not one of torch.save", "give it a file that torch.save wrote");
    }
    const auto order = prefix_ + "byteorder";
    if (zip_.contains(order) && zip_.size(order) <= 16 && zip_.read_text(order) != "little") {
      fail("its numbers are not little-endian", "write it again on another machine");
    }
  }

  NamedTensors read() {
    const auto name = prefix_ + "data.pkl";
    if (zip_.size(name) > kLargestPickle) fail("its pickle is too large", kSaveStateDict);
    const auto bytes = zip_.read_text(name);
    try {
      const Pickle pickle(bytes, allowed);
      const auto& dict = find_state_dict(pickle.root());
      NamedTensors tensors;
      std::set<std::string_view> names;
      for (size_t i = 0; i < dict.items.size(); i += 2) {
        const auto& key = dict.items[i]->text;
        if (!names.insert(key).second) throw PickleError(fmt::format("it has {} twice", printable(key)));
        tensors.emplace_back(key, make_tensor(key, *tensor_in(dict.items[i + 1])));
      }
      return tensors;
    } catch (const PickleError& error) {
      fail(error.what(), kSaveStateDict);
    }
  }

 private:
  static constexpr auto kSaveStateDict =
      "save only the tensors in Python: torch.save(model.state_dict(), 'new.pt')";

  [[noreturn]] void fail(const std::string& evidence, const std::string& hint) const {
    throw SnapshotError(base::compose(
        {.what = fmt::format("cannot read {}", path_.string()), .evidence = evidence, .hint = hint}));
  }
  [[noreturn]] void fail_tensor(const std::string& name, const std::string& wrong) const {
    fail(fmt::format("its tensor {} {}", printable(name), wrong), kSaveStateDict);
  }

  const PickleValue& find_state_dict(const PickleValue& root) const {
    const bool empty = root.kind == Kind::Dict && root.items.empty();
    if (empty || is_state_dict(root)) return root;
    if (root.kind != Kind::Dict) {
      fail(fmt::format("it holds {}, not a state dict", describe(root)), kSaveStateDict);
    }
    // One may be there under several keys.
    std::set<const PickleValue*> looked_at, found;
    for (size_t i = 1; i < root.items.size(); i += 2) {
      const auto* value = root.items[i];
      if (looked_at.insert(value).second && is_state_dict(*value)) found.insert(value);
    }
    if (found.size() == 1) return **found.begin();
    fail(fmt::format("it holds {}: {}", found.empty() ? "no state dict" : "several state dicts",
                     contents_of(root)),
         "save the one you want in Python: torch.save(torch.load('all.pt')['model'], 'new.pt')");
  }

  static std::string contents_of(const PickleValue& dict) {
    constexpr size_t kShown = 12;
    std::vector<std::string> lines;
    for (size_t i = 0; i < std::min(dict.items.size(), 2 * kShown); i += 2) {
      const auto& key = *dict.items[i];
      lines.push_back(fmt::format("{}: {}",
                                  key.kind == Kind::Text      ? printable(key.text)
                                  : key.kind == Kind::Integer ? std::to_string(key.integer)
                                                              : describe(key),
                                  describe(*dict.items[i + 1])));
    }
    if (dict.items.size() > 2 * kShown) lines.push_back("…");
    return fmt::format("{}", fmt::join(lines, ", "));
  }

  at::Tensor make_tensor(const std::string& name, Arguments arguments) {
    if (arguments.size() < 4 || arguments[0]->kind != Kind::Persistent ||
        arguments[1]->kind != Kind::Integer) {
      fail_tensor(name, "is not described as tensors are");
    }
    const auto storage = storage_of(name, arguments[0]->tuple->items);
    const auto offset = arguments[1]->integer;
    const auto sizes = integers(name, *arguments[2]);
    const auto strides = integers(name, *arguments[3]);
    if (sizes.size() != strides.size() || sizes.size() > kMostDimensions) {
      fail_tensor(name, fmt::format("has {} sizes and {} strides", sizes.size(), strides.size()));
    }
    int64_t count = 1, last = offset;
    bool overflow = offset < 0;
    for (size_t d = 0; d < sizes.size(); ++d) {
      int64_t reach = 0;
      overflow |= sizes[d] < 0 || strides[d] < 0 || __builtin_mul_overflow(count, sizes[d], &count) ||
                  __builtin_mul_overflow(std::max<int64_t>(sizes[d] - 1, 0), strides[d], &reach) ||
                  __builtin_add_overflow(last, reach, &last);
    }
    if (overflow || (count == 0 ? offset > storage.numel() : last >= storage.numel())) {
      fail_tensor(name,
                  fmt::format("reaches outside of its storage of {} elements (offset {}, sizes [{}], "
                              "strides [{}])",
                              storage.numel(), offset, fmt::join(sizes, ", "), fmt::join(strides, ", ")));
    }
    // A few bytes could stand for any amount of memory.
    if (count > storage.numel()) {
      fail_tensor(name, fmt::format("is expanded: {} elements stand for {}", storage.numel(), count));
    }
    return at::empty({0}, storage.options()).set_(storage.storage(), offset, sizes, strides);
  }

  std::vector<int64_t> integers(const std::string& name, const PickleValue& value) const {
    // A torch.Size is a call with a tuple.
    const bool is_size =
        value.kind == Kind::Call && value.text == "torch.Size" && value.tuple->items.size() == 1;
    const auto& list = is_size ? *value.tuple->items[0] : value;
    const bool well_formed = (list.kind == Kind::Tuple || list.kind == Kind::List) &&
                             std::all_of(list.items.begin(), list.items.end(),
                                         [](const auto* item) { return item->kind == Kind::Integer; });
    if (!well_formed) fail_tensor(name, "has sizes or strides that are no numbers");
    std::vector<int64_t> all;
    for (const auto* item : list.items) all.push_back(item->integer);
    return all;
  }

  // One-dimensional; read once, however many tensors lie in it.
  at::Tensor storage_of(const std::string& name, const std::vector<PickleValue*>& id) {
    const bool well_formed = id.size() >= 5 && id[0]->text == "storage" && id[1]->kind == Kind::Global &&
                             id[2]->kind == Kind::Text && id[4]->kind == Kind::Integer;
    const auto dtype = well_formed ? dtype_of_storage(id[1]->text) : std::nullopt;
    if (!dtype) fail_tensor(name, "has a storage of an unknown kind");
    const auto count = id[4]->integer;
    const auto entry = prefix_ + "data/" + id[2]->text;
    const auto bytes = zip_.size(entry);
    const auto item_bytes = c10::elementSize(*dtype);
    if (count < 0 || static_cast<uint64_t>(count) != bytes / item_bytes || bytes % item_bytes != 0) {
      fail_tensor(name, fmt::format("should have a storage of {} elements, and the file has {} bytes of it",
                                    count, bytes));
    }
    auto& storage = storages_[id[2]->text];
    if (!storage.defined()) {
      storage = at::empty({count}, *dtype);
      zip_.read(entry, storage.data_ptr());
      // A bool with another value is undefined behaviour in C++.
      if (*dtype == at::kBool && storage.view(at::kByte).gt(1).any().item<bool>()) {
        fail_tensor(name, "has values that are neither true nor false");
      }
    }
    if (storage.scalar_type() != *dtype) fail_tensor(name, "sees its storage as another type");
    return storage;
  }

  std::filesystem::path path_;
  ZipReader zip_;
  std::string prefix_;
  std::map<std::string, at::Tensor> storages_;  // by key
};

}  // namespace

NamedTensors read_pt(const std::filesystem::path& path) {
  const at::NoGradGuard no_grad;
  return PtReader(path).read();
}

NamedTensors strip_prefix(NamedTensors tensors, std::string_view prefix) {
  const bool all = std::all_of(tensors.begin(), tensors.end(),
                               [&](const auto& named) { return named.first.starts_with(prefix); });
  if (!all) return tensors;
  for (auto& [name, tensor] : tensors) name.erase(0, prefix.size());
  return tensors;
}

}  // namespace lockstep::snapshot
