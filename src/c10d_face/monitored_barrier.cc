// c10d's monitored barrier: on rank 0, it reports the ranks that did not arrive.
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>
#include <thread>

#include <lockstep/error.h>

#include "base/deadline.h"
#include "base/error_text.h"
#include "c10d_face/backend.h"

namespace lockstep::c10d_face {

namespace {

using namespace std::chrono_literals;

// The other ranks wait longer than rank 0, so that rank 0 can report the missing ranks first.
constexpr auto kGrace = 1s;

std::vector<int> both(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> result;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(result));
  return result;
}

}  // namespace

// The messages are those of c10d, because programs and tests search for them.
void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const auto timeout = options.timeout < 0ms ? engine_->timeout() : options.timeout;
  if (rank_ == 0 && timeout == 0ms) {
    engine_->fail("TimeoutError", "Rank 0 timed out in monitoredBarrier after 0 ms.");
  }
  const auto deadline = base::Deadline::in(timeout);
  const auto barrier = engine_->roll_call();
  try {
    barrier->run(rank_ == 0 ? timeout : timeout + kGrace);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    if (rank_ != 0) {
      base::throw_kind(std::string(error.kind()),
                       fmt::format("Rank {} successfully reached monitoredBarrier, but received errors while "
                                   "waiting for send/recv from rank 0. {}",
                                   rank_, error.what()),
                       error.culprits());
    }
    if (!barrier->was_made()) throw;
    // If a rank has ended, the barrier fails at once. Ranks that arrive later are still visible.
    while (wait_all_ranks && !barrier->absent().empty() && !deadline.expired()) {
      std::this_thread::sleep_for(5ms);
    }
    auto missing = barrier->absent();
    const auto ended = both(missing, barrier->ended());
    if (!wait_all_ranks && !ended.empty()) missing = ended;
    if (timeout == 0ms || missing.empty()) throw;
    const auto ranks = wait_all_ranks ? fmt::format("Ranks {}", fmt::join(missing, ", "))
                                      : fmt::format("Rank {}", missing.front());
    base::throw_kind(
        std::string(error.kind()),
        fmt::format("{} failed to pass monitoredBarrier in {} ms. {}", ranks, timeout.count(), error.what()),
        missing);
  }
}

}  // namespace lockstep::c10d_face
