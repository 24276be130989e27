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
  } catch (...) {
    return {"Error", "something that is no std::exception was thrown"};
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

// What a document holds but the values of its tensors.
std::string frame_of(const Document& document) {
  nlohmann::json frame{{"about", document.about}, {"tensors", nlohmann::json::array()}};
  for (const auto& [name, tensor] : document.tensors) {
    frame["tensors"].push_back(
        {{"name", name}, {"type", static_cast<int>(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}});
  }
  return frame.dump();
}

Document empty_document(const std::string& frame) {
  const auto parsed = nlohmann::json::parse(frame);
  Document document{{}, parsed["about"]};
  for (const auto& entry : parsed["tensors"]) {
    document.tensors.push_back({entry["name"], at::empty(entry["shape"].get<std::vector<int64_t>>(),
                                                         at::ScalarType(entry["type"].get<int>()))});
  }
  return document;
}

// Bytes travel, since not every backend knows every dtype.
at::Tensor bytes_in(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), {static_cast<int64_t>(tensor.nbytes())}, at::kByte);
}

}  // namespace

void await_on_all(ProcessGroup& group, BackgroundTask& task) {
  const bool leads = group.rank() == 0;
  bool done = false;
  while (!done) {
    if (leads) done = task.done_within(kHeartbeat);
    done = broadcast_number(group, done ? 1 : 0, 0) == 1;
  }
  throw_of(group, leads ? failure_of([&] { task.get(); }) : Failure{}, 0);
}

void run_on_rank_0(ProcessGroup& group, const std::function<void()>& task) {
  BackgroundTask running;
  if (group.rank() == 0) running = BackgroundTask::start([&] { return [&] { task(); }; });
  await_on_all(group, running);
}

void agree(ProcessGroup& group, const std::function<void()>& mine) {
  agree_and_compare(group, [&] {
    mine();
    return 0;
  });
}

bool agree_and_compare(ProcessGroup& group, const std::function<int64_t()>& mine) {
  int64_t number = 0;
  const auto failure = failure_of([&] { number = mine(); });
  const int64_t failed = failure.kind.empty() ? group.world_size() : group.rank();
  // The complements turn the order round: their least belongs to the greatest number.
  auto least = at::tensor({failed, number, ~number}, at::kLong);
  group.all_reduce(least, ReduceOp::Min);
  const auto* of_all = least.data_ptr<int64_t>();
  const auto root = static_cast<int>(of_all[0]);
  if (root < group.world_size()) throw_of(group, failure, root);
  return of_all[1] == ~of_all[2];
}

std::vector<std::string> texts_of_all(ProcessGroup& group, const std::string& mine) {
  std::vector<std::string> all;
  for (int rank = 0; rank < group.world_size(); ++rank) all.push_back(broadcast_text(group, mine, rank));
  return all;
}

std::optional<Document> share(ProcessGroup& group, std::optional<Document> document) {
  if (group.world_size() == 1) return document;
  const bool leads = group.rank() == 0;
  if (broadcast_number(group, document ? 1 : 0, 0) == 0) return std::nullopt;

  // Whatever may fail on one rank stands between the collectives, where all can agree on it.
  at::Tensor frame;
  agree(group, [&] {
    if (leads) frame = bytes_of(frame_of(*document));
  });
  const auto size = broadcast_number(group, leads ? frame.numel() : 0, 0);
  agree(group, [&] {
    if (!leads) frame = at::empty({size}, at::kByte);
  });
  group.broadcast(frame, 0);
  agree(group, [&] {
    if (!leads) document = empty_document(text_of(frame));
  });
  for (auto& entry : document->tensors) {
    if (entry.tensor.numel() == 0) continue;
    auto bytes = bytes_in(entry.tensor);
    group.broadcast(bytes, 0);
  }
  return document;
}

}  // namespace lockstep::snapshot
