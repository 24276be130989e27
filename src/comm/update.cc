#include "comm/update.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include <ATen/ATen.h>

#include "comm/group.h"
#include "comm/transport.h"

namespace lockstep::comm {

namespace {

// Of a chunk: while one is transformed, the next one is reduced and the one before is gathered.
constexpr int64_t kChunkBytes = int64_t{4} << 20;
constexpr size_t kUnderWay = 2;

struct Chunk {
  Range range;  // of the whole tensor; divided equally among the ranks
  Range part(int rank, int world_size) const {
    const auto share = range.count / world_size;
    return {range.from + rank * share, share};
  }
};

std::vector<Chunk> chunks_of(int world_size, int64_t count, size_t element_bytes) {
  const auto length =
      std::max<int64_t>(1, kChunkBytes / static_cast<int64_t>(element_bytes) / world_size) * world_size;
  std::vector<Chunk> chunks;
  for (int64_t from = 0; from < count; from += length)
    chunks.push_back({{from, std::min(length, count - from)}});
  return chunks;
}

class InParts {
 public:
  InParts(ProcessGroup::Impl& group, Request& request, Transform& transform)
      : transport_(*group.transport),
        rank_(group.rank),
        world_size_(group.world_size),
        neighbours_(group.transport->neighbours() != nullptr ? group.transport->neighbours()->ranks()
                                                             : std::vector{group.rank}),
        request_(request),
        transform_(transform),
        element_bytes_(c10::elementSize(request.dtype)) {}

  void run() {
    const auto count = static_cast<int64_t>(request_.give[0].bytes / element_bytes_);
    for (const auto& chunk : chunks_of(world_size_, count, element_bytes_)) {
      reducing_.push_back(reduce(chunk));
      if (reducing_.size() > kUnderWay) finish_one();
    }
    while (!reducing_.empty()) finish_one();
    for (auto& gathering : gathering_) complete(gathering);
    if (!request_.takes_together || request_.take[0].bytes == 0) return;
    // The other ranks of this machine have written what they take for this one.
    Request barrier;
    barrier.kind = Kind::Barrier;
    barrier.timeout = request_.timeout;
    transport_.run(barrier);
  }

 private:
  struct Reducing {
    Chunk chunk;
    at::Tensor sum;  // this rank's part
    std::shared_ptr<Work::State> call;
  };
  struct Gathering {
    Range range;
    at::Tensor results;  // for common memory: of all ranks
    std::shared_ptr<Work::State> call;
  };

  Piece piece(std::byte* data, const Range& range) const {
    return {data + range.from * element_bytes_, range.count * element_bytes_};
  }
  at::Tensor empty(int64_t count) const {
    return at::empty({count}, at::TensorOptions().dtype(request_.dtype).device(request_.device));
  }
  Request part_request(Kind kind, const Chunk& chunk) const {
    Request part;
    part.kind = kind;
    part.name = request_.name;
    part.dtype = request_.dtype;
    part.device = request_.device;
    part.op = request_.op;
    part.count = chunk.range.count / world_size_;
    part.timeout = request_.timeout;
    part.keep = request_.keep;
    return part;
  }

  Reducing reduce(const Chunk& chunk) {
    auto part = part_request(Kind::ReduceScatter, chunk);
    if (averages_over_some()) part.op = ReduceOp::Sum;
    auto sum = empty(chunk.range.count / world_size_);
    for (int rank = 0; rank < world_size_; ++rank) {
      part.give.push_back(piece(request_.give[0].data, chunk.part(rank, world_size_)));
    }
    part.take.push_back({static_cast<std::byte*>(sum.data_ptr()), sum.nbytes()});
    part.keep.push_back(sum);
    return {chunk, sum, transport_.start(std::move(part))};
  }

  void finish_one() {
    const auto [chunk, sum, call] = std::move(reducing_.front());
    reducing_.pop_front();
    call->complete();
    if (averages_over_some()) at::Tensor(sum).div_(request_.participants);
    auto* const values = static_cast<std::byte*>(sum.data_ptr());
    transform_.apply(values, chunk.part(rank_, world_size_));
    if (request_.take[0].bytes == 0) return;
    auto part = part_request(Kind::AllGather, chunk);
    part.give.push_back({values, sum.nbytes()});
    Gathering gathering{.range = chunk.range};
    auto* to = request_.take[0].data;
    if (request_.takes_together) {
      while (gathering_.size() >= kUnderWay) {
        complete(gathering_.front());
        gathering_.pop_front();
      }
      gathering.results = empty(chunk.range.count);
      part.keep.push_back(gathering.results);
      to = static_cast<std::byte*>(gathering.results.data_ptr()) - chunk.range.from * element_bytes_;
    }
    for (int rank = 0; rank < world_size_; ++rank) {
      part.take.push_back(piece(to, chunk.part(rank, world_size_)));
    }
    part.keep.push_back(sum);
    gathering.call = transport_.start(std::move(part));
    gathering_.push_back(std::move(gathering));
  }

  // Each rank of a machine copies its share of what it has gathered to their common memory.
  void complete(Gathering& gathering) {
    gathering.call->complete();
    if (!gathering.results.defined()) return;
    const auto from = gathering.range.from, count = gathering.range.count;
    const auto share = [&, size = static_cast<int64_t>(neighbours_.size())](int64_t index) {
      return count * index / size;
    };
    const auto index = std::find(neighbours_.begin(), neighbours_.end(), rank_) - neighbours_.begin();
    const Range mine{share(index), share(index + 1) - share(index)};
    std::memcpy(request_.take[0].data + (from + mine.from) * element_bytes_,
                static_cast<std::byte*>(gathering.results.data_ptr()) + mine.from * element_bytes_,
                mine.count * element_bytes_);
    gathering.results.reset();
  }

  // The transport's average is that of all ranks.
  bool averages_over_some() const {
    return request_.op == ReduceOp::Avg && request_.participants > 0 && request_.participants < world_size_;
  }

  Transport& transport_;
  const int rank_, world_size_;
  const std::vector<int> neighbours_;  // the ranks of this machine
  Request& request_;
  Transform& transform_;
  const size_t element_bytes_;
  std::deque<Reducing> reducing_;
  std::deque<Gathering> gathering_;
};

std::vector<Range> ranges_in_parts(int rank, int world_size, int64_t count, size_t element_bytes) {
  std::vector<Range> ranges;
  for (const auto& chunk : chunks_of(world_size, count, element_bytes)) {
    ranges.push_back(chunk.part(rank, world_size));
  }
  return ranges;
}

}  // namespace

void update(ProcessGroup::Impl& group, Request& request, Transform& transform) {
  if (request.give[0].bytes == 0) return;  // of empty parameters
  if (auto* const direct = group.transport->one_pass()) {
    direct->update(request, transform);
  } else {
    InParts(group, request, transform).run();
  }
}

std::vector<Range> updated_ranges(const ProcessGroup::Impl& group, const Request& request) {
  if (auto* const direct = group.transport->one_pass()) return direct->updated_ranges(request);
  const auto element_bytes = c10::elementSize(request.dtype);
  return ranges_in_parts(group.rank, group.world_size,
                         static_cast<int64_t>(request.give[0].bytes / element_bytes), element_bytes);
}

}  // namespace lockstep::comm
