#include "snapshot/contents.h"

#include <algorithm>
#include <atomic>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>

#include <lockstep/error.h>
#include <lockstep/sharded_optimizer.h>

#include "base/error_text.h"
#include "base/log.h"
#include "base/printable.h"
#include "data/uncounted.h"
#include "snapshot/about.h"
#include "snapshot/optimizer_parts.h"
#include "snapshot/optimizer_state.h"
#include "snapshot/scheduler_state.h"

namespace lockstep::snapshot {

using nlohmann::json;

namespace {

constexpr const char* kSchedulers = "schedulers";

std::string prefix_of(const std::string& model) { return model.empty() ? "" : model + "."; }
std::string master_name(const std::string& parameter) { return fmt::format("masters/{}", parameter); }
std::string generator_name(int rank) { return fmt::format("generators/{}", rank); }

// The tensors of a model, each once, and the further names of shared tensors.
struct ModelTensors {
  NamedTensors tensors;
  std::vector<std::pair<std::string, std::string>> aliases;
};

ModelTensors tensors_of(const detail::ModelView& model) {
  ModelTensors all;
  std::unordered_map<const void*, std::string> first_names;
  const auto take = [&](const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) {
      if (!tensor.defined()) continue;
      const auto [first, is_new] = first_names.emplace(tensor.unsafeGetTensorImpl(), name);
      if (is_new) {
        all.tensors.emplace_back(name, tensor);
      } else if (first->second != name) {
        all.aliases.emplace_back(name, first->second);
      }
    }
  };
  take(model.parameters);
  take(model.buffers());
  return all;
}

// The parameters of all models, by their names in the document.
NamedTensors parameters_of(const std::vector<SnapshotPart>& parts) {
  NamedTensors all;
  for (const auto& part : parts) {
    const auto* model = std::get_if<detail::ModelView>(&part.thing());
    if (!model) continue;
    std::set<const void*> seen;
    for (const auto& [name, tensor] : model->parameters) {
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) {
        all.emplace_back(prefix_of(part.name()) + name, tensor);
      }
    }
  }
  return all;
}

void check_names(const Document& document) {
  std::set<std::string_view> names;
  for (const auto& entry : document.tensors) {
    if (names.insert(entry.name).second) continue;
    throw UsageError(base::compose(
        {.what = fmt::format("two tensors of the snapshot are named '{}'", base::printable(entry.name)),
         .hint = "give the parts different names"}));
  }
  try {
    document.about.dump();
  } catch (const json::exception& error) {
    throw UsageError(base::compose({.what = "a name or a value of the snapshot is not UTF-8 text",
                                    .evidence = error.what(),
                                    .hint = "store bytes as a tensor of the module, or encode them"}));
  }
}

class Lookup {
 public:
  explicit Lookup(const Document& document) {
    for (const auto& entry : document.tensors) tensors_.emplace(entry.name, &entry.tensor);
  }
  const at::Tensor* find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : found->second;
  }

 private:
  std::unordered_map<std::string_view, const at::Tensor*> tensors_;
};

const json& section(const json& about, const char* kind, const std::string& name) {
  static const json nothing;
  const auto found = about.find(kind);
  if (found == about.end()) return nothing;
  const auto part = found->find(name);
  return part == found->end() ? nothing : *part;
}

// For a run that has got a scheduler only now.
constexpr const char* kAddedScheduler =
    "if the run was saved without it so far, leave it out of this resume(), advance it to the current step "
    "(Scheduler::set_last_step; LibTorch's: call step() that often, before resume()), and give it to save() "
    "from now on; otherwise resume with the parts that were saved, under the same names";

[[noreturn]] void throw_missing(const json& about, const std::string& kind, const std::string& name) {
  std::vector<std::string> there;
  if (const auto parts = about.find(kind); parts != about.end()) {
    for (const auto& part : parts->items()) there.push_back("'" + base::printable(part.key()) + "'");
  }
  throw SnapshotError(base::compose(
      {.what = fmt::format("the snapshot has no part '{}' among its {}", name, kind),
       .evidence = there.empty() ? fmt::format("it has no {} at all", kind)
                                 : fmt::format("it has {}", fmt::join(there, ", ")),
       .hint = kind == kSchedulers ? kAddedScheduler
                                   : "resume with the parts that were saved, under the same names"}));
}

