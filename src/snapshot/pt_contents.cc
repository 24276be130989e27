#include "snapshot/pt_contents.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <set>
#include <span>
#include <string_view>

#include "base/printable.h"
#include "snapshot/pickle_reader.h"
#include "snapshot/pt_dtypes.h"

namespace lockstep::snapshot {

namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kTensor = "torch._utils._rebuild_tensor_v2",
                           kOldTensor = "torch._utils._rebuild_tensor",
                           kParameter = "torch._utils._rebuild_parameter",
                           kParameterWithState = "torch._utils._rebuild_parameter_with_state",
                           kWithAttributes = "torch._tensor._rebuild_from_type_v2";

// Objects that checkpoints contain besides tensors and plain values. All of them are ignored.
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
// torch.float32 and the like, as values.
constexpr std::array<std::string_view, 12> kDtypes = {"float32", "float64", "float16",   "bfloat16",
                                                      "int64",   "int32",   "int16",     "int8",
                                                      "uint8",   "bool",    "complex64", "complex128"};

constexpr size_t kMostPtDimensions = 64;  // the limit of LibTorch's loops
constexpr size_t kMostTensors = 1'000'000;
constexpr size_t kLongestKey = 100;  // of a storage; Python numbers them
// Tensors may overlap, e.g. a weight with its parts or its transpose. All tensors together may take at most
// this many times the size of the file.
constexpr uint64_t kMostTimesFile = 4;

constexpr auto kSaveStateDict = "save only the tensors in Python: torch.save(model.state_dict(), 'new.pt')";

[[noreturn]] void fail_tensor(std::string_view name, const std::string& wrong) {
  throw PtError(fmt::format("its tensor {} {}", base::quote(name), wrong), kSaveStateDict);
}

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

// The arguments of the call that creates the tensor: (storage, offset, sizes, strides, …). Nothing if the
// value is not a tensor.
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
      return tensor_in(&value) ? "a tensor" : base::quote(value.text);
    case Kind::Global:
      return base::quote(value.text);
    case Kind::Persistent:
      return "a storage";
    case Kind::Other:
      break;
  }
  return "another object";
}

std::string contents_of(const PickleValue& dict) {
  constexpr size_t kShown = 12;
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(dict.items.size(), 2 * kShown); i += 2) {
    const auto& key = *dict.items[i];
    lines.push_back(fmt::format("{}: {}",
                                key.kind == Kind::Text      ? base::quote(key.text)
                                : key.kind == Kind::Integer ? std::to_string(key.integer)
                                                            : describe(key),
                                describe(*dict.items[i + 1])));
  }
  if (dict.items.size() > 2 * kShown) lines.push_back("…");
  return fmt::format("{}", fmt::join(lines, ", "));
}

const PickleValue& find_state_dict(const PickleValue& root) {
  const bool empty = root.kind == Kind::Dict && root.items.empty();
  if (empty || is_state_dict(root)) return root;
  if (root.kind != Kind::Dict) {
    throw PtError(fmt::format("it holds {}, not a state dict", describe(root)), kSaveStateDict);
  }
  // The same state dict may appear under several keys.
  std::set<const PickleValue*> looked_at, found;
  for (size_t i = 1; i < root.items.size(); i += 2) {
    const auto* value = root.items[i];
    if (looked_at.insert(value).second && is_state_dict(*value)) found.insert(value);
  }
  if (found.size() == 1) return **found.begin();
  throw PtError(fmt::format("it holds {}: {}", found.empty() ? "no state dict" : "several state dicts",
                            contents_of(root)),
                "save the one you want in Python: torch.save(torch.load('all.pt')['model'], 'new.pt')");
}

std::vector<int64_t> integers(std::string_view name, const PickleValue& value) {
  // torch.Size is a call with a tuple as its argument.
  const bool is_size =
      value.kind == Kind::Call && value.text == "torch.Size" && value.tuple->items.size() == 1;
  const auto& list = is_size ? *value.tuple->items[0] : value;
  const bool well_formed = (list.kind == Kind::Tuple || list.kind == Kind::List) &&
                           std::all_of(list.items.begin(), list.items.end(),
                                       [](const auto* item) { return item->kind == Kind::Integer; });
  if (!well_formed) fail_tensor(name, "has sizes or strides that are not integers");
  std::vector<int64_t> all;
  for (const auto* item : list.items) all.push_back(item->integer);
  return all;
}

// Collects the tensors of one state dict.
class Collector {
 public:
  Collector(uint64_t pickle_bytes, uint64_t file_bytes,
            const std::function<std::optional<uint64_t>(const std::string&)>& storage_bytes)
      : most_dimensions_(pickle_bytes),
        most_bytes_(file_bytes * kMostTimesFile),
        storage_bytes_(storage_bytes) {}

