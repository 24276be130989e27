// The rules that `lockstep bench` shares with the peer programs it is compared with (bench/collectives): what
// a size means for each collective, how calls are timed, and how the times are summarised.
//
// Without LibTorch, without state, header only, so that the peers can compile it.
//
// A *sample* is the time of one call, or the mean of several calls if one is too short for the clock. Every
// rank takes its own samples; sample i of a row is that of the slowest rank. A *block* is a barrier, one call
// that is not timed (it absorbs the skew of the barrier and warms the caches), and some samples. There is no
// barrier between calls: if data flows in only one direction (broadcast, reduce), a rank may be ahead of the
// others, as in real programs.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep::bench {

enum class Collective {
  AllReduce,
  Broadcast,
  Reduce,
  AllGather,
  AllGatherIntoTensor,
  ReduceScatterTensor,
  Gather,
  Scatter,
  AllToAllSingle,
  SendRecv,
  Barrier,
};

struct CollectiveFacts {
  Collective id;
  const char* name;
  // Whether a row's bytes are divided among the ranks. They are then the size of the whole (the output of a
  // gather, the input of a scatter), as in nccl-tests.
  bool divided;
};

inline constexpr std::array<CollectiveFacts, 11> kCollectives{{
    {Collective::AllReduce, "all_reduce", false},
    {Collective::Broadcast, "broadcast", false},
    {Collective::Reduce, "reduce", false},
    {Collective::AllGather, "all_gather", true},
    {Collective::AllGatherIntoTensor, "all_gather_into_tensor", true},
    {Collective::ReduceScatterTensor, "reduce_scatter_tensor", true},
    {Collective::Gather, "gather", true},
    {Collective::Scatter, "scatter", true},
    {Collective::AllToAllSingle, "all_to_all_single", true},
    {Collective::SendRecv, "send_recv", false},
    {Collective::Barrier, "barrier", false},
}};

inline const CollectiveFacts& facts_of(Collective collective) {
  return kCollectives[static_cast<size_t>(collective)];
}

inline bool reduces(Collective collective) {
  return collective == Collective::AllReduce || collective == Collective::Reduce ||
         collective == Collective::ReduceScatterTensor;
}

// The number of elements of a size. A size that cannot be divided evenly among the ranks is rounded up.
inline int64_t elements_of(Collective collective, int64_t size, int64_t element_bytes, int world) {
  if (collective == Collective::Barrier) return 0;
  const int64_t elements = std::max<int64_t>(1, size / element_bytes);
  return facts_of(collective).divided ? (elements + world - 1) / world * world : elements;
}

// The algorithm bandwidth is bytes / time. Multiplied by this factor, it is the least that each rank's link
// to the others would have to carry, and can be compared between collectives and worlds (the definition of
// nccl-tests).
inline double bus_factor(Collective collective, int world) {
  const double others = static_cast<double>(world - 1) / world;
  if (collective == Collective::AllReduce) return 2 * others;
  return facts_of(collective).divided ? others : 1;
}

// ---- Time

inline constexpr int kBlocks = 10;

inline int calls_per_sample(int64_t bytes) {
  constexpr int64_t kSmall = 16 << 10;
  return bytes <= kSmall ? 20 : 1;
}

// The number of samples that fit into the time; at least 10, for a median, and at most 10,000.
inline int samples_in(double seconds, double sample_us) {
  return static_cast<int>(std::clamp(seconds * 1e6 / std::max(sample_us, 1e-3), 10.0, 10'000.0));
}

// The number of `samples` in block `block`.
inline int samples_of_block(int samples, int block) {
  return samples / kBlocks + (block < samples % kBlocks ? 1 : 0);
}

inline double microseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

// Appends samples to `out`, which must have enough capacity: no allocation may be timed.
template <class Barrier, class Call>
void time_block(Barrier&& barrier, Call&& call, int samples, int calls, std::vector<double>& out) {
  if (samples == 0) return;
  barrier();
  call();
  for (int sample = 0; sample < samples; ++sample) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    out.push_back(microseconds_since(begin) / calls);
  }
}

struct Summary {
  double p50_us = 0, p99_us = 0, min_us = 0;  // of the slowest rank in each sample
  double mean_us = 0;                         // of all samples of a rank; that of the slowest rank
};

// `by_rank`: the samples of each rank, the same number for all. A rank that takes no part in the row (the
// third in send_recv) has samples near 0, which do not affect the maximum.
inline Summary summarize(const std::vector<std::vector<double>>& by_rank) {
  std::vector<double> slowest = by_rank.at(0);
  if (slowest.empty()) return {};
  double mean = 0;
  for (const auto& rank : by_rank) {
    double sum = 0;
    for (size_t i = 0; i < slowest.size(); ++i) {
      sum += rank.at(i);
      slowest[i] = std::max(slowest[i], rank[i]);
    }
    mean = std::max(mean, sum / static_cast<double>(slowest.size()));
  }
  std::sort(slowest.begin(), slowest.end());
  const auto nearest_rank = [&](double part) {
    return slowest[static_cast<size_t>(std::ceil(part * static_cast<double>(slowest.size()))) - 1];
  };
  return {
      .p50_us = nearest_rank(0.5), .p99_us = nearest_rank(0.99), .min_us = slowest.front(), .mean_us = mean};
}

}  // namespace lockstep::bench
