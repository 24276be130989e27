// How DistributedDataParallel and Snapshots access a module, and which modules they accept. Internal.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <lockstep/cxx20.h>

namespace torch::nn {
class AnyModule;
}

namespace lockstep {

class DdpBase;

namespace detail {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// The properties of a module that DDP uses.
struct ModelView {
  NamedTensors parameters;
  std::function<NamedTensors()> present_parameters;  // the current ones: modules may replace their parts
  std::function<NamedTensors()> buffers;             // the current ones: modules reassign them
  std::function<bool()> is_training;
  std::vector<std::string> sparse;  // names of parameters that will get sparse gradients
};
ModelView view_of(const std::shared_ptr<torch::nn::Module>& module);

// How to access a module that is not a torch::nn::Module. lockstep/jit.h specialises it for TorchScript.
template <class Module>
struct Viewer {
  static constexpr bool handle = false;  // Module is a cheap handle: a copy refers to the same module
  static ModelView view(const std::shared_ptr<Module>& module) { return view_of(module); }
};

template <class T>
concept SmartPointer = requires {
  typename T::element_type;
  std::declval<const T&>().get();
};
template <class T>
concept Holder = requires {
  typename T::ContainedType;
};

// The class of the module that DistributedDataParallel wraps if it is constructed from a Given, which is an
// lvalue reference for a named object. If there is none, a compile-time error says why.
template <class Given>
auto module_of() {
  using T = std::remove_cvref_t<Given>;
  constexpr bool never = sizeof(T*) == 0;
  using Nothing = std::type_identity<torch::nn::Module>;
  if constexpr (Holder<T>) {
    return std::type_identity<typename T::ContainedType>{};
  } else if constexpr (std::is_same_v<T, torch::nn::AnyModule>) {
    static_assert(never,
                  "DistributedDataParallel cannot wrap a torch::nn::AnyModule, whose forward has no types: "
                  "pass the module itself, before it is put into the AnyModule.");
    return Nothing{};
  } else if constexpr (std::derived_from<T, DdpBase>) {
    return Nothing{};  // moved, not wrapped; clang 14 instantiates this nevertheless
  } else if constexpr (SmartPointer<T>) {
    static_assert(
        !(requires { typename T::deleter_type; }) || !std::is_lvalue_reference_v<Given>,
        "DistributedDataParallel cannot share a module with a std::unique_ptr: write *model (the wrapper "
        "does not own it then), std::move(model), or create it with std::make_shared.");
    return std::type_identity<typename T::element_type>{};
  } else if constexpr (std::is_pointer_v<T>) {
    static_assert(never,
                  "DistributedDataParallel takes no plain pointer: write *model (the wrapper does not own it "
                  "then), or create the module with std::make_shared.");
    return Nothing{};
  } else if constexpr (std::derived_from<T, torch::nn::Module>) {
    static_assert(std::is_lvalue_reference_v<Given>,
                  "DistributedDataParallel cannot wrap a temporary module, which is gone at the end of the "
                  "statement: pass std::make_shared<Net>(…), or a named module.");
    static_assert(!std::is_const_v<std::remove_reference_t<Given>>,
                  "DistributedDataParallel cannot train a const module.");
    return std::type_identity<T>{};
  } else if constexpr (Viewer<T>::handle) {
    return std::type_identity<T>{};
  } else {
    static_assert(
        never,
        "DistributedDataParallel wraps a torch::nn::Module: its std::shared_ptr, its holder (TORCH_MODULE), "
        "or the module itself by name; with <lockstep/jit.h> also a torch::jit::Module.");
    return Nothing{};
  }
}
template <class Given>
using ModuleOf = typename decltype(module_of<Given>())::type;

}  // namespace detail

}  // namespace lockstep
