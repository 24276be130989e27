#include "store/service.h"

#include <algorithm>
#include <utility>

namespace lockstep::store {

namespace {

using base::Deadline;

// The limit for a client that sends requests and does not read the answers.
constexpr size_t kMostUnreadBytes = 4 * kMostFrameBytes;
constexpr int64_t kMostRanks = 1 << 24;

Writer news(News what, int rank, const std::string& topic = "", const std::string& text = "") {
  Writer message;
  message.number(0).number(static_cast<int64_t>(what)).number(rank).text(topic).text(text);
  return message;
}

Writer answer_to(int64_t request, Outcome outcome = Outcome::Done) {
  Writer message;
  message.number(request).number(static_cast<int64_t>(outcome));
  return message;
}

}  // namespace

Service::Caller& Service::add() {
  auto& caller = callers_.emplace_back();
  send(caller, Writer().text(kMagic).number(kVersion).text(caller.nonce));
  return caller;
}

void Service::hear(Caller& caller, const char* bytes, size_t size) {
  caller.incoming.add(bytes, size);
  try {
    while (!caller.closed) {
      const auto frame = caller.incoming.next(caller.admitted ? kMostFrameBytes : kMostHelloBytes);
      if (!frame) return;
      Reader message(*frame);
      caller.admitted ? answer(caller, message) : admit(caller, message);
    }
  } catch (const Malformed&) {
    end(caller);
  }
}

void Service::end(Caller& caller) {
  if (std::exchange(caller.closed, true)) return;
  if (caller.admitted && !caller.said_bye) announce(caller.rank, News::Lost);
}

void Service::remove(Caller& caller) {
  std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.caller == &caller; });
  callers_.remove_if([&](const Caller& one) { return &one == &caller; });
}

void Service::admit(Caller& caller, Reader& hello) {
  const auto rank = hello.number();
  const auto nonce = hello.text();
  const auto proof = hello.text();
  hello.end();
  if (rank < 0 || rank >= kMostRanks) throw Malformed();
  if (!token_.proves(proof, "client", caller.nonce, nonce)) {
    send(caller, Writer().text("its token is not the job's").text(""));
    return end(caller);
  }
  caller.admitted = true;
  caller.rank = static_cast<int>(rank);
  send(caller, Writer().text("").text(token_.prove("server", nonce, caller.nonce)));
  for (const auto& [ended, how] : ended_) send(caller, news(how, ended));
  for (const auto& [topic, failed] : failures_) {
    send(caller, news(News::Failed, failed.rank, topic, failed.text));
  }
}

void Service::answer(Caller& caller, Reader& request) {
  const auto id = request.number();
  const auto ask = static_cast<Ask>(request.number());
  // All arguments are read before anything changes, so that a malformed request has no effect.
  switch (ask) {
    case Ask::Set: {
      const auto key = request.text();
      auto value = request.text();
      request.end();
      table_.set(key, std::move(value));
      return send(caller, answer_to(id));
    }
    case Ask::CompareSet: {
      const auto key = request.text();
      const auto expected = request.text();
      auto wanted = request.text();
      request.end();
      return send(caller, answer_to(id).text(table_.compare_set(key, expected, std::move(wanted))));
    }
    case Ask::Get: {
      auto keys = request.texts();
      const auto milliseconds = std::clamp<int64_t>(request.number(), 0, int64_t{1} << 40);
      request.end();
      // answer_waiting() answers it, at once if all keys exist.
      waiting_.push_back(
          {&caller, id, std::move(keys), Deadline::in(std::chrono::milliseconds(milliseconds))});
      return;
    }
    case Ask::Add: {
      const auto key = request.text();
      const auto amount = request.number();
      request.end();
      return send(caller, answer_to(id).number(table_.add(key, amount)));
    }
    case Ask::Check: {
      const auto keys = request.texts();
      request.end();
      return send(caller, answer_to(id).number(table_.has(keys) ? 1 : 0));
    }
    case Ask::Erase: {
      const auto key = request.text();
      request.end();
      return send(caller, answer_to(id).number(table_.erase(key) ? 1 : 0));
    }
    case Ask::Count:
      request.end();
      return send(caller, answer_to(id).number(table_.count()));
    case Ask::Forget: {
      const auto prefix = request.text();
      const auto holders = request.number();
      request.end();
      if (table_.forget(prefix, holders)) {
        std::erase_if(failures_, [&](const auto& failed) { return is_topic_of(prefix, failed.first); });
      }
      return;
    }
    case Ask::Fail: {
      const auto topic = request.text();
      auto text = request.text();
      request.end();
      return fail(caller, topic, std::move(text));
    }
    case Ask::Bye:
      request.end();
      caller.said_bye = true;
      announce(caller.rank, News::Left);
      return send(caller, answer_to(id));
  }
  throw Malformed();
}

void Service::answer_waiting() {
  std::erase_if(waiting_, [this](const Waiting& waiting) {
    const auto values = table_.get(waiting.keys);
    if (!values && !waiting.deadline.expired()) return false;
    send(*waiting.caller, answer_to(waiting.request, values ? Outcome::Done : Outcome::TimedOut)
                              .texts(values.value_or(std::vector<std::string>{})));
    return true;
  });
}

std::optional<Deadline> Service::next_deadline() const {
  const auto next = std::min_element(
      waiting_.begin(), waiting_.end(),
      [](const Waiting& a, const Waiting& b) { return a.deadline.remaining() < b.deadline.remaining(); });
  return next == waiting_.end() ? std::nullopt : std::optional(next->deadline);
}

void Service::fail(const Caller& caller, const std::string& topic, std::string text) {
  const auto [at, first] = failures_.try_emplace(topic, Failed{caller.rank, std::move(text)});
  if (first) send_to_all(news(News::Failed, at->second.rank, topic, at->second.text));
}

void Service::announce(int rank, News how) {
  if (ended_.try_emplace(rank, how).second) send_to_all(news(how, rank));
}

void Service::send_to_all(const Writer& message) {
  for (auto& caller : callers_) {
    if (caller.admitted) send(caller, message);
  }
}

void Service::send(Caller& caller, const Writer& message) {
  if (caller.closed) return;
  caller.outgoing += message.frame();
  if (caller.outgoing.size() > kMostUnreadBytes) end(caller);
}

}  // namespace lockstep::store
