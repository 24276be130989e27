// Measures Open MPI's collectives by the rules of `lockstep bench` (src/cli/bench/rules.h): the same flags,
// sizes, data, checks, samples and JSON.
//
//   mpirun -np 2 bench_openmpi --collective all_reduce --sizes 8,25M --json rows.json
//
// Supports only sums of floats. MPI's calls have no deadline: run it under mpirun --timeout.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fmt/format.h>
#include <fstream>
#include <mpi.h>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <lockstep/error.h>

#include "cli/bench/options.h"
#include "cli/bench/row.h"
#include "cli/bench/rules.h"
#include "cli/bench/values.h"

namespace {

using namespace lockstep::bench;

// The buffers of one row and the call that is measured. All roots are rank 0.
class Exercise {
 public:
  Exercise(const RowPlan& plan, int rank, int world)
      : collective_(plan.collective),
        rank_(rank),
        world_(world),
        whole_(elements_of(plan.collective, plan.size, sizeof(float), world)),
        part_(whole_ / world) {
    const bool gathers = collective_ == Collective::AllGatherIntoTensor || collective_ == Collective::Gather;
    const bool scatters =
        collective_ == Collective::ReduceScatterTensor || collective_ == Collective::Scatter;
    const bool in_place = collective_ == Collective::AllReduce || collective_ == Collective::Broadcast ||
                          collective_ == Collective::Reduce;
    input_.resize(static_cast<size_t>(gathers ? part_ : whole_));
    output_.resize(static_cast<size_t>(in_place ? 0 : scatters ? part_ : whole_));
  }

  int64_t bytes() const { return whole_ * static_cast<int64_t>(sizeof(float)); }
  double calls_in_one() const { return collective_ == Collective::SendRecv ? 2 : 1; }

  void fill() {
    const bool has_it = rank_ == 0 || collective_ != Collective::Broadcast;
    write(input_, [&](int64_t i) {
      if (reduces(collective_)) return contribution("sum", world_, rank_, i);
      return has_it ? moved_value(rank_, i) : kPoison;
    });
    std::fill(output_.begin(), output_.end(), static_cast<float>(kPoison));
  }

  void settle() {
    std::fill(input_.begin(), input_.end(), 0.0F);
    std::fill(output_.begin(), output_.end(), 0.0F);
  }