// For the command line: without --model, the model with the empty name is meant.
[[noreturn]] void throw_no_model(const json& about, const std::string& model) {
  std::vector<std::string> flags;
  std::vector<std::string> names;
  for (const auto& part : about.at("models").items()) {
    if (part.key().empty()) continue;
    names.push_back(base::quote(part.key()));
    flags.push_back("--model " + base::printable(part.key()));
  }
  if (about.at("models").contains("")) {
    names.emplace_back("one without a name");
    flags.emplace_back("leave --model out");
  }
  throw SnapshotError(base::compose(
      {.what = model.empty() ? "all models of the snapshot have names"
                             : fmt::format("the snapshot holds no model {}", base::quote(model)),
       .evidence = names.empty() ? "it holds none" : fmt::format("it holds {}", fmt::join(names, ", ")),
       .hint = fmt::format("{}", fmt::join(flags, ", or "))}));
}

std::string first_few(const std::vector<std::string>& lines) {
  constexpr size_t kShown = 5;
  const auto shown = std::min(lines.size(), kShown);
  auto text = fmt::format("{}", fmt::join(lines.begin(), lines.begin() + static_cast<int64_t>(shown), "; "));
  if (lines.size() > shown) text += fmt::format("; and {} more", lines.size() - shown);
  return text;
}

// False for tensors that are sparse, have no memory, or have elements that share memory.
bool can_be_written(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_meta()) return false;
  try {
    at::assert_no_internal_overlap(tensor);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

// The random state of a rank; nothing if the snapshot has none for it.
std::optional<at::Tensor> generator_in(const Lookup& lookup, int rank) {
  const auto* state = lookup.find(generator_name(rank));
  if (!state) return std::nullopt;
  try {
    // Tries it on a new generator of the same kind as the program's.
    at::detail::createCPUGenerator().set_state(*state);
  } catch (const c10::Error& error) {
    throw SnapshotError(base::compose(
        {.what = fmt::format("the random state of rank {} in the snapshot cannot be used", rank),
         .where = fmt::format("{} has the type and shape {}", generator_name(rank), describe(*state)),
         .evidence = error.what_without_backtrace(),
         .hint = "use another snapshot, or the version of LibTorch that wrote this one"}));
  }
  return *state;
}

// The pairs (destination, source) of one model. Throws an error that lists the differences.
std::vector<std::pair<at::Tensor, at::Tensor>> match_model(const SnapshotPart& part,
                                                           const detail::ModelView& model, const json& about,
                                                           const Lookup& lookup) {
  const auto& saved = section(about, "models", part.name());
  if (saved.is_null()) throw_missing(about, "models", part.name());
  std::set<std::string> unused;
  for (const auto& name : saved.at("tensors")) unused.insert(name.get<std::string>());
  const auto& aliases = saved.at("aliases");

  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  std::vector<std::string> differences;
  const auto [tensors, own_aliases] = tensors_of(model);
  for (const auto& [name, first] : own_aliases) unused.erase(name);  // Python's state dicts contain aliases
  for (const auto& [name, tensor] : tensors) {
    const auto stored = aliases.contains(name) ? aliases.at(name).get<std::string>() : name;
    unused.erase(stored);
    const auto* found = lookup.find(prefix_of(part.name()) + stored);
    if (!found) {
      differences.push_back(fmt::format("'{}' is not in the snapshot", name));
    } else if (!can_be_written(tensor)) {
      differences.push_back(
          fmt::format("'{}' is not a dense tensor here with separate memory for each element", name));
    } else if (found->sizes() != tensor.sizes() || found->scalar_type() != tensor.scalar_type()) {
      differences.push_back(
          fmt::format("'{}' is {} in the snapshot and {} here", name, describe(*found), describe(tensor)));
    } else {
      pairs.emplace_back(tensor, *found);
    }
  }
  for (const auto& name : unused) {
    differences.push_back(fmt::format("'{}' is not in this model", base::printable(name)));
  }
  if (!differences.empty()) {
    throw SnapshotError(
        base::compose({.what = fmt::format("the snapshot is of another model{}",
                                           part.name().empty() ? "" : " than '" + part.name() + "'"),
                       .evidence = first_few(differences),
                       .hint = "resume with the model that was saved, or start over in another directory"}));
  }
  return pairs;
}

// A later epoch is the next one. For an earlier one, the program has probably not set Position::epoch.
void warn_if_going_back(int64_t sampler_epoch, int64_t epoch) {
  static std::atomic<bool> warned = false;
  if (epoch >= sampler_epoch || warned.exchange(true)) return;
  base::log_warn(
      "{}", base::compose({.what = fmt::format("a run resumed from this snapshot starts at the beginning "
                                               "of epoch {}",
                                               epoch),
                           .evidence = fmt::format("its sampler is in epoch {} now", sampler_epoch),
                           .hint = "pass the epoch to save: {.epoch = epoch, .step = step}"}));
}

OptimizerState optimizer_in(const Document& document, const std::string& name, const json& about) {
  OptimizerState state{about, {}};
  const auto prefix = name + "/";
  for (const auto& entry : document.tensors) {
    if (entry.name.starts_with(prefix)) {
      state.tensors.emplace_back(entry.name.substr(prefix.size()), entry.tensor);
    }
  }
  return state;
}

// LibTorch's optimizers need the state of narrow parameters in their type.
OptimizerState in_types_of(OptimizerState state, const NamedTensors& parameters) {
  std::unordered_map<std::string, at::ScalarType> types;
  for (const auto& [name, parameter] : parameters) types.emplace(name, parameter.scalar_type());
  for (auto& [name, tensor] : state.tensors) {
    const auto type = types.find(name.substr(0, name.rfind('/')));
    if (type != types.end() && is_narrow(type->second) && tensor.scalar_type() == at::kFloat) {
      tensor = tensor.to(type->second);
    }
  }
  return state;
}

// A sharded optimizer takes the state from LibTorch's.
std::function<void()> prepare_any_optimizer(torch::optim::Optimizer& optimizer, const OptimizerState& state,
                                            const NamedTensors& names, const Lookup& lookup) {
  auto* const sharded = dynamic_cast<ShardedOptimizer*>(&optimizer);
  if (sharded == nullptr) return prepare_optimizer(optimizer, in_types_of(state, names), names);
  const std::shared_ptr<torch::optim::Optimizer> plain = sharded->blank_plain();
  ShardedOptimizer::Masters masters;
  for (const auto& [name, parameter] : names) {
    const auto* const master = lookup.find(master_name(name));
    if (master != nullptr && master->sizes() == parameter.sizes()) masters.emplace_back(parameter, *master);
  }
  return [sharded, plain, masters, change = prepare_optimizer(*plain, state, names)] {
    change();
    sharded->from_plain(*plain);
    sharded->set_masters(masters);
  };
}

}  // namespace

