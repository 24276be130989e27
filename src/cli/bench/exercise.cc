#include "cli/bench/exercise.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "cli/bench/values.h"

namespace lockstep::bench {

namespace {

using Value = std::function<double(int64_t index)>;

at::ScalarType scalar_type(std::string_view name) {
  static constexpr std::pair<std::string_view, at::ScalarType> kTypes[] = {
      {"float", at::kFloat},       {"double", at::kDouble}, {"half", at::kHalf},
      {"bfloat16", at::kBFloat16}, {"int8", at::kChar},     {"uint8", at::kByte},
      {"int16", at::kShort},       {"int32", at::kInt},     {"int64", at::kLong}};
  for (const auto& [known, type] : kTypes) {
    if (known == name) return type;
  }
  throw UsageError("unknown dtype " + std::string(name));
}

ReduceOp reduce_op(std::string_view name) {
  // kOperations is in the order of the enumeration.
  const auto* found = std::find(kOperations.begin(), kOperations.end(), name);
  return static_cast<ReduceOp>(found - kOperations.begin());
}

// The values of one period, or of all `elements` if these are fewer. Later elements repeat them.
at::Tensor period_of(const Value& value, int64_t elements) {
  const auto count = std::min(kPeriod, elements);
  auto period = at::empty({count}, at::kDouble);
  auto* data = period.data_ptr<double>();
  for (int64_t i = 0; i < count; ++i) data[i] = value(i);
  return period;
}

// Calls visit(begin, piece) for each piece of one period in the tensor, until it returns false.
template <class Visit>
void for_each_period(const at::Tensor& tensor, Visit&& visit) {
  for (int64_t begin = 0; begin < tensor.numel(); begin += kPeriod) {
    if (!visit(begin, tensor.narrow(0, begin, std::min(kPeriod, tensor.numel() - begin)))) return;
  }
}

void write_values(const at::Tensor& tensor, const Value& value) {
  const auto period = period_of(value, tensor.numel()).to(tensor.scalar_type());
  for_each_period(tensor, [&](int64_t, const at::Tensor& piece) {
    piece.copy_(period.narrow(0, 0, piece.numel()));
    return true;
  });
}

// `tolerance`: the largest relative error.
std::optional<WrongElement> compare(const at::Tensor& tensor, const Value& value, double tolerance) {
  const auto period = period_of(value, tensor.numel());
  const auto exact = period.to(tensor.scalar_type());
  std::optional<WrongElement> found;
  for_each_period(tensor, [&](int64_t begin, const at::Tensor& piece) {
    if (at::equal(piece, exact.narrow(0, 0, piece.numel()))) return true;
    const auto got = piece.to(at::kDouble);
    const auto wanted = period.narrow(0, 0, piece.numel());
    // Negated, so that a NaN counts as wrong.
    const auto wrong = got.sub(wanted).abs().le(wanted.abs().mul(tolerance)).logical_not();
    if (!wrong.any().item<bool>()) return true;
    const auto at = wrong.nonzero()[0].item<int64_t>();
    found = WrongElement{begin + at, got[at].item<double>(), wanted[at].item<double>()};
    return false;
  });
  return found;
}

// The tensors of one exercise, and how each collective uses them. Rank 0 is the root of all collectives.
class Player : public std::enable_shared_from_this<Player> {
 public:
  Player(std::shared_ptr<ProcessGroup> group, const ExerciseOptions& options)
      : group_(std::move(group)),
        op_name_(options.op),
        op_(reduce_op(options.op)),
        type_(scalar_type(options.dtype.name)),
        registered_(options.registered),
        rank_(group_->rank()),
        world_(group_->world_size()),
        whole_(elements_of(options.collective, options.size, options.dtype.bytes, world_)),
        part_(whole_ / world_) {
    // Sums, products, minima and maxima of these values are exact. A mean is rounded once or twice, depending
    // on the algorithm.
    if (options.op == "avg") {
      tolerance_ = at::isFloatingType(type_) ? (options.dtype.bytes == 2 ? 0x1p-6 : 0x1p-22) : 0;
    }
  }

  Exercise play(Collective collective);

 private:
  at::Tensor room_for(int64_t elements) const {
    return registered_ ? group_->empty({elements}, type_) : at::empty({elements}, type_);
  }
  Value moved_from(int rank, int64_t offset = 0) const {
    return [rank, offset](int64_t i) { return moved_value(rank, offset + i); };
  }
  Value contributed() const {
    return [this](int64_t i) { return contribution(op_name_, world_, rank_, i); };
  }
  Value reduced(int64_t offset = 0) const {
    return [this, offset](int64_t i) { return reduced_value(op_name_, world_, offset + i); };
  }
  std::optional<WrongElement> check_moved(const at::Tensor& tensor, int from, int64_t offset = 0) const {
    return compare(tensor, moved_from(from, offset), 0);
  }
  std::optional<WrongElement> check_reduced(const at::Tensor& tensor, int64_t offset = 0) const {
    return compare(tensor, reduced(offset), tolerance_);
  }
  // `outputs` has one part of each rank; `offset` is its position in that rank's data.
  std::optional<WrongElement> check_parts(const std::vector<at::Tensor>& outputs, int64_t offset = 0) const {
    if (outputs.size() != static_cast<size_t>(world_)) {
      return WrongElement{0, static_cast<double>(outputs.size()), static_cast<double>(world_)};
    }
    for (int from = 0; from < static_cast<int>(outputs.size()); ++from) {
      if (auto wrong = check_moved(outputs[from], from, offset)) return wrong;
    }
    return std::nullopt;
  }
  std::vector<at::Tensor> parts_of(const at::Tensor& tensor) const { return tensor.split(part_); }