  void call() {
    const auto whole = static_cast<int>(whole_), part = static_cast<int>(part_);
    auto* in = input_.data();
    auto* out = output_.data();
    switch (collective_) {
      case Collective::AllReduce:
        MPI_Allreduce(MPI_IN_PLACE, in, whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
      case Collective::Broadcast:
        MPI_Bcast(in, whole, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
      case Collective::Reduce:
        MPI_Reduce(rank_ == 0 ? MPI_IN_PLACE : in, in, whole, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
        break;
      case Collective::AllGatherIntoTensor:
        MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
        break;
      case Collective::ReduceScatterTensor:
        MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
      case Collective::Gather:
        MPI_Gather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
      case Collective::Scatter:
        MPI_Scatter(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
      case Collective::AllToAllSingle:
        MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
        break;
      case Collective::SendRecv:
        if (rank_ > 1) break;
        if (rank_ == 0) MPI_Send(in, whole, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(out, whole, MPI_FLOAT, 1 - rank_, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank_ == 1) MPI_Send(in, whole, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
        break;
      case Collective::Barrier:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
      case Collective::AllGather:  // AllGatherIntoTensor by another name
        break;
    }
  }

  // Returns the number of wrong elements.
  int64_t count_wrong() const {
    const auto summed = [this](int64_t i) { return reduced_value("sum", world_, i); };
    switch (collective_) {
      case Collective::AllReduce:
        return compare(input_, summed);
      case Collective::Broadcast:
        return compare(input_, [](int64_t i) { return moved_value(0, i); });
      case Collective::Reduce:
        return rank_ == 0 ? compare(input_, summed) : 0;
      case Collective::AllGather:
      case Collective::AllGatherIntoTensor:
        return compare_parts(0);
      case Collective::ReduceScatterTensor:
        return compare(output_, [&](int64_t i) { return summed(rank_ * part_ + i); });
      case Collective::Gather:
        return rank_ == 0 ? compare_parts(0) : 0;
      case Collective::Scatter:
        return compare(output_, [&](int64_t i) { return moved_value(0, rank_ * part_ + i); });
      case Collective::AllToAllSingle:
        return compare_parts(rank_ * part_);
      case Collective::SendRecv:
        return rank_ > 1 ? 0 : compare(output_, [&](int64_t i) { return moved_value(1 - rank_, i); });
      case Collective::Barrier:
        break;
    }
    return 0;
  }

 private:
  template <class Value>
  static std::vector<float> period_of(Value&& value, size_t elements) {
    std::vector<float> period(std::min(static_cast<size_t>(kPeriod), elements));
    for (size_t i = 0; i < period.size(); ++i) period[i] = static_cast<float>(value(static_cast<int64_t>(i)));
    return period;
  }
  template <class Value>
  static void write(std::span<float> target, Value&& value) {
    const auto period = period_of(value, target.size());
    for (size_t i = 0; i < target.size(); ++i) target[i] = period[i % kPeriod];
  }
  template <class Value>
  static int64_t compare(std::span<const float> got, Value&& value) {
    const auto period = period_of(value, got.size());
    int64_t wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) wrong += got[i] == period[i % kPeriod] ? 0 : 1;
    return wrong;
  }
  // The output contains a part of each rank's data, starting at `offset` in that data.
  int64_t compare_parts(int64_t offset) const {
    int64_t wrong = 0;
    for (int from = 0; from < world_; ++from) {
      wrong +=
          compare(std::span(output_).subspan(static_cast<size_t>(from * part_), static_cast<size_t>(part_)),
                  [&](int64_t i) { return moved_value(from, offset + i); });
    }
    return wrong;
  }

  Collective collective_;
  int rank_, world_;
  int64_t whole_, part_;
  std::vector<float> input_, output_;
};

// The result is complete on rank 0.
Row measure(const Options& options, const RowPlan& plan, int rank, int world) {
  Exercise exercise(plan, rank, world);
  Row row{.world = world,
          .plan = plan,
          .bytes = exercise.bytes(),
          .dtype = plan.collective == Collective::Barrier ? "none" : "float",
          .op = "sum",
          .backend = "openmpi",
          .memory = plan.collective == Collective::Barrier ? "none" : "plain",
          .calls_per_sample = calls_per_sample(exercise.bytes())};
  const auto barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
  const auto call = [&] { exercise.call(); };

  exercise.fill();
  exercise.call();
  int64_t wrong = exercise.count_wrong();
  exercise.settle();

  barrier();
  const int warmup = std::max(options.warmup, options.iterations ? 0 : 1);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < warmup * row.calls_per_sample; ++i) exercise.call();
  double sample_us = microseconds_since(begin) / std::max(warmup, 1);
  MPI_Allreduce(MPI_IN_PLACE, &sample_us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  row.samples = options.iterations.value_or(samples_in(options.seconds, sample_us));

  std::vector<double> samples;
  samples.reserve(static_cast<size_t>(row.samples));
  for (int block = 0; block < kBlocks; ++block) {
    time_block(barrier, call, samples_of_block(row.samples, block), row.calls_per_sample, samples);
  }
  for (auto& sample : samples) sample /= exercise.calls_in_one();

  exercise.fill();
  exercise.call();
  wrong += exercise.count_wrong();
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  if (wrong != 0) row.wrong = fmt::format("{} elements", wrong);

  std::vector<double> all(rank == 0 ? samples.size() * static_cast<size_t>(world) : 0);
  MPI_Gather(samples.data(), row.samples, MPI_DOUBLE, all.data(), row.samples, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    std::vector<std::vector<double>> by_rank;
    for (auto at = all.begin(); at != all.end(); at += row.samples)
      by_rank.emplace_back(at, at + row.samples);
    row.time = summarize(by_rank);
  }
  return row;
}

int run(const Options& options, int rank, int world) {
  Json json;
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(version, &length);
  const std::string text(version, static_cast<size_t>(length));
  json["versions"] = {{"mpi", text.substr(0, text.find(','))}};
  json["rows"] = Json::array();
  bool right = true;
  for (const auto& plan : plan_rows(options)) {
    if (plan.collective == Collective::AllGather) continue;
    const auto row = measure(options, plan, rank, world);
    if (rank != 0) continue;
    right = right && row.wrong.empty();
    json["rows"].push_back(row_to_json(row));
    if (options.json.empty()) {
      fmt::print("{} {} ranks {}: p50 {:.2f} us, p99 {:.2f} us, data {}\n", facts_of(plan.collective).name,
                 world, size_text(row.bytes), row.time.p50_us, row.time.p99_us,
                 row.wrong.empty() ? "ok" : "WRONG");
    }
  }
  if (rank == 0 && options.json == "-") fmt::print("{}\n", json.dump());
  if (rank == 0 && !options.json.empty() && options.json != "-") {
    std::ofstream file(options.json, std::ios::trunc);
    file << json.dump(2) << std::endl;
    if (!file) {
      fmt::print(stderr, "bench_openmpi: cannot write {}\n", options.json);
      return 1;
    }
  }
  return right ? 0 : 1;
}

// Returns the options, or the exit status.
std::variant<Options, int> options_from(const std::vector<std::string>& words, int rank, int world) {
  try {
    const auto parsed = parse_options(words, "bench_openmpi");
    if (const auto* help = std::get_if<HelpText>(&parsed)) {
      if (rank == 0) fmt::print("{}", help->text);
      return 0;
    }
    const auto& options = std::get<Options>(parsed);
    if (options.op != "sum" || options.dtypes.size() != 1 || options.dtypes[0].name != std::string("float")) {
      throw lockstep::UsageError("only sums of floats can be measured");
    }
    if (world < 2 || world > kMostRanks) {
      throw lockstep::UsageError(fmt::format("start it with mpirun, as 2 to {} processes", kMostRanks));
    }
    if (!options.sizes.empty() && options.sizes.back() > int64_t{INT32_MAX}) {
      throw lockstep::UsageError("sizes are limited to 2G, the range of an MPI count");
    }
    return options;
  } catch (const lockstep::UsageError& error) {
    if (rank == 0) fmt::print(stderr, "bench_openmpi: {}\n", error.what());
    return 2;
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, world = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  const auto parsed = options_from({argv + 1, argv + argc}, rank, world);
  int status = 0;
  if (const auto* options = std::get_if<Options>(&parsed)) {
    status = run(*options, rank, world);
  } else {
    status = std::get<int>(parsed);
  }
  MPI_Finalize();
  return status;
}
