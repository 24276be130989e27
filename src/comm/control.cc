#include "comm/control.h"

#include <fmt/format.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "comm/failure.h"
#include "comm/generation.h"
#include "comm/group.h"

namespace lockstep::comm {

std::vector<std::string> Control::exchange(const char* label, std::string_view mine) {
  return exchange_checked(label, mine, std::nullopt);
}

std::vector<std::string> Control::exchange_checked(const char* label, std::string_view mine,
                                                   std::optional<size_t> bytes_of_all) {
  try {
    auto all = exchange_bytes(label, mine);
    for (size_t rank = 0; rank < all.size() && bytes_of_all; ++rank) {
      if (all[rank].size() != *bytes_of_all) {
        refuse_size(label, static_cast<int>(rank), all[rank].size(), *bytes_of_all);
      }
    }
    return all;
  } catch (...) {
    if (group_ == nullptr) throw;
    throw_control_failure(*group_);
  }
}

bool Control::group_has_failed() const {
  return group_ != nullptr && group_->failed.load(std::memory_order_acquire);
}

std::vector<std::string> Control::exchange_sized(const char* label, std::string_view mine, size_t bytes) {
  return exchange_checked(label, mine, bytes);
}

void Control::refuse_size(const char* label, int rank, size_t theirs, size_t expected) const {
  throw MismatchError(base::compose(
      {.what = fmt::format("the ranks exchange values of different sizes ({})", label),
       .where = fmt::format("rank {}/{}", rank_, world_size_),
       .evidence = fmt::format("this rank sent {} bytes, rank {} sent {}", expected, rank, theirs),
       .hint = "start the same build of the program for every rank"}));
}

std::vector<bool> Control::any(const char* label, const std::vector<bool>& mine) {
  std::string bits((mine.size() + 7) / 8, '\0');
  for (size_t i = 0; i < mine.size(); ++i) {
    if (mine[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << i % 8);
  }
  std::vector<bool> result(mine.size());
  for (const auto& theirs : exchange_sized(label, bits, bits.size())) {
    for (size_t i = 0; i < mine.size(); ++i) {
      if ((theirs[i / 8] >> i % 8 & 1) != 0) result[i] = true;
    }
  }
  return result;
}

void attach_control(ProcessGroup::Impl& group, std::unique_ptr<Control> control) {
  control->group_ = &group;
  group.control = std::move(control);
}

Control& control_of(const ProcessGroup& group) {
  const auto& generation = generation_of(group);
  refuse_if_failed(*generation);
  return *generation->control;
}

}  // namespace lockstep::comm
