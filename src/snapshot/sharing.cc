#include "snapshot/sharing.h"

#include <chrono>
#include <cstring>
#include <exception>
#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::snapshot {

namespace {

// Well below any deadline that lets a job start.
constexpr auto kHeartbeat = std::chrono::milliseconds(250);

struct Failure {
  std::string kind;  // empty: none
  std::string message;
};

Failure failure_of(const std::function<void()>& task) {
  try {
    task();
    return {};
  } catch (const Error& error) {
    return {std::string(error.kind()), error.what()};
  } catch (const std::exception& error) {
    return {"Error", error.what()};
  }
}

at::Tensor bytes_of(const std::string& text) {
  auto bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

std::string text_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(bytes.numel())};
}

int64_t broadcast_number(ProcessGroup& group, int64_t number, int root) {
  auto tensor = at::full({1}, number, at::kLong);
  group.broadcast(tensor, root);
  return tensor.item<int64_t>();
}

std::string broadcast_text(ProcessGroup& group, const std::string& text, int root) {
  const auto size = broadcast_number(group, static_cast<int64_t>(text.size()), root);
  if (size == 0) return {};
  auto bytes = group.rank() == root ? bytes_of(text) : at::empty({size}, at::kByte);
  group.broadcast(bytes, root);
  return text_of(bytes);
}

// Throws on all ranks what failed on root.
void throw_of(ProcessGroup& group, const Failure& failure, int root) {
  const auto kind = broadcast_text(group, failure.kind, root);
  const auto message = broadcast_text(group, failure.message, root);
  if (!kind.empty()) base::throw_kind(kind, message);
}

// Bytes travel, since not every backend knows every dtype.
at::Tensor bytes_in(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), {static_cast<int64_t>(tensor.nbytes())}, at::kByte);
}

}  // namespace

void await_on_all(ProcessGroup& group, std::future<void>* task) {
  const bool leads = group.rank() == 0;
  bool done = false;
  while (!done) {
    if (leads) done = task->wait_for(kHeartbeat) == std::future_status::ready;
    done = broadcast_number(group, done ? 1 : 0, 0) == 1;
  }
  throw_of(group, leads ? failure_of([&] { task->get(); }) : Failure{}, 0);
}

void run_on_rank_0(ProcessGroup& group, const std::function<void()>& task) {
  std::future<void> running;
  if (group.rank() == 0) running = std::async(std::launch::async, task);
  await_on_all(group, &running);
}

void agree(ProcessGroup& group, const std::function<void()>& mine) {
  const auto failure = failure_of(mine);
  auto first = at::full({1}, failure.kind.empty() ? group.world_size() : group.rank(), at::kLong);
  group.all_reduce(first, ReduceOp::Min);
  const auto root = first.item<int>();
  if (root < group.world_size()) throw_of(group, failure, root);
}

std::optional<Document> share(ProcessGroup& group, std::optional<Document> document) {
  if (group.world_size() == 1) return document;
  const bool leads = group.rank() == 0;
  if (broadcast_number(group, document ? 1 : 0, 0) == 0) return std::nullopt;

  nlohmann::json frame;
  if (leads) {
    frame["about"] = document->about;
    frame["tensors"] = nlohmann::json::array();
    for (const auto& [name, tensor] : document->tensors) {
      frame["tensors"].push_back({{"name", name},
                                  {"type", static_cast<int>(tensor.scalar_type())},
                                  {"shape", tensor.sizes().vec()}});
    }
  }
  const auto text = broadcast_text(group, leads ? frame.dump() : "", 0);
  if (!leads) {
    frame = nlohmann::json::parse(text);
    document.emplace();
    document->about = frame["about"];
    for (const auto& entry : frame["tensors"]) {
      document->tensors.push_back({entry["name"], at::empty(entry["shape"].get<std::vector<int64_t>>(),
                                                            at::ScalarType(entry["type"].get<int>()))});
    }
  }
  for (auto& entry : document->tensors) {
    if (entry.tensor.numel() == 0) continue;
    auto bytes = bytes_in(entry.tensor);
    group.broadcast(bytes, 0);
  }
  return document;
}

}  // namespace lockstep::snapshot