Gathered gather(const std::vector<SnapshotPart>& parts) {
  Gathered gathered;
  for (const auto& part : parts) {
    auto* const* const optimizer = std::get_if<torch::optim::Optimizer*>(&part.thing());
    auto* const sharded = optimizer != nullptr ? dynamic_cast<ShardedOptimizer*>(*optimizer) : nullptr;
    auto plain = sharded != nullptr
                     ? sharded->to_plain(ShardedOptimizer::Receivers::Rank0, ShardedOptimizer::States::Float)
                     : nullptr;
    gathered.parts.push_back(plain ? SnapshotPart(part.name(), *plain) : part);
    if (plain) gathered.made.push_back(std::move(plain));
    if (sharded == nullptr) continue;
    auto masters = sharded->masters(ShardedOptimizer::Receivers::Rank0);
    std::move(masters.begin(), masters.end(), std::back_inserter(gathered.masters));
  }
  return gathered;
}

Document capture(const Gathered& gathered, const Position& position,
                 const std::vector<at::Tensor>& generators) {
  const auto& parts = gathered.parts;
  Document document;
  auto& about = document.about;
  const auto parameters = parameters_of(parts);
  for (const auto& part : parts) {
    if (const auto* model = std::get_if<detail::ModelView>(&part.thing())) {
      const auto [tensors, aliases] = tensors_of(*model);
      auto& saved = about["models"][part.name()];
      saved = {{"tensors", json::array()}, {"aliases", json::object()}};
      for (const auto& [name, tensor] : tensors) {
        saved["tensors"].push_back(name);
        document.tensors.push_back({prefix_of(part.name()) + name, tensor.detach()});
      }
      for (const auto& [name, first] : aliases) saved["aliases"][name] = first;
    } else if (auto* const* optimizer = std::get_if<torch::optim::Optimizer*>(&part.thing())) {
      auto state = capture_optimizer(**optimizer, parameters);
      const bool made = std::any_of(gathered.made.begin(), gathered.made.end(),
                                    [&](const auto& each) { return each.get() == *optimizer; });
      about["optimizers"][part.name()] = std::move(state.about);
      for (auto& [name, tensor] : state.tensors) {
        document.tensors.push_back({part.name() + "/" + name, std::move(tensor), made});
      }
    } else if (const auto* scheduler = std::get_if<AnyScheduler>(&part.thing())) {
      about[kSchedulers][part.name()] = capture_scheduler(*scheduler);
    } else {
      const auto& sampler = *std::get<DistributedSampler*>(part.thing());
      auto state = sampler.state();
      if (state.epoch == position.epoch) {
        data::warn_if_uncounted(sampler);
      } else {
        warn_if_going_back(state.epoch, position.epoch);
        state.epoch = position.epoch;
        state.consumed = 0;
      }
      about["samplers"][part.name()] = to_json(state);
    }
  }
  for (const auto& [parameter, master] : gathered.masters) {
    const auto named =
        std::find_if(parameters.begin(), parameters.end(),
                     [&, &of = parameter](const auto& each) { return each.second.is_same(of); });
    if (named != parameters.end()) document.tensors.push_back({master_name(named->first), master, true});
  }
  for (size_t rank = 0; rank < generators.size(); ++rank) {
    document.tensors.push_back({generator_name(static_cast<int>(rank)), generators[rank]});
  }
  describe_run(about, position, static_cast<int>(generators.size()));
  check_names(document);
  return document;
}

