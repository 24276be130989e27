// The control channel of groups whose ranks share no memory. In each exchange, every rank writes a key to the
// group's store and reads the keys of all ranks.
//
// A rank erases its key of an exchange when it has finished the next one: by then, all ranks have read it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "comm/control.h"
#include "comm/group.h"

namespace lockstep::comm {

class StoreControl final : public Control {
 public:
  // `data_calls`: returns the number of data calls that this rank has started on the group.
  StoreControl(ProcessGroup::Impl& group, std::function<uint64_t()> data_calls);

  // For a data call that is waiting: finds a rank that is already in this rank's next exchange, but has not
  // made this data call. Such ranks do not make the same calls.
  struct Elsewhere {
    int rank;
    std::string label;
  };
  // Looks at one rank each time. May be called while another thread exchanges.
  std::optional<Elsewhere> find_elsewhere(uint64_t data_call);

 protected:
  std::vector<std::string> exchange_bytes(const char* label, std::string_view mine) override;

 private:
  // Erases what nobody needs any more. Rank 0, whose process may host the store and may end right after,
  // waits until all have read.
  void settle(uint64_t number, base::Deadline deadline) const;
  std::vector<std::string> read_all(uint64_t number, const char* label, size_t own_bytes,
                                    base::Deadline deadline);
  // For a wait for one key of each rank, in the order of the ranks: throws if a key will not appear any more.
  // Refers to `keys`.
  std::function<void()> giving_up(const std::vector<std::string>& keys, base::Deadline deadline) const;

  ProcessGroup::Impl& group_;
  const std::function<uint64_t()> data_calls_;
  std::atomic<uint64_t> exchanges_{0};  // begun
  int next_looked_at_ = 0;
};

}  // namespace lockstep::comm
