// The control channel of groups whose ranks share no memory: every exchange is a key of each rank in the
// group's store, which every rank reads.
//
// A rank erases its key of one exchange when it has finished the next: by then all have read it.
#pragma once

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
  // `data_calls`: how many data calls this rank has begun on the group.
  StoreControl(ProcessGroup::Impl& group, std::function<uint64_t()> data_calls);

  // For a data call that waits: a rank that is in the exchange that would be this rank's next, and has not
  // made this call before. The two do not make the same calls.
  struct Elsewhere {
    int rank;
    std::string label;
  };
  // Looks at one rank each time.
  std::optional<Elsewhere> find_elsewhere(uint64_t data_call);

 protected:
  std::vector<std::string> exchange_bytes(const char* label, std::string_view mine) override;

 private:
  // Erases what nobody needs any more. Rank 0, whose process may host the store and may end right after,
  // waits until all have read.
  void settle(uint64_t number, base::Deadline deadline) const;
  std::vector<std::string> read_all(uint64_t number, const char* label, size_t own_bytes,
                                    base::Deadline deadline);
  std::vector<int> ended_ranks() const;

  ProcessGroup::Impl& group_;
  const std::function<uint64_t()> data_calls_;
  uint64_t exchanges_ = 0;  // begun
  int next_looked_at_ = 0;
};

}  // namespace lockstep::comm
