#include "c10d_face/titles.h"

namespace lockstep::c10d_face {

Titles::Titles(const std::string& engine) {
  using c10d::OpType;
  const auto add = [&](OpType type, const char* call) { titles_[type] = engine + ':' + call; };
  add(OpType::BROADCAST, "broadcast");
  add(OpType::ALLREDUCE, "all_reduce");
  add(OpType::ALLREDUCE_COALESCED, "all_reduce");
  add(OpType::REDUCE, "reduce");
  add(OpType::ALLGATHER, "all_gather");
  add(OpType::ALLGATHER_COALESCED, "all_gather");
  add(OpType::_ALLGATHER_BASE, "all_gather_base");
  add(OpType::GATHER, "gather");
  add(OpType::SCATTER, "scatter");
  add(OpType::REDUCE_SCATTER, "reduce_scatter");
  add(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_base");
  add(OpType::ALLTOALL, "all_to_all");
  add(OpType::ALLTOALL_BASE, "all_to_all");
  add(OpType::SEND, "send");
  add(OpType::RECV, "recv");
  add(OpType::RECVANYSOURCE, "recvAnySource");
  add(OpType::BARRIER, "barrier");
}

const char* Titles::of(c10d::OpType type) const { return titles_.at(type).c_str(); }

}  // namespace lockstep::c10d_face