  // The common parts of all exercises: an input filled with `value`, and a poisoned output.
  Exercise outline(Value value, std::function<void(Player&)> call,
                   std::function<std::optional<WrongElement>(Player&)> check) {
    Exercise exercise;
    exercise.bytes = whole_ * static_cast<int64_t>(c10::elementSize(type_));
    auto self = shared_from_this();
    exercise.fill = [self, value = std::move(value)] {
      if (self->input_.defined()) write_values(self->input_, value);
      if (self->output_.defined()) self->output_.fill_(kPoison);
    };
    exercise.settle = [self] {
      if (self->input_.defined()) self->input_.zero_();
      if (self->output_.defined()) self->output_.zero_();
    };
    exercise.call = [self, call = std::move(call)] { call(*self); };
    exercise.check = [self, check = std::move(check)] { return check(*self); };
    return exercise;
  }

  std::shared_ptr<ProcessGroup> group_;
  std::string op_name_;
  ReduceOp op_;
  at::ScalarType type_;
  bool registered_;
  int rank_, world_;
  int64_t whole_, part_;
  double tolerance_ = 0;
  at::Tensor input_, output_;
  std::vector<at::Tensor> pieces_;  // views of the input, or the result of the last call
};

Exercise Player::play(Collective collective) {
  const bool root = rank_ == 0;
  const auto nothing_to_check = [](Player&) { return std::optional<WrongElement>(); };
  const Value poison = [](int64_t) { return kPoison; };
  switch (collective) {
    case Collective::AllReduce:
      input_ = room_for(whole_);
      return outline(
          contributed(), [](Player& p) { p.group_->all_reduce(p.input_, p.op_); },
          [](Player& p) { return p.check_reduced(p.input_); });
    case Collective::Broadcast:
      input_ = room_for(whole_);
      return outline(
          root ? moved_from(0) : poison, [](Player& p) { p.group_->broadcast(p.input_); },
          [](Player& p) { return p.check_moved(p.input_, 0); });
    case Collective::Reduce:
      input_ = room_for(whole_);
      return outline(
          contributed(), [](Player& p) { p.group_->reduce(p.input_, 0, p.op_); },
          [](Player& p) { return p.rank_ == 0 ? p.check_reduced(p.input_) : std::nullopt; });
    case Collective::AllGather:
      input_ = room_for(part_);
      return outline(
          moved_from(rank_),
          [](Player& p) {
            p.pieces_.clear();
            p.pieces_ = p.group_->all_gather(p.input_);
          },
          [](Player& p) { return p.check_parts(p.pieces_); });
    case Collective::AllGatherIntoTensor:
      input_ = room_for(part_);
      output_ = room_for(whole_);
      return outline(
          moved_from(rank_), [](Player& p) { p.group_->all_gather_into_tensor(p.output_, p.input_); },
          [](Player& p) { return p.check_parts(p.parts_of(p.output_)); });
    case Collective::ReduceScatterTensor:
      input_ = room_for(whole_);
      output_ = room_for(part_);
      return outline(
          contributed(), [](Player& p) { p.group_->reduce_scatter_tensor(p.output_, p.input_, p.op_); },
          [](Player& p) { return p.check_reduced(p.output_, p.rank_ * p.part_); });
    case Collective::Gather:
      input_ = room_for(part_);
      return outline(
          moved_from(rank_),
          [](Player& p) {
            p.pieces_.clear();
            p.pieces_ = p.group_->gather(p.input_, 0);
          },
          [](Player& p) { return p.rank_ == 0 ? p.check_parts(p.pieces_) : std::nullopt; });
    case Collective::Scatter:
      input_ = room_for(whole_);  // on all ranks, because registering memory may be a collective
      if (root) pieces_ = parts_of(input_);
      output_ = room_for(part_);
      return outline(
          moved_from(0), [](Player& p) { p.group_->scatter(p.output_, p.pieces_, 0); },
          [](Player& p) { return p.check_moved(p.output_, 0, p.rank_ * p.part_); });
    case Collective::AllToAllSingle:
      input_ = room_for(whole_);
      output_ = room_for(whole_);
      return outline(
          moved_from(rank_), [](Player& p) { p.group_->all_to_all_single(p.output_, p.input_); },
          [](Player& p) { return p.check_parts(p.parts_of(p.output_), p.rank_ * p.part_); });
    case Collective::SendRecv: {
      input_ = room_for(whole_);
      output_ = room_for(whole_);
      if (rank_ > 1)
        return outline(
            moved_from(rank_), [](Player&) {}, nothing_to_check);
      auto exercise = outline(
          moved_from(rank_),
          [](Player& p) {
            if (p.rank_ == 0) p.group_->send(p.input_, 1);
            p.group_->recv(p.output_, 1 - p.rank_);
            if (p.rank_ == 1) p.group_->send(p.input_, 0);
          },
          [](Player& p) { return p.check_moved(p.output_, 1 - p.rank_); });
      exercise.calls_in_one = 2;
      return exercise;
    }
    case Collective::Barrier:
      return outline(
          poison, [](Player& p) { p.group_->barrier(); }, nothing_to_check);
  }
  throw UsageError("unknown collective");
}

}  // namespace

Exercise make_exercise(std::shared_ptr<ProcessGroup> group, const ExerciseOptions& options) {
  return std::make_shared<Player>(std::move(group), options)->play(options.collective);
}

}  // namespace lockstep::bench
