#include "plan/exchange.h"

#include <algorithm>
#include <cmath>

namespace lockstep::plan {

namespace {

// The engine's own sizes (src/hybrid/shares.cc): a bucket is exchanged between machines in chunks, of which
// the first two are smaller. Between many ranks, chunks are larger, so that messages keep a size. A small
// bucket is exchanged in one trip, by the first rank of each machine.
constexpr double kChunkBytes = 1 * kMiB;
constexpr double kMessageBytes = kMiB / 16;
constexpr double kFirstChunks[] = {0.25, 0.5};
constexpr double kSmallBucketBytes = kMiB / 16;
// The default size of a bucket: DdpOptions::bucket_cap_mb; between machines, no more than a few chunks.
constexpr double kBucketBytes = 25 * kMiB;
constexpr double kChunksInABucket = 4;

double chunk_bytes(const Job& job) {
  const double messages = job.ranks_per_machine * (job.machines > 2 ? job.machines : 1);
  return std::max(kChunkBytes, kMessageBytes * messages);
}

double chunks_of(const Job& job, double bytes) {
  double chunks = 0;
  for (const double share : kFirstChunks) {
    if (bytes <= 0) return chunks;
    ++chunks;
    bytes -= share * chunk_bytes(job);
  }
  return chunks + std::ceil(std::max(0.0, bytes) / chunk_bytes(job));
}

double link_seconds(const Job& job, double bytes) {
  return bytes > 0 ? 8 * bytes / (job.link_bits_per_s * kPayloadShare) : 0;
}

// Waking the ranks of a machine, once.
double local_call_s(const Constants& constants, const Job& job) {
  if (job.ranks_per_machine == 1) return 0;
  return constants.local_call_s +
         constants.crowded_call_s * std::max(0.0, job.ranks_per_machine - job.cores());
}

// Bytes that a rank reads and writes to convert its gradients to what is sent, and back.
double conversion_bytes(const Job& job, double bucket_bytes, double wire_bytes) {
  return job.compressed() ? 2 * (bucket_bytes + wire_bytes) : 0;
}

// Adds what a rank does in memory.
void add_memory_work(Cost& cost, const Constants& constants, const Job& job, double rank_bytes) {
  cost.core_s += job.ranks_per_core() * rank_bytes / constants.core_bytes_per_s;
  cost.memory_s += job.ranks_per_machine * rank_bytes / constants.machine_bytes_per_s;
}

// One pass: a rank reads its part of every rank's bucket, and writes the mean to all of them.
Cost shared_memory(const Constants& constants, const Job& job, double bucket_bytes, double wire_bytes) {
  Cost cost{.latency_s = local_call_s(constants, job)};
  if (job.ranks() == 1) return {};
  add_memory_work(cost, constants, job, 2 * wire_bytes + conversion_bytes(job, bucket_bytes, wire_bytes));
  return cost;
}

Cost hybrid(const Constants& constants, const Job& job, double bucket_bytes, double wire_bytes) {
  const double locals = job.ranks_per_machine, machines = job.machines, peers = machines - 1;
  const bool small = wire_bytes <= kSmallBucketBytes;
  const double owners = small ? 1 : locals;        // ranks of a machine that exchange the bucket
  const double share_bytes = wire_bytes / owners;  // that each of them exchanges with its peers
  const double chunks = chunks_of(job, wire_bytes);

  // Between two machines, or if the bucket is small, everyone sends its whole share to all peers. Otherwise,
  // each adds one part of the share, which it receives from all peers, and sends the result to all of them.
  const bool in_parts = machines > 2 && !small;
  const double trips = in_parts ? 2 : 1;
  const double part_bytes = in_parts ? share_bytes / machines : share_bytes;
  const double sent_bytes = trips * peers * part_bytes;
  const double messages = chunks * trips * peers;

  Cost cost{.latency_s = trips * (job.rtt_s / 2 + constants.trip_s * job.ranks_per_core()),
            .pieces = chunks,
            .queued = true,
            .link_bytes = owners * sent_bytes,
            .messages = owners * messages};
  cost.link_s = link_seconds(job, cost.link_bytes);
  // Before: a rank reads its share of every buffer of the machine, and writes the sum. Then it adds those of
  // all machines. After: it copies the other shares.
  const double summed_bytes = locals == 1 ? 0 : (locals + 1) * share_bytes;
  const double added_bytes = (machines + 1) * part_bytes;
  const double copied_bytes = 2 * (wire_bytes - wire_bytes / locals);
  add_memory_work(
      cost, constants, job,
      summed_bytes + added_bytes + copied_bytes + conversion_bytes(job, bucket_bytes, wire_bytes));
  cost.core_s +=
      chunks * 2 * local_call_s(constants, job) +
      job.ranks_per_core() * (sent_bytes * constants.network_s_per_byte + messages * constants.message_s);
  return cost;
}

// 2 (N - 1) steps. In each, every rank sends 1/N of the bucket to the next one; of these hops, one leaves
// each machine.
Cost ring(const Constants& constants, const Job& job, double bucket_bytes, double wire_bytes) {
  const double ranks = job.ranks(), steps = 2 * (ranks - 1);
  if (ranks == 1) return {};
  const double sent_bytes = steps / ranks * wire_bytes;
  const bool leaves = job.machines > 1;
  Cost cost{.latency_s = leaves ? steps * job.machines / ranks * job.rtt_s / 2 : 0,
            .pieces = 2 * steps,  // Gloo has two parts of each on their way
            .link_bytes = leaves ? sent_bytes : 0,
            .messages = leaves ? steps : 0};
  cost.link_s = link_seconds(job, cost.link_bytes);
  add_memory_work(cost, constants, job, conversion_bytes(job, bucket_bytes, wire_bytes));
  cost.core_s +=
      job.ranks_per_core() * (sent_bytes * constants.network_s_per_byte + steps * constants.trip_s);
  return cost;
}

}  // namespace

Cost cost_of(Scheme scheme, const Constants& constants, const Job& job, double bucket_bytes) {
  const double wire_bytes =
      job.compressed() ? bucket_bytes * job.wire_element_bytes / job.element_bytes : bucket_bytes;
  if (scheme == Scheme::Ring) return ring(constants, job, bucket_bytes, wire_bytes);
  return job.machines == 1 ? shared_memory(constants, job, bucket_bytes, wire_bytes)
                           : hybrid(constants, job, bucket_bytes, wire_bytes);
}

double bucket_bytes_of(Scheme scheme, const Job& job) {
  if (job.bucket_bytes > 0) return job.bucket_bytes;
  if (scheme == Scheme::Ring || job.machines == 1) return kBucketBytes;
  return std::min(kBucketBytes, kChunksInABucket * chunk_bytes(job));
}

double duration_s(const Cost& cost, double core_share, bool follows) {
  const double core_s = cost.core_s / core_share;
  const double busiest_s = std::max({cost.link_s, core_s, cost.memory_s});
  if (follows && cost.queued) return busiest_s;
  // The slower of the two is busy all the time, except while the other has the first or the last piece.
  return cost.latency_s + busiest_s + std::min(cost.link_s, core_s) / std::max(1.0, cost.pieces);
}

}  // namespace lockstep::plan
