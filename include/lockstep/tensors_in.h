// Finds the tensors in the return value of a module's forward. Searches tensors, optionals, pairs and tuples,
// ranges (vectors, arrays, and the values of maps), and any nesting of these.
//
// For a type of your own, write in its namespace
//
//   template <class Visit>
//   void visit_tensors(const Output& output, Visit&& visit) { visit(output.logits); visit(output.hidden); }
//
// where visit accepts every type that can be searched. Values of unknown types are taken to hold no tensors.
#pragma once

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Optional.h>

#include <lockstep/cxx20.h>

namespace lockstep {

namespace detail {

template <class T>
concept HasOwnVisit = requires(const T& value, void (*visit)(const at::Tensor&)) {
  visit_tensors(value, visit);  // by argument-dependent lookup
};
template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};
template <class T>
concept OptionalLike = requires(const T& value) {
  { value.has_value() } -> std::convertible_to<bool>;
  *value;
};
template <class T>
concept RangeLike = requires(const T& value) {
  value.begin();
  value.end();
};

// Skips ranges of numbers (e.g. strings): they hold no tensors.
template <class T>
void find_tensors(const T& value, std::vector<at::Tensor>& found) {
  const auto visit = [&found](const auto& part) { find_tensors(part, found); };
  if constexpr (HasOwnVisit<T>) {
    visit_tensors(value, visit);
  } else if constexpr (std::is_convertible_v<const T&, const at::Tensor&>) {
    found.push_back(value);
  } else if constexpr (std::is_same_v<T, c10::IValue>) {
    value.visit([&found](const c10::IValue& part) {
      if (part.isTensor()) found.push_back(part.toTensor());
      return false;
    });
  } else if constexpr (OptionalLike<T>) {
    if (value.has_value()) visit(*value);
  } else if constexpr (TupleLike<T> && !RangeLike<T>) {
    std::apply([&](const auto&... parts) { (visit(parts), ...); }, value);
  } else if constexpr (RangeLike<T>) {
    using Part = std::remove_cvref_t<decltype(*value.begin())>;
    // A range of its own type (a filesystem path) would recurse without end.
    if constexpr (!std::is_arithmetic_v<Part> && !std::is_same_v<Part, T>) {
      for (const auto& part : value) visit(part);
    }
  }
}

}  // namespace detail

template <class T>
std::vector<at::Tensor> tensors_in(const T& value) {
  std::vector<at::Tensor> found;
  detail::find_tensors(value, found);
  return found;
}

}  // namespace lockstep
