#include "hybrid/operation.h"

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/error.h>

#include "comm/wire_tags.h"
#include "hybrid/all_reduce.h"
#include "hybrid/moves.h"
#include "hybrid/reductions.h"

namespace lockstep::hybrid {

using comm::Kind;
using comm::Piece;

Operation::Operation(const Paths& paths, Task task)
    : paths_(paths),
      task_(std::move(task)),
      facts_(comm::facts_of(task_.request)),
      element_bytes_(c10::elementSize(task_.request.dtype)),
      owner_(std::make_shared<const std::vector<at::Tensor>>(task_.request.keep)) {
  facts_.number = task_.number;
}

void Operation::front(size_t) {
  auto meet = local(Kind::Barrier);
  run(Half::Front, std::move(meet));
}

comm::Request Operation::local(Kind kind, int root) const {
  comm::Request part;
  part.kind = kind;
  part.dtype = task_.request.dtype;
  part.root = root;
  part.op = task_.request.op == ReduceOp::Avg ? ReduceOp::Sum
                                              : task_.request.op;  // divided when all machines are summed
  part.timeout = task_.request.timeout;
  part.part_of = &facts_;
  return part;
}

comm::TransferPtr Operation::send(int to, uint64_t part, Piece piece, const Buffer& buffer) const {
  if (piece.bytes == 0) return {};
  return paths_.link.send(to, comm::part_tag(task_.digest, part), piece.data, piece.bytes,
                          buffer ? comm::Link::Owner(buffer) : owner_);
}

comm::TransferPtr Operation::receive(int from, uint64_t part, Piece piece, const Buffer& buffer) const {
  if (piece.bytes == 0) return {};
  return paths_.link.receive(from, comm::part_tag(task_.digest, part), piece.data, piece.bytes,
                             buffer ? comm::Link::Owner(buffer) : owner_);
}

std::unique_ptr<Operation> make_operation(const Paths& paths, Task task) {
  const auto make = [&]<class Kind_>(std::type_identity<Kind_>) -> std::unique_ptr<Operation> {
    return std::make_unique<Kind_>(paths, std::move(task));
  };
  switch (task.request.kind) {
    case Kind::AllReduce:
      return make(std::type_identity<AllReduce>{});
    case Kind::Reduce:
      return make(std::type_identity<Reduce>{});
    case Kind::ReduceScatter:
      return make(std::type_identity<ReduceScatter>{});
    case Kind::Broadcast:
      return make(std::type_identity<Broadcast>{});
    case Kind::AllGather:
      return make(std::type_identity<AllGather>{});
    case Kind::Gather:
      return make(std::type_identity<Gather>{});
    case Kind::Scatter:
      return make(std::type_identity<Scatter>{});
    case Kind::AllToAll:
      return make(std::type_identity<AllToAll>{});
    case Kind::Barrier:
      return make(std::type_identity<Barrier>{});
    default:
      throw UsageError("the transport for several machines does not support this call");
  }
}

}  // namespace lockstep::hybrid
