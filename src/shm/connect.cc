// Creates an endpoint and connects it to those of the other ranks.
#include <fmt/format.h>
#include <numeric>
#include <set>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <lockstep/error.h>

#include "base/env.h"
#include "base/error_text.h"
#include "shm/bell.h"
#include "shm/endpoint.h"
#include "tuning/topology.h"

namespace lockstep::shm {

namespace {

using namespace std::chrono_literals;

// How long a waiting thread spins before it sleeps. Longer than the kernel takes to wake it.
constexpr auto kSpin = 100us;
// With more ranks than CPUs. It yields meanwhile: the awaited rank may need this CPU.
constexpr auto kCrowdedSpin = 20us;
// The same for a part of a call of several machines: the awaited rank may be waiting for the network.
constexpr auto kCrowdedPartSpin = 60us;

// The number of CPUs that the ranks may use together.
size_t cpus_of(const std::vector<Peer>& peers) {
  std::set<int> cpus;
  for (const auto& peer : peers) {
    for (const int cpu : tuning::parse_cpu_list(peer.facts.cpus)) cpus.insert(cpu);
  }
  return cpus.size();
}

// Whether calls that no thread waits for are left to the threads that poll them. If there are no spare CPUs,
// a background thread would only take CPU time from those. LOCKSTEP_PROGRESS overrides this.
bool advances_inline(bool has_spare_cpus) {
  const auto wanted = base::env_string("LOCKSTEP_PROGRESS");
  if (wanted == "inline") return true;
  if (wanted == "thread") return false;
  return !has_spare_cpus;
}

Lane other(Lane lane) { return lane == Lane::Data ? Lane::Control : Lane::Data; }

RankWords& words_in(Segment& segment, Lane lane, int world_size) {
  auto* const base = segment.at(0, first_extent_bytes(world_size)) + lane_at(lane, world_size);
  return *reinterpret_cast<RankWords*>(base + kWordsAt);
}

int checked_world_size(int rank, int world_size) {
  if (rank >= 0 && rank < world_size && world_size <= kMaxWorld) return world_size;
  throw UsageError(base::compose(
      {.what = "cannot make a shared-memory group",
       .evidence = "rank is " + std::to_string(rank) + ", world size is " + std::to_string(world_size),
       .hint = "ranks go from 0 to world size - 1; a shared-memory group has at most " +
               std::to_string(kMaxWorld) + " ranks"}));
}

}  // namespace

Endpoint::Endpoint(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                   std::chrono::milliseconds timeout, std::string group)
    : Endpoint(std::move(store), rank, world_size, RankNames(world_size), timeout, std::move(group)) {}

Endpoint::Endpoint(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, RankNames names,
                   std::chrono::milliseconds timeout, std::string group)
    : Endpoint(std::move(store), rank, world_size, std::move(names), timeout, std::move(group),
               process_memory()) {}

Endpoint::Endpoint(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, RankNames names,
                   std::chrono::milliseconds timeout, std::string group, const ProcessMemory& memory)
    : rank_(rank),
      world_size_(checked_world_size(rank, world_size)),
      names_(std::move(names)),
      timeout_(timeout),
      group_(std::move(group)),
      lane_(Lane::Data),
      segment_(Segment::create("lockstep-" + std::to_string(rank), first_extent_bytes(world_size))),
      memory_(memory.arena),
      relocated_(memory.relocated),
      messages_arena_(std::make_shared<Arena>(segment_)),
      mine_(words_in(*segment_, lane_, world_size)),
      mine_in_other_lane_(words_in(*segment_, other(lane_), world_size)),
      mesh_(std::make_shared<Mesh>(std::move(store), rank, world_size, segment_, memory_->shared_segment(),
                                   names_)) {}

Endpoint::Endpoint(const Endpoint& data, Lane lane)
    : rank_(data.rank_),
      world_size_(data.world_size_),
      names_(data.names_),
      timeout_(data.timeout_),
      group_(data.group_),
      lane_(lane),
      segment_(data.segment_),
      memory_(data.memory_),
      relocated_(data.relocated_),
      mine_(words_in(*segment_, lane_, world_size_)),
      mine_in_other_lane_(words_in(*segment_, other(lane_), world_size_)),
      mesh_(data.mesh_),
      crowded_(data.crowded_) {}

std::shared_ptr<Endpoint> Endpoint::control_lane() {
  const Lock lock(mutex_);
  if (control_lane_) {
    control_lane_->add_owner();
    return control_lane_;
  }
  std::shared_ptr<Endpoint> endpoint(new Endpoint(*this, Lane::Control));
  const Lock its_lock(endpoint->mutex_);
  endpoint->open();
  control_lane_ = endpoint;
  return endpoint;
}

Endpoint::~Endpoint() = default;

void Endpoint::connect(base::Deadline deadline) {
  try {
    mesh_->connect(deadline, cancelled_);
    const Lock lock(mutex_);
    open();
  } catch (const Error& error) {
    const Lock lock(mutex_);
    set_failure(std::string(error.kind()), error.what(), error.culprits());
    throw;
  } catch (const std::exception& error) {
    const Lock lock(mutex_);
    set_failure("Error", error.what());
    throw;
  }
  ring(mine_.bell);
}

void Endpoint::open() {
  Board::Segments segments, memories;
  for (const auto& peer : mesh_->peers()) {
    segments.push_back(peer.segment);
    memories.push_back(peer.memory);
  }
  const auto cpus = cpus_of(mesh_->peers());
  crowded_ = crowded_ || mesh_->peers().size() > cpus;
  const auto spin = base::env_int("LOCKSTEP_SPIN_US", 0, 1000000);
  inline_progress_ = advances_inline(mesh_->peers().size() * at::get_num_threads() < cpus);
  const auto own_spin = !crowded_ ? kSpin : names_.of_parts() ? kCrowdedPartSpin : kCrowdedSpin;
  spin_ = spin ? std::chrono::microseconds(*spin) : own_spin;
  other_lane_.emplace(rank_, other(lane_), segments, memories, crowded_);
  board_.emplace(rank_, lane_, std::move(segments), std::move(memories), crowded_);
  if (messages_arena_) messages_.emplace(*board_, *messages_arena_);
  if (failure_) publish_failure();
  while (!waiting_messages_.empty()) {
    messages_->add(*waiting_messages_.front());
    waiting_messages_.erase(waiting_messages_.begin());
  }
}

void Endpoint::connect_in_background() {
  const Lock lock(mutex_);
  ensure_background();
}

bool Endpoint::averages(c10::ScalarType dtype, c10::Device) const {
  return c10::isFloatingType(dtype) || c10::isComplexType(dtype);
}

bool Endpoint::supplied(const at::Tensor& tensor) const {
  return memory_->segment().offset_of(tensor.data_ptr(), tensor.nbytes()).has_value();
}

at::Tensor Endpoint::allocate(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  if (!options.device().is_cpu() || options.layout() != at::kStrided) return at::empty(sizes, options);
  throw_if_forked();
  const auto& arena = memory_;
  const auto block = arena->allocate(c10::multiply_integers(sizes) * c10::elementSize(dtype));
  return at::from_blob(
      block.data, sizes, [arena, offset = block.offset](void*) { arena->free(offset); },
      at::TensorOptions().dtype(dtype).requires_grad(options.requires_grad()));
}

std::vector<int> Endpoint::ranks() const {
  std::vector<int> all(world_size_);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

uint64_t Endpoint::offset_of(const at::Tensor& memory) const {
  return memory_->segment().offset_of(memory.data_ptr(), memory.nbytes()).value();
}

at::Tensor Endpoint::map(int rank, uint64_t offset, int64_t bytes) {
  const auto segment = mesh_->peers()[rank].memory;
  return at::from_blob(
      segment->at(offset, bytes), {bytes}, [segment](void*) {}, at::TensorOptions(at::kByte));
}

void Endpoint::throw_if_forked() const {
  if (!segment_->inherited()) return;
  throw UsageError(base::compose(
      {.what = "a forked process cannot use the groups of its parent",
       .where = where(nullptr),
       .evidence = fmt::format("the group was made in process {}; this is its child, process {}",
                               mesh_->peers()[rank_].facts.pid, ::getpid()),
       .hint = "communicate in the parent only, or make a new group in the child, after the fork"}));
}

}  // namespace lockstep::shm
