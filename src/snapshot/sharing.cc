#include "snapshot/sharing.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "comm/control.h"

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
    return {"Error", base::kNoMessage};
  }
}

// Throws on all ranks what failed on root.
void throw_of(ProcessGroup& group, const Failure& failure, int root) {
  auto& control = comm::control_of(group);
  const auto kind = control.text_of_root("snapshot, kind of an error", failure.kind, root);
  if (kind.empty()) return;
  base::throw_kind(kind, control.text_of_root("snapshot, error", failure.message, root));
}

// What a document holds but the values of its tensors.
std::string frame_of(const Document& document) {
  nlohmann::json frame{{"about", document.about}, {"tensors", nlohmann::json::array()}};
  for (const auto& entry : document.tensors) {
    frame["tensors"].push_back({{"name", entry.name},
                                {"type", static_cast<int>(entry.tensor.scalar_type())},
                                {"shape", entry.tensor.sizes().vec()}});
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
    done = comm::control_of(group).of_root<char>("snapshot, rank 0 is at work", done ? 1 : 0, 0) == 1;
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
  struct Outcome {
    int64_t number = 0;
    int64_t failed = 0;
  } outcome;
  const auto failure = failure_of([&] { outcome.number = mine(); });
  outcome.failed = failure.kind.empty() ? 0 : 1;
  const auto all = comm::control_of(group).gather("snapshot, agreement", outcome);
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (all[rank].failed != 0) throw_of(group, failure, rank);
  }
  return std::all_of(all.begin(), all.end(),
                     [&](const Outcome& theirs) { return theirs.number == all.front().number; });
}

std::vector<std::string> texts_of_all(ProcessGroup& group, const std::string& mine) {
  return comm::control_of(group).gather_texts("snapshot, texts", mine);
}

std::optional<Document> share(ProcessGroup& group, std::optional<Document> document) {
  if (group.world_size() == 1) return document;
  const bool leads = group.rank() == 0;
  auto& control = comm::control_of(group);
  if (control.of_root<char>("snapshot, found", document ? 1 : 0, 0) == 0) return std::nullopt;

  // Whatever may fail on one rank stands between the collectives, where all can agree on it.
  std::string frame;
  agree(group, [&] {
    if (leads) frame = frame_of(*document);
  });
  frame = control.text_of_root("snapshot, contents", frame, 0);
  agree(group, [&] {
    if (!leads) document = empty_document(frame);
  });
  for (auto& entry : document->tensors) {
    if (entry.tensor.numel() == 0) continue;
    auto bytes = bytes_in(entry.tensor);
    group.broadcast(bytes, 0);
  }
  return document;
}

}  // namespace lockstep::snapshot
