#include "plan/limits.h"

#include <fmt/format.h>

#include "plan/exchange.h"
#include "plan/units.h"

namespace lockstep::plan {

namespace {

constexpr int kMostRanksOfSegment = 256;  // shm::kMaxWorld
constexpr int kMostMachines = 4096;       // launch::kMostNodes
constexpr double kMostDescriptors =
    65536;                              // to which `lockstep run` raises the limit (launch::kMostWorkerFiles)
constexpr double kOwnDescriptors = 64;  // files, libraries, pipes
constexpr double kDescriptorsPerLocalPeer = 5;  // docs/shm-layout.md
constexpr double kAddressBytes = 136;           // of Gloo, for each connection
constexpr double kLongestStart_s = 60;
constexpr double kSmallMessageBytes = 16384;
constexpr double kManySenders = 256;

}  // namespace

Rendezvous rendezvous_of(const Job& job) {
  if (job.machines == 1) return {};
  const double ranks = job.ranks(), peers = ranks - 1;
  Rendezvous out{.reads = ranks * peers, .bytes = ranks * peers * peers * kAddressBytes};
  const double elsewhere = 1 - 1.0 / job.machines;
  out.link_s = 8 * elsewhere * out.bytes / (job.link_bits_per_s * kPayloadShare);
  return out;
}

double descriptors_of(const Job& job) {
  const double connections = job.machines > 1 ? job.ranks() - 1 : 0;
  return connections + kDescriptorsPerLocalPeer * (job.ranks_per_machine - 1) + kOwnDescriptors;
}

std::vector<Limit> limits_reached(const Job& job, const Prediction& prediction) {
  std::vector<Limit> limits;
  if (job.ranks_per_machine > kMostRanksOfSegment) {
    limits.push_back({fmt::format("shared memory connects at most {} ranks of a machine, not {}",
                                  kMostRanksOfSegment, job.ranks_per_machine),
                      "give each rank more threads, and start fewer ranks"});
  }
  if (job.machines > kMostMachines) {
    limits.push_back(
        {fmt::format("lockstep run starts jobs on at most {} machines, not {}", kMostMachines, job.machines),
         "use another launcher; the exchange itself has no such limit"});
  }
  if (descriptors_of(job) > kMostDescriptors) {
    limits.push_back({fmt::format("a rank needs {:.0f} open files, {} of them connections to all other ranks",
                                  descriptors_of(job), job.ranks() - 1),
                      fmt::format("raise ulimit -n above {:.0f} on all machines", descriptors_of(job))});
  }
  const auto rendezvous = rendezvous_of(job);
  if (rendezvous.link_s > kLongestStart_s) {
    limits.push_back(
        {fmt::format("to connect, the ranks read {} from one store, which takes its link {} or more",
                     bytes_text(rendezvous.bytes), seconds_text(rendezvous.link_s)),
         "raise InitOptions::timeout, or start fewer ranks with more threads each"});
  }
  if (prediction.message_bytes > 0 && prediction.message_bytes < kSmallMessageBytes) {
    limits.push_back(
        {fmt::format("messages between machines carry {} each: their number costs more than their bytes",
                     bytes_text(prediction.message_bytes)),
         "average less often: larger batches, or several micro-batches with no_sync()"});
  }
  const double senders = static_cast<double>(job.machines - 1) * job.ranks_per_machine;
  if (job.machines > 2 && senders > kManySenders) {
    limits.push_back(
        {fmt::format("{:.0f} connections send to one link at once; what switches then drop is not predicted",
                     senders),
         "measure with a part of the machines first"});
  }
  return limits;
}

}  // namespace lockstep::plan
