#include "hybrid/transport.h"

#include <stdexcept>
#include <utility>

#include "base/aside.h"
#include "base/error_text.h"
#include "comm/diagnose.h"
#include "comm/failure.h"
#include "comm/fingerprint.h"
#include "hybrid/message.h"

namespace lockstep::hybrid {

namespace {

std::unique_ptr<comm::Agreement> agreement_of(const Topology& topology) {
  return topology.is_leader() ? comm::Agreement::among(topology.leaders(), topology.rank) : nullptr;
}

// Whether this rank knows of another rank that ended or failed before. If so, an error of a rank on this
// machine that names no culprit is a consequence of that.
bool knows_of_another(const ProcessGroup::Impl& group) {
  const auto failure = group.store->failure();
  return !comm::ended_ranks(group).empty() || (failure && failure->rank != group.rank);
}

}  // namespace

// A collective under way, for its caller. The queue does not refer to it, because it owns the group.
class Transport::Started final : public Work::State {
 public:
  Started(Queue& queue, Queue::EntryPtr entry, comm::Request&& described)
      : State(std::move(described)), queue_(queue), entry_(std::move(entry)) {}

  void complete() override { queue_.wait(*entry_); }
  bool is_done() override { return queue_.is_complete(*entry_); }
  std::optional<Clock::time_point> ended() const override {
    if (!queue_.is_complete(*entry_)) return std::nullopt;
    return entry_->ended;
  }

 private:
  Queue& queue_;
  const Queue::EntryPtr entry_;
};

Transport::Transport(ProcessGroup::Impl& group, Topology topology, Machine::Endpoints endpoints,
                     std::shared_ptr<comm::Link> link)
    : group_(group),
      topology_(std::move(topology)),
      machine_(std::move(endpoints)),
      link_(std::move(link)),
      agreement_(agreement_of(topology_)) {
  queue_.emplace([this](Queue::Entry& entry) { agree(entry); },
                 [this](const Queue::Entry& entry) { return explain(entry); });
}

// A link's destructor may wait for its transfers, which may wait for ranks that have ended.
Transport::~Transport() {
  const bool failed = group_.failed.load();
  if (failed) link_->hang_up();
  queue_.reset();
  if (failed) base::run_aside([link = std::move(link_)]() mutable { link.reset(); });
}

bool Transport::averages(c10::ScalarType dtype, c10::Device) const {
  return c10::isFloatingType(dtype) || c10::isComplexType(dtype);
}

at::Tensor Transport::allocate(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return machine_.alone() ? comm::Transport::allocate(sizes, options)
                          : machine_.messages().allocate(sizes, options);
}

bool Transport::supplied(const at::Tensor& tensor) const {
  return !machine_.alone() && machine_.messages().supplied(tensor);
}

uint64_t Transport::offset_of(const at::Tensor& memory) const {
  return machine_.alone() ? 0 : machine_.messages().neighbours()->offset_of(memory);
}

at::Tensor Transport::map(int rank, uint64_t offset, int64_t bytes) {
  return machine_.messages().neighbours()->map(topology_.local_of[rank], offset, bytes);
}

// ---- Collectives

Queue::EntryPtr Transport::enter(const comm::Request& request) {
  queue_->throw_if_failed();
  auto entry = std::make_shared<Queue::Entry>();
  entry->request = request;
  const auto mine = comm::fingerprint_of(request, calls_ + 1);
  const auto hopeless = [this, raw = entry.get()] {
    return queue_->has_failed() || raw->lookout->hopeless();
  };
  entry->operation = make_operation({topology_, machine_, *link_, buffers_},
                                    {entry->request, mine.number, comm::digest(mine), hopeless});
  entry->number = ++calls_;
  entry->lookout.emplace(group_, control_, entry->number, entry->request);
  try {
    if (agreement_) agreement_->tell(*link_, mine);
  } catch (...) {
    std::rethrow_exception(explain(*entry));
  }
  return entry;
}

void Transport::run(comm::Request& request) {
  if (comm::is_message(request)) {
    start_message(comm::Request(request))->complete();
  } else {
    queue_->run(enter(request));
  }
}

std::shared_ptr<Work::State> Transport::start(comm::Request&& request) {
  if (comm::is_message(request)) return start_message(std::move(request));
  auto entry = enter(request);
  queue_->submit(entry);
  return std::make_shared<Started>(*queue_, std::move(entry), std::move(request));
}

// Before this rank waits for data: that of other calls never arrives.
void Transport::agree(Queue::Entry& entry) {
  if (agreement_)
    agreement_->verify(entry.number, [&] { return queue_->has_failed() || entry.lookout->hopeless(); });
}

// ---- Messages

std::shared_ptr<Work::State> Transport::start_message(comm::Request&& request) {
  if (!topology_.is_local(request.peer)) return start_remote_message(group_, *link_, std::move(request));
  request.peer = topology_.local_of[request.peer];
  return machine_.messages().start(std::move(request));
}

// ---- Failures

std::exception_ptr Transport::explain(const Queue::Entry& entry) noexcept {
  try {
    try {
      try {
        throw;
      } catch (const Error& error) {
        // The ranks of this machine that it has waited for may be waiting for another machine.
        if (error.kind() == "TimeoutError" && comm::are_waiting(group_, error.culprits())) {
          throw std::runtime_error("timed out");
        }
        const bool is_clear = !error.culprits().empty() || error.kind() == "MismatchError";
        if (is_clear || !knows_of_another(group_)) throw;
        throw std::runtime_error(error.what());
      } catch (const comm::Disagreement& disagreement) {
        throw comm::mismatch_error(group_, disagreement);
      } catch (...) {
        entry.lookout->report();
        throw;
      }
    } catch (...) {
      comm::throw_diagnosis(group_, comm::describe(entry.request), entry.number);
    }
  } catch (const Error& error) {
    end(error);
    comm::publish_failure(group_, error);
    return std::current_exception();
  } catch (...) {
    return std::current_exception();
  }
}

void Transport::end(const Error& why) noexcept {
  machine_.fail(why);
  link_->hang_up();
}

void Transport::fail(const Error& why) noexcept {
  end(why);
  try {
    base::throw_kind(std::string(why.kind()), why.what(), why.culprits());
  } catch (...) {
    queue_->fail(std::current_exception());
  }
}

}  // namespace lockstep::hybrid