Document copy_of(const Document& document) {
  Document copy{document.tensors, document.about};
  for (auto& [name, tensor, lasting] : copy.tensors) {
    if (!lasting) tensor = tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    lasting = true;
  }
  return copy;
}

std::function<void()> prepare_restore(const std::vector<SnapshotPart>& parts, const Document& document,
                                      int rank) {
  return understood([&]() -> std::function<void()> {
    const Lookup lookup(document);
    const auto parameters = parameters_of(parts);
    const bool imported = document.about.value("imported", false);
    // Restored first: a scheduler may set the learning rates of its optimizer, and those of the snapshot must
    // win.
    std::vector<std::function<void()>> rates, changes;
    for (const auto& part : parts) {
      if (const auto* model = std::get_if<detail::ModelView>(&part.thing())) {
        changes.emplace_back([pairs = match_model(part, *model, document.about, lookup)] {
          for (const auto& [to, from] : pairs) to.data().copy_(from);
        });
        continue;
      }
      auto* const* optimizer = std::get_if<torch::optim::Optimizer*>(&part.thing());
      const auto* scheduler = std::get_if<AnyScheduler>(&part.thing());
      const char* kind = optimizer ? "optimizers" : scheduler ? kSchedulers : "samplers";
      const auto& saved = section(document.about, kind, part.name());
      if (saved.is_null() && imported) continue;  // an imported model: the other parts start afresh
      if (saved.is_null()) throw_missing(document.about, kind, part.name());
      if (optimizer) {
        changes.emplace_back(prepare_any_optimizer(**optimizer, optimizer_in(document, part.name(), saved),
                                                   parameters, lookup));
      } else if (scheduler) {
        rates.emplace_back(prepare_scheduler(*scheduler, saved));
      } else {
        auto* sampler = std::get<DistributedSampler*>(part.thing());
        const auto state = sampler_from(saved);
        sampler->check(state);
        changes.emplace_back([sampler, state] { sampler->restore(state); });
      }
    }
    if (const auto generator = generator_in(lookup, rank)) {
      changes.emplace_back([state = *generator] {
        auto of_program = at::detail::getDefaultCPUGenerator();
        const std::lock_guard<std::mutex> lock(of_program.mutex());
        of_program.set_state(state);
      });
    }
    return [rates = std::move(rates), changes = std::move(changes)] {
      const at::NoGradGuard no_grad;
      for (const auto& change : rates) change();
      for (const auto& change : changes) change();
    };
  });
}

std::vector<Entry> model_in(const Document& document, const std::string& model) {
  return understood([&] {
    std::vector<Entry> entries;
    const auto& saved = section(document.about, "models", model);
    if (saved.is_null()) throw_no_model(document.about, model);
    const Lookup lookup(document);
    const auto take = [&](const std::string& name, const std::string& stored) {
      if (const auto* tensor = lookup.find(prefix_of(model) + stored)) entries.push_back({name, *tensor});
    };
    for (const auto& name : saved.at("tensors")) take(name, name);
    for (const auto& [name, first] : saved.at("aliases").items()) take(name, first);
    return entries;
  });
}

Document import_model(const NamedTensors& tensors) {
  Document document;
  auto& about = document.about;
  auto& model = about["models"][""];
  model = {{"tensors", json::array()}, {"aliases", json::object()}};
  // In a .pt file, one tensor may have any number of names. Storing it for each name could fill the disk.
  using View = std::tuple<const void*, at::ScalarType, int64_t, std::vector<int64_t>, std::vector<int64_t>>;
  std::map<View, std::string> first_names;
  for (const auto& [name, tensor] : tensors) {
    const View view(tensor.storage().unsafeGetStorageImpl(), tensor.scalar_type(), tensor.storage_offset(),
                    tensor.sizes().vec(), tensor.strides().vec());
    const auto [first, is_new] = first_names.emplace(view, name);
    if (is_new) {
      document.tensors.push_back({name, tensor});
      model["tensors"].push_back(name);
    } else {
      model["aliases"][name] = first->second;
    }
  }
  about["imported"] = true;
  describe_run(about, {}, 0);
  check_names(document);
  return document;
}

}  // namespace lockstep::snapshot
