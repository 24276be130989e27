#include "launch/control.h"

#include <csignal>
#include <nlohmann/json.hpp>

#include "launch/lines.h"
#include "launch/shown.h"
#include "launch/signals.h"

namespace lockstep::launch {

namespace {

using Json = nlohmann::json;

constexpr const char* kMagic = "lockstep-agent";

constexpr size_t kMostNameBytes = 256;
constexpr size_t kMostTextBytes = 4096;
constexpr int64_t kMostMilliseconds = int64_t{1000} * 3600 * 24 * 31;

// Thrown for valid JSON with an invalid value.
struct Unexpected {};

std::string line_of(const char* type, Json object) {
  object["magic"] = kMagic;
  object["type"] = type;
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Returns read(object) if the line is a message of this type; nullopt if anything about it is invalid.
template <class Message, class Read>
std::optional<Message> read_line(std::string_view line, const char* type, Read&& read) {
  const auto object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  try {
    if (!object.is_object() || object.at("magic") != kMagic || object.at("type") != type) return std::nullopt;
    return read(object);
  } catch (const Json::exception&) {
    return std::nullopt;
  } catch (const Unexpected&) {
    return std::nullopt;
  }
}

int bounded(const Json& number, int low, int high) {
  if (!number.is_number_integer()) throw Unexpected();
  const auto value = number.get<int64_t>();
  if (value < low || value > high) throw Unexpected();
  return static_cast<int>(value);
}

int64_t whole_in(const Json& number) {
  if (!number.is_number_integer()) throw Unexpected();
  return number.get<int64_t>();
}

int64_t milliseconds_in(const Json& number) {
  const auto value = whole_in(number);
  if (value < 0 || value > kMostMilliseconds) throw Unexpected();
  return value;
}

// All text from the network passes through these functions: a name that cannot be shown unchanged is
// rejected, other text is escaped.
std::string name_in(const Json& object) {
  auto name = object.get<std::string>();
  if (shown_line(name, kMostNameBytes) != name) throw Unexpected();
  return name;
}

std::string line_in(const Json& object, size_t most_bytes) {
  return shown_line(object.get<std::string>(), most_bytes);
}

std::string lines_in(const Json& object, std::string_view indent = kHanging) {
  return shown_lines(object.get<std::string>(), kMostTextBytes, indent);
}

// A nonce or a proof.
std::string digits_in(const Json& object) {
  auto text = object.get<std::string>();
  if (text.size() > 64 || text.find_first_not_of("0123456789abcdef") != std::string::npos) throw Unexpected();
  return text;
}

// A signal that may be sent to the workers of another node on behalf of its user; 0 for none.
int stop_signal_in(const Json& number) {
  const int signal = bounded(number, 0, 64);
  if (signal != 0 && signal != SIGKILL && !is_stop_signal(signal)) throw Unexpected();
  return signal;
}

template <size_t N>
int choice(const Json& word, const char* const (&words)[N]) {
  for (size_t i = 0; i < N; ++i) {
    if (word == words[i]) return static_cast<int>(i);
  }
  throw Unexpected();
}

constexpr const char* kEvents[] = {"failed", "left", "finished", "stopped", "interrupted"};
constexpr const char* kOrders[] = {"start", "stop", "end"};
constexpr int kMostRanks = 1 << 24;
constexpr int kMostAttempts = 1 << 30;

Json json_of(const std::optional<RankEnd>& failure) {
  if (!failure) return nullptr;
  Json note;
  if (failure->note) {
    note = {{"kind", failure->note->kind},
            {"message", failure->note->message},
            {"culprits", failure->note->culprits},
            {"untold", failure->note->untold}};
  }
  Json culprits = Json::array();
  for (const auto& culprit : failure->culprits) {
    culprits.push_back({{"rank", culprit.rank},
                        {"local_rank", culprit.local_rank},
                        {"host", culprit.host},
                        {"ended", culprit.ended},
                        {"pid", culprit.pid}});
  }
  return {{"rank", failure->rank},
          {"local_rank", failure->local_rank},
          {"host", failure->host},
          {"pid", failure->pid},
          {"wait_status", failure->wait_status},
          {"note", note},
          {"last_lines", failure->last_lines},
          {"not_started", failure->not_started},
          {"culprits", culprits}};
}

std::optional<RankEnd> failure_of(const Json& object) {
  if (object.is_null()) return std::nullopt;
  RankEnd failure;
  failure.rank = bounded(object.at("rank"), 0, kMostRanks);
  failure.local_rank = bounded(object.at("local_rank"), 0, kMostWorkersPerNode);
  failure.host = name_in(object.at("host"));
  failure.pid = whole_in(object.at("pid"));
  failure.wait_status = bounded(object.at("wait_status"), 0, 0xffff);
  if (const auto& note = object.at("note"); !note.is_null()) {
    failure.note = base::Note{line_in(note.at("kind"), kMostNameBytes), lines_in(note.at("message"), ""), {}};
    for (const auto& rank : note.at("culprits")) {
      failure.note->culprits.push_back(bounded(rank, 0, kMostRanks));
    }
    if (failure.note->culprits.size() > base::Note::kMostCulprits) throw Unexpected();
    failure.note->untold = note.at("untold").get<bool>();
  }
  for (const auto& line : object.at("last_lines")) {
    failure.last_lines.push_back(line_in(line, Tail::kMostLineBytes));
  }
  if (failure.last_lines.size() > Tail::kMostLines) throw Unexpected();
  failure.not_started = lines_in(object.at("not_started"));
  for (const auto& culprit : object.at("culprits")) {
    failure.culprits.push_back({.rank = bounded(culprit.at("rank"), 0, kMostRanks),
                                .local_rank = bounded(culprit.at("local_rank"), 0, kMostWorkersPerNode),
                                .host = name_in(culprit.at("host")),
                                .ended = culprit.at("ended").get<bool>(),
                                .pid = whole_in(culprit.at("pid"))});
  }
  if (failure.culprits.size() > base::Note::kMostCulprits) throw Unexpected();
  return failure;
}

}  // namespace

std::string encode(const Challenge& challenge) {
  return line_of(
      "challenge",
      {{"version", challenge.version}, {"nonce", challenge.nonce}, {"has_token", challenge.has_token}});
}

std::optional<Challenge> decode_challenge(std::string_view line) {
  return read_line<Challenge>(line, "challenge", [](const Json& object) {
    Challenge challenge;
    challenge.version = bounded(object.at("version"), 0, 1 << 30);
    if (challenge.version != kProtocolVersion) return challenge;  // see decode_hello()
    challenge.nonce = digits_in(object.at("nonce"));
    challenge.has_token = object.at("has_token").get<bool>();
    return challenge;
  });
}

std::string encode(const Hello& hello) {
  return line_of("hello", {{"version", hello.version},
                           {"nonce", hello.nonce},
                           {"proof", hello.proof},
                           {"has_token", hello.has_token},
                           {"run_id", hello.run_id},
                           {"nnodes", hello.nnodes},
                           {"node_rank", hello.node_rank ? Json(*hello.node_rank) : Json()},
                           {"nproc", hello.nproc},
                           {"grace_ms", hello.grace_ms},
                           {"host", hello.host},
                           {"problem", shown_lines(hello.problem, kMostTextBytes, kHanging)},
                           {"problem_status", hello.problem_status}});
}

std::optional<Hello> decode_hello(std::string_view line) {
  return read_line<Hello>(line, "hello", [](const Json& object) {
    Hello hello;
    hello.version = bounded(object.at("version"), 0, 1 << 30);
    // The rest may differ in another version of the protocol; the version alone is enough to refuse it.
    if (hello.version != kProtocolVersion) return hello;
    hello.nonce = digits_in(object.at("nonce"));
    hello.proof = digits_in(object.at("proof"));
    hello.has_token = object.at("has_token").get<bool>();
    hello.run_id = name_in(object.at("run_id"));
    hello.nnodes = bounded(object.at("nnodes"), 1, kMostNodes);
    if (const auto& rank = object.at("node_rank"); !rank.is_null()) {
      hello.node_rank = bounded(rank, 0, kMostNodes - 1);
    }
    hello.nproc = bounded(object.at("nproc"), 1, kMostWorkersPerNode);
    hello.grace_ms = milliseconds_in(object.at("grace_ms"));
    hello.host = name_in(object.at("host"));
    hello.problem = lines_in(object.at("problem"));
    hello.problem_status = bounded(object.at("problem_status"), 1, 255);
    return hello;
  });
}

std::string encode(const Ack& ack) { return line_of("ack", {{"proof", ack.proof}}); }

std::optional<Ack> decode_ack(std::string_view line) {
  return read_line<Ack>(line, "ack", [](const Json& object) { return Ack{digits_in(object.at("proof"))}; });
}

std::string encode(const Welcome& welcome) {
  return line_of("welcome", {{"node_rank", welcome.node_rank},
                             {"nprocs", welcome.nprocs},
                             {"hosts", welcome.hosts},
                             {"max_restarts", welcome.max_restarts},
                             {"node_timeout_ms", welcome.node_timeout_ms}});
}

std::optional<Welcome> decode_welcome(std::string_view line) {
  return read_line<Welcome>(line, "welcome", [](const Json& object) {
    Welcome welcome;
    welcome.node_rank = bounded(object.at("node_rank"), 0, kMostNodes - 1);
    for (const auto& nproc : object.at("nprocs")) {
      welcome.nprocs.push_back(bounded(nproc, 1, kMostWorkersPerNode));
    }
    for (const auto& host : object.at("hosts")) welcome.hosts.push_back(name_in(host));
    welcome.max_restarts = bounded(object.at("max_restarts"), 0, kMostAttempts);
    welcome.node_timeout_ms = milliseconds_in(object.at("node_timeout_ms"));
    if (welcome.node_timeout_ms < kLeastNodeTimeoutMs) throw Unexpected();
    if (welcome.hosts.size() != welcome.nprocs.size() ||
        static_cast<size_t>(welcome.node_rank) >= welcome.nprocs.size()) {
      throw Unexpected();
    }
    return welcome;
  });
}

std::string encode(const Refused& refused) {
  return line_of("refused", {{"message", shown_lines(refused.message, kMostTextBytes, kHanging)},
                             {"status", refused.status}});
}

std::optional<Refused> decode_refused(std::string_view line) {
  return read_line<Refused>(line, "refused", [](const Json& object) {
    return Refused{lines_in(object.at("message")), bounded(object.at("status"), 1, 255)};
  });
}

std::string encode(const Event& event) {
  return line_of("event", {{"kind", kEvents[static_cast<int>(event.kind)]},
                           {"attempt", event.attempt},
                           {"failure", json_of(event.failure)},
                           {"rank", event.rank},
                           {"pid", event.pid},
                           {"signal", event.signal}});
}

std::optional<Event> decode_event(std::string_view line) {
  return read_line<Event>(line, "event", [](const Json& object) {
    Event event;
    event.kind = static_cast<Event::Kind>(choice(object.at("kind"), kEvents));
    event.attempt = bounded(object.at("attempt"), 0, kMostAttempts);
    event.failure = failure_of(object.at("failure"));
    event.rank = bounded(object.at("rank"), 0, kMostRanks);
    event.pid = whole_in(object.at("pid"));
    event.signal = stop_signal_in(object.at("signal"));
    if ((event.kind == Event::Kind::Failed) != event.failure.has_value() ||
        (event.kind == Event::Kind::Interrupted) != (event.signal != 0)) {
      throw Unexpected();
    }
    return event;
  });
}

std::string encode(const Order& order) {
  return line_of("order", {{"kind", kOrders[static_cast<int>(order.kind)]},
                           {"attempt", order.attempt},
                           {"signal", order.signal},
                           {"failure", json_of(order.failure)},
                           {"restart", order.restart},
                           {"reason", order.reason},
                           {"status", order.status}});
}

std::optional<Order> decode_order(std::string_view line) {
  return read_line<Order>(line, "order", [](const Json& object) {
    Order order;
    order.kind = static_cast<Order::Kind>(choice(object.at("kind"), kOrders));
    order.attempt = bounded(object.at("attempt"), 0, kMostAttempts);
    order.signal = stop_signal_in(object.at("signal"));
    order.failure = failure_of(object.at("failure"));
    order.restart = object.at("restart").get<bool>();
    order.reason = line_in(object.at("reason"), kMostTextBytes);
    order.status = bounded(object.at("status"), 0, 255);
    if ((order.kind == Order::Kind::Stop) != (order.signal != 0)) throw Unexpected();
    return order;
  });
}

std::string encode_alive() { return line_of("alive", Json::object()); }

bool decode_alive(std::string_view line) {
  return read_line<bool>(line, "alive", [](const Json&) { return true; }).has_value();
}

}  // namespace lockstep::launch
