// The control channel of a group: small typed values that the ranks exchange beside the data.
//
// What the ranks agree on (a plan, who takes part, whether something failed) never travels as tensors of the
// data transport: that one may carry device memory only, and a transport that has failed cannot carry the
// news. The channel is shared memory on one machine (shm/control.h), and the store otherwise
// (store_control.h).
//
// Every exchange is a collective: all ranks make the same ones in the same order, and in the same order among
// the group's data calls. Each has a label, which is a string literal; ranks whose labels differ, or one of
// which makes a data call instead, get a MismatchError. Exchanges block; each has the group's deadline.
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

  // One value of every rank, by rank.
  template <Plain T>
  std::vector<T> gather(const char* label, const T& mine) {
    std::vector<T> all;
    for (const auto& bytes :
         exchange_sized(label, {reinterpret_cast<const char*>(&mine), sizeof mine}, sizeof mine)) {
      std::memcpy(&all.emplace_back(), bytes.data(), sizeof(T));
    }
    return all;
  }
  // Every rank's list, by rank; their lengths may differ.
  template <Plain T>
  std::vector<std::vector<T>> gather_lists(const char* label, const std::vector<T>& mine) {
    std::vector<std::vector<T>> all;
    for (const auto& bytes : exchange(label, bytes_of(mine))) all.push_back(list_in<T>(bytes));
    return all;
  }
  std::vector<std::string> gather_texts(const char* label, const std::string& mine) {
    return exchange(label, mine);
  }

  // Root's value; what the others give is ignored.
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

  // Of each flag, whether it is set on any rank. All ranks give as many.
  std::vector<bool> any(const char* label, const std::vector<bool>& mine);

  // Every rank's bytes, by rank: what all of the above come to.
  std::vector<std::string> exchange(const char* label, std::string_view mine);

 protected:
  // Whether the group has failed, as those who exchange know. Then they exchange because of that failure.
  bool group_has_failed() const;
  // Throws one of lockstep's errors.
  virtual std::vector<std::string> exchange_bytes(const char* label, std::string_view mine) = 0;

 private:
  friend struct ::lockstep::ProcessGroup::Impl;
  friend void attach_control(ProcessGroup::Impl& group, std::unique_ptr<Control> control);

  // All ranks' bytes must have this size.
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
  ProcessGroup::Impl* group_ = nullptr;  // that it belongs to, and ends when an exchange fails
};

void attach_control(ProcessGroup::Impl& group, std::unique_ptr<Control> control);

// Of the generation that the handle points at. Throws the group's first error if it had one.
Control& control_of(const ProcessGroup& group);

}  // namespace lockstep::comm
