// The control channel of a group, over which the ranks exchange small typed values.
//
// What the ranks agree on (a plan, who takes part, whether something failed) is never sent as tensors over
// the data transport: that transport may support only device memory, and after a failure it cannot report the
// failure. The channel uses shared memory on one machine (shm/control.h), otherwise the store
// (store_control.h).
//
// Every exchange is a collective: all ranks must make the same exchanges in the same order, and in the same
// order relative to the group's data calls. Each has a label, which is a string literal. If the labels
// differ, or if a rank makes a data call instead, the ranks throw MismatchError. Exchanges block; each has
// the group's timeout.
//
// Not thread-safe.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <lockstep/process_group.h>

namespace lockstep::comm {

template <class T>
concept Plain =
    std::is_trivially_copyable_v<T> && std::is_default_constructible_v<T> && !std::is_same_v<T, bool>;

class Control {
 public:
  Control(int rank, int world_size) : rank_(rank), world_size_(world_size) {}
  virtual ~Control() = default;
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // The values of all ranks, by rank.
  template <Plain T>
  std::vector<T> gather(const char* label, const T& mine) {
    std::vector<T> all;
    for (const auto& bytes :
         exchange_sized(label, {reinterpret_cast<const char*>(&mine), sizeof mine}, sizeof mine)) {
      std::memcpy(&all.emplace_back(), bytes.data(), sizeof(T));
    }
    return all;
  }
  // The lists of all ranks, by rank; their lengths may differ.
  template <Plain T>
  std::vector<std::vector<T>> gather_lists(const char* label, const std::vector<T>& mine) {
    std::vector<std::vector<T>> all;
    for (const auto& bytes : exchange(label, bytes_of(mine))) all.push_back(list_in<T>(bytes));
    return all;
  }
  std::vector<std::string> gather_texts(const char* label, const std::string& mine) {
    return exchange(label, mine);
  }

  // Root's value; the values of the other ranks are ignored.
  template <Plain T>
  T of_root(const char* label, const T& mine, int root) {
    return gather(label, mine)[root];
  }
  template <Plain T>
  std::vector<T> list_of_root(const char* label, const std::vector<T>& mine, int root) {
    return list_in<T>(exchange(label, rank_ == root ? bytes_of(mine) : std::string_view())[root]);
  }
  std::string text_of_root(const char* label, const std::string& mine, int root) {
    return exchange(label, rank_ == root ? std::string_view(mine) : std::string_view())[root];
  }

  // For each flag, whether it is set on any rank. All ranks must pass the same number of flags.
  std::vector<bool> any(const char* label, const std::vector<bool>& mine);

  // The bytes of all ranks, by rank. Everything above is based on it.
  std::vector<std::string> exchange(const char* label, std::string_view mine);

 protected:
  // Whether the group has failed, as those who exchange know. Then they exchange because of that failure.
  bool group_has_failed() const;
  // Throws one of lockstep's errors.
  virtual std::vector<std::string> exchange_bytes(const char* label, std::string_view mine) = 0;

 private:
  friend struct ::lockstep::ProcessGroup::Impl;
  friend void attach_control(ProcessGroup::Impl& group, std::unique_ptr<Control> control);

  // Throws MismatchError unless the bytes of every rank have this size.
  std::vector<std::string> exchange_sized(const char* label, std::string_view mine, size_t bytes);
  std::vector<std::string> exchange_checked(const char* label, std::string_view mine,
                                            std::optional<size_t> bytes_of_all);
  [[noreturn]] void refuse_size(const char* label, int rank, size_t theirs, size_t expected) const;

  template <class T>
  static std::string_view bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }
  template <class T>
  static std::vector<T> list_in(const std::string& bytes) {
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }

  const int rank_;
  const int world_size_;
  ProcessGroup::Impl* group_ = nullptr;  // the owner, which ends when an exchange fails
};

void attach_control(ProcessGroup::Impl& group, std::unique_ptr<Control> control);

// The control channel of the generation to which the handle refers. Throws the group's first error if the
// group has failed.
Control& control_of(const ProcessGroup& group);

}  // namespace lockstep::comm
