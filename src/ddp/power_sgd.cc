// PowerSGD: sends a gradient M (n × m) as P (n × r) and Q (m × r), with M ≈ P Qᵀ.
//
// One step of subspace iteration: P = M Q, averaged over the ranks and orthonormalised; Q = Mᵀ P, averaged.
// All ranks compute the same from the same averages, so their results are bitwise the same.
#include <map>
#include <memory>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <lockstep/comm_hook.h>
#include <lockstep/error.h>

#include "comm/flatten.h"

namespace lockstep::hooks {

namespace {

struct Matrix {
  size_t index;  // in the bucket
  int64_t rows, columns, rank;
};

// The state of a bucket that is kept from step to step.
struct Memory {
  std::vector<std::string> names;  // of its parameters
  std::vector<std::vector<int64_t>> shapes;
  at::Tensor lost;             // the error of the compression, for error feedback
  std::vector<at::Tensor> qs;  // warm start
};

// Gram-Schmidt, column by column. A column that depends on the previous ones becomes zero: the rest of it is
// rounding error, and scaling it up would give it an arbitrary direction.
void orthonormalize(at::Tensor& matrix) {
  constexpr double kNothing = 1e-5;
  for (int64_t column = 0; column < matrix.size(1); ++column) {
    auto current = matrix.select(1, column);
    const auto length = current.norm().item<double>();
    // Twice is enough: the first pass leaves its own rounding error.
    for (int pass = 0; pass < 2 && column > 0; ++pass) {
      const auto before = matrix.narrow(1, 0, column);
      current.sub_(before.mv(before.t().mv(current)));
    }
    const auto left = current.norm().item<double>();
    if (left > kNothing * length) {
      current.div_(left);
    } else {
      current.zero_();
    }
  }
}

class PowerSgd {
 public:
  explicit PowerSgd(PowerSgdOptions options) : options_(options) {
    if (options_.rank < 1) throw UsageError("PowerSGD needs a rank of at least 1");
  }

  CommResult operator()(GradBucket& bucket, ProcessGroup& group) {
    const bool plain = step_ < options_.start_step;
    if (bucket.is_last) ++step_;
    if (plain) return average(bucket.buffer, bucket.mean, group);
    return compress(bucket, group);
  }

 private:
  static CommResult average(const at::Tensor& tensor, const Mean& mean, ProcessGroup& group) {
    auto work = group.all_reduce_async(tensor);
    return [tensor, mean, work]() mutable {
      work.wait();
      return mean.divide(tensor);
    };
  }

  std::vector<Matrix> matrices_of(const GradBucket& bucket) const {
    std::vector<Matrix> matrices;
    for (size_t index = 0; index < bucket.gradients.size(); ++index) {
      const auto& gradient = bucket.gradients[index];
      if (gradient.dim() < 2 || gradient.numel() == 0) continue;
      const int64_t rows = gradient.size(0);
      const int64_t columns = gradient.numel() / rows;
      const int64_t rank = std::min({static_cast<int64_t>(options_.rank), rows, columns});
      if (static_cast<double>((rows + columns) * rank) * options_.min_compression >
          static_cast<double>(gradient.numel())) {
        continue;
      }
      matrices.push_back({index, rows, columns, rank});
    }
    return matrices;
  }

  std::vector<at::Tensor> first_qs(const std::vector<Matrix>& matrices, size_t bucket,
                                   const at::TensorOptions& like) const {
    // The same on all ranks, but different for each bucket and, without warm start, for each step.
    auto generator = at::detail::createCPUGenerator(options_.seed + 7919 * bucket + 104729 * step_);
    std::vector<at::Tensor> qs;
    for (const auto& matrix : matrices) {
      // On the CPU, so that it is the same for all devices.
      auto q = at::randn({matrix.columns, matrix.rank}, generator, like.device(at::kCPU)).to(like.device());
      orthonormalize(q);
      qs.push_back(q);
    }
    return qs;
  }

  CommResult compress(GradBucket& bucket, ProcessGroup& group) {
    const auto matrices = matrices_of(bucket);
    if (matrices.empty()) return average(bucket.buffer, bucket.mean, group);
    auto& memory = memories_[bucket.index];
    std::vector<std::vector<int64_t>> shapes;
    for (const auto& gradient : bucket.gradients) shapes.push_back(gradient.sizes().vec());
    if (memory.names != bucket.names || memory.shapes != shapes) {  // the plan has changed
      memory = {.names = bucket.names, .shapes = std::move(shapes)};
    }
    if (options_.error_feedback && bucket.takes_part) {
      if (memory.lost.defined()) bucket.buffer.add_(memory.lost);
      memory.lost = bucket.buffer.clone();
    }
    if (memory.qs.empty() || !options_.warm_start) {
      memory.qs = first_qs(matrices, bucket.index, bucket.buffer.options());
    }

    // Gradients that are not compressed are sent meanwhile.
    auto rest = std::make_shared<std::vector<at::Tensor>>();
    for (size_t index = 0, next = 0; index < bucket.gradients.size(); ++index) {
      if (next < matrices.size() && matrices[next].index == index) {
        ++next;
      } else {
        rest->push_back(bucket.gradients[index]);
      }
    }
    at::Tensor rest_in_one;
    Work rest_work;
    if (!rest->empty()) {
      rest_in_one = comm::flatten(*rest);
      rest_work = group.all_reduce_async(rest_in_one);
    }

    std::vector<at::Tensor> ms, ps;
    for (size_t i = 0; i < matrices.size(); ++i) {
      ms.push_back(bucket.gradients[matrices[i].index].reshape({matrices[i].rows, matrices[i].columns}));
      ps.push_back(ms[i].mm(memory.qs[i]));
    }
    auto all_p = comm::flatten(ps);
    group.all_reduce(all_p);
    comm::unflatten(bucket.mean.divide(all_p), ps);
    for (size_t i = 0; i < matrices.size(); ++i) {
      orthonormalize(ps[i]);
      memory.qs[i] = ms[i].t().mm(ps[i]);
    }
    auto all_q = comm::flatten(memory.qs);
    auto work = group.all_reduce_async(all_q);

    return [this, bucket, matrices, ps, all_q, work, rest, rest_in_one, rest_work]() mutable {
      auto& kept = memories_[bucket.index];
      work.wait();
      comm::unflatten(bucket.mean.divide(all_q), kept.qs);
      for (size_t i = 0; i < matrices.size(); ++i) {
        auto& gradient = bucket.gradients[matrices[i].index];
        gradient.copy_(ps[i].mm(kept.qs[i].t()).view(gradient.sizes()));
      }
      rest_work.wait();
      if (!rest->empty()) comm::unflatten(bucket.mean.divide(rest_in_one), *rest);
      // Gradients that were not compressed have no error: their average is exact.
      if (kept.lost.defined() && bucket.takes_part) {
        kept.lost.sub_(bucket.buffer);
        for (const auto& gradient : *rest) {
          const auto offset = gradient.storage_offset() - bucket.buffer.storage_offset();
          kept.lost.narrow(0, offset, gradient.numel()).zero_();
        }
      }
      return bucket.buffer;
    };
  }

  const PowerSgdOptions options_;
  int64_t step_ = 0;
  std::map<size_t, Memory> memories_;
};

}  // namespace

CommHook power_sgd(PowerSgdOptions options) {
  return [state = std::make_shared<PowerSgd>(options)](GradBucket& bucket, ProcessGroup& group) {
    return (*state)(bucket, group);
  };
}

}  // namespace lockstep::hooks