  void add(std::string_view name, Arguments arguments) {
    if (contents_.names.size() == kMostTensors) {
      throw PtError(fmt::format("it has more than {} tensors", kMostTensors), kSaveStateDict);
    }
    auto view = view_of(name, arguments);
    const auto [known, is_new] = index_of_.emplace(std::move(view), contents_.views.size());
    if (is_new) {
      account_for(name, known->first);
      contents_.views.push_back(known->first);
    }
    contents_.names.emplace_back(name, known->second);
  }
  PtContents take() && { return std::move(contents_); }

 private:
  static PtView view_of_storage(std::string_view name, const std::vector<PickleValue*>& id) {
    const bool well_formed = id.size() >= 5 && id[0]->text == "storage" && id[1]->kind == Kind::Global &&
                             id[2]->kind == Kind::Text && id[2]->text.size() <= kLongestKey &&
                             id[4]->kind == Kind::Integer;
    const auto dtype = well_formed ? dtype_of_storage(id[1]->text) : std::nullopt;
    if (!dtype) fail_tensor(name, "has a storage of an unknown type");
    return {.storage = std::string(id[2]->text), .dtype = *dtype, .storage_elements = id[4]->integer};
  }

  PtView view_of(std::string_view name, Arguments arguments) {
    if (arguments.size() < 4 || arguments[0]->kind != Kind::Persistent ||
        arguments[1]->kind != Kind::Integer) {
      fail_tensor(name, "has an unknown description");
    }
    auto view = view_of_storage(name, arguments[0]->tuple->items);
    check_storage(name, view);
    view.offset = arguments[1]->integer;
    view.sizes = integers(name, *arguments[2]);
    view.strides = integers(name, *arguments[3]);
    check_reach(name, view);
    return view;
  }

  void check_storage(std::string_view name, const PtView& view) {
    const auto bytes = storage_bytes_(view.storage);
    if (!bytes) {
      throw PtError(fmt::format("it has no entry {}", base::quote("data/" + view.storage)),
                    "the file is damaged: copy it again, or write it again with torch.save");
    }
    const auto item_bytes = c10::elementSize(view.dtype);
    const auto count = view.storage_elements;
    if (count < 0 || static_cast<uint64_t>(count) != *bytes / item_bytes || *bytes % item_bytes != 0) {
      fail_tensor(name, fmt::format("should have a storage of {} elements, and the file has {} bytes of it",
                                    count, *bytes));
    }
    const auto [known, is_new] = dtypes_.emplace(view.storage, view.dtype);
    if (!is_new && known->second != view.dtype) fail_tensor(name, "uses its storage as another type");
  }

  static void check_reach(std::string_view name, const PtView& view) {
    const auto& [storage, dtype, elements, offset, sizes, strides] = view;
    if (sizes.size() != strides.size() || sizes.size() > kMostPtDimensions) {
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
    if (overflow || (count == 0 ? offset > elements : last >= elements)) {
      fail_tensor(name, fmt::format("reaches outside of its storage of {} elements (offset {}, sizes [{}], "
                                    "strides [{}])",
                                    elements, offset, fmt::join(sizes, ", "), fmt::join(strides, ", ")));
    }
    // Otherwise a few bytes could expand to any amount of memory.
    if (count > elements) {
      fail_tensor(name, fmt::format("is expanded from {} elements to {}", elements, count));
    }
  }

  // Many tensors on one storage could also expand, as could many tensors that share one tuple of sizes.
  void account_for(std::string_view name, const PtView& view) {
    uint64_t count = 1;
    for (const auto size : view.sizes) count *= static_cast<uint64_t>(size);
    bytes_ += count * c10::elementSize(view.dtype);
    if (bytes_ > most_bytes_) {
      fail_tensor(
          name,
          fmt::format("exceeds the limit: the tensors overlap too much, and take more than {} times the "
                      "size of the file",
                      kMostTimesFile));
    }
    dimensions_ += view.sizes.size();
    if (dimensions_ > most_dimensions_)
      fail_tensor(name, "has more dimensions than the file's size justifies");
  }

  PtContents contents_;
  std::map<PtView, size_t> index_of_;
  std::map<std::string, at::ScalarType> dtypes_;  // by storage
  uint64_t dimensions_ = 0, bytes_ = 0;
  const uint64_t most_dimensions_, most_bytes_;
  const std::function<std::optional<uint64_t>(const std::string&)>& storage_bytes_;
};

}  // namespace

PtContents read_pt_contents(std::string pickle, uint64_t file_bytes,
                            const std::function<std::optional<uint64_t>(const std::string&)>& storage_bytes) {
  Collector collector(pickle.size(), file_bytes, storage_bytes);
  try {
    const Pickle parsed(std::move(pickle), allowed);
    const auto& dict = find_state_dict(parsed.root());
    std::set<std::string_view> names;
    for (size_t i = 0; i < dict.items.size(); i += 2) {
      const auto name = dict.items[i]->text;
      if (!names.insert(name).second) throw PickleError(fmt::format("it has {} twice", base::quote(name)));
      collector.add(name, *tensor_in(dict.items[i + 1]));
    }
  } catch (const PickleError& error) {
    throw PtError(error.what(), kSaveStateDict);
  }
  return std::move(collector).take();
}

}  // namespace lockstep::snapshot
