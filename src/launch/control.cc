#include "launch/control.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lockstep::launch {

namespace {

using Json = nlohmann::json;

constexpr const char* kMagic = "lockstep-agent";

// Well-formed JSON that says something that cannot be.
struct Unexpected {};

std::string line_of(const char* type, Json object) {
  object["magic"] = kMagic;
  object["type"] = type;
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Runs `read` on the object when it is of this type; nullopt when anything about it is wrong.
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

// A name that may be shown on a terminal: no control characters, not endless.
std::string name_in(const Json& object) {
  auto name = object.get<std::string>();
  const bool clean =
      std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (!clean || name.size() > 256) throw Unexpected();
  return name;
}

template <size_t N>
int choice(const Json& word, const char* const (&words)[N]) {
  for (size_t i = 0; i < N; ++i) {
    if (word == words[i]) return static_cast<int>(i);
  }
  throw Unexpected();
}

constexpr const char* kEvents[] = {"failed", "finished", "stopped", "interrupted"};
constexpr const char* kOrders[] = {"start", "stop", "end"};
constexpr int kMostRanks = 1 << 24;
constexpr int kMostAttempts = 1 << 30;

Json json_of(const std::optional<Failure>& failure) {
  if (!failure) return nullptr;
  Json note;
  if (failure->note) note = {{"kind", failure->note->kind}, {"message", failure->note->message}};
  return {{"rank", failure->rank},
          {"local_rank", failure->local_rank},
          {"host", failure->host},
          {"pid", failure->pid},
          {"wait_status", failure->wait_status},
          {"note", note},
          {"last_lines", failure->last_lines},
          {"not_started", failure->not_started}};
}

std::optional<Failure> failure_of(const Json& object) {
  if (object.is_null()) return std::nullopt;
  Failure failure;
  failure.rank = bounded(object.at("rank"), 0, kMostRanks);
  failure.local_rank = bounded(object.at("local_rank"), 0, kMostWorkersPerNode);
  failure.host = name_in(object.at("host"));
  failure.pid = object.at("pid").get<int64_t>();
  failure.wait_status = bounded(object.at("wait_status"), 0, 0xffff);
  if (const auto& note = object.at("note"); !note.is_null()) {
    failure.note = base::Note{note.at("kind").get<std::string>(), note.at("message").get<std::string>()};
  }
  failure.last_lines = object.at("last_lines").get<std::vector<std::string>>();
  failure.not_started = object.at("not_started").get<std::string>();
  return failure;
}

}  // namespace

std::string encode(const Hello& hello) {
  return line_of("hello", {{"version", hello.version},
                           {"run_id", hello.run_id},
                           {"nnodes", hello.nnodes},
                           {"node_rank", hello.node_rank ? Json(*hello.node_rank) : Json()},
                           {"nproc", hello.nproc},
                           {"host", hello.host},
                           {"problem", hello.problem},
                           {"problem_status", hello.problem_status}});
}

std::optional<Hello> decode_hello(std::string_view line) {
  return read_line<Hello>(line, "hello", [](const Json& object) {
    Hello hello;
    hello.version = bounded(object.at("version"), 0, 1 << 30);
    // A later protocol may look different from here on; the version alone says enough to refuse it.
    if (hello.version != kProtocolVersion) return hello;
    hello.run_id = name_in(object.at("run_id"));
    hello.nnodes = bounded(object.at("nnodes"), 1, kMostNodes);
    if (const auto& rank = object.at("node_rank"); !rank.is_null()) {
      hello.node_rank = bounded(rank, 0, kMostNodes - 1);
    }
    hello.nproc = bounded(object.at("nproc"), 1, kMostWorkersPerNode);
    hello.host = name_in(object.at("host"));
    hello.problem = object.at("problem").get<std::string>();
    hello.problem_status = bounded(object.at("problem_status"), 1, 255);
    return hello;
  });
}

std::string encode_ack() { return line_of("ack", Json::object()); }

bool decode_ack(std::string_view line) {
  return read_line<bool>(line, "ack", [](const Json&) { return true; }).has_value();
}

std::string encode(const Welcome& welcome) {
  return line_of("welcome", {{"node_rank", welcome.node_rank},
                             {"nprocs", welcome.nprocs},
                             {"hosts", welcome.hosts},
                             {"max_restarts", welcome.max_restarts}});
}

std::optional<Welcome> decode_welcome(std::string_view line) {
  return read_line<Welcome>(line, "welcome", [](const Json& object) {
    Welcome welcome;
    welcome.node_rank = bounded(object.at("node_rank"), 0, kMostNodes - 1);
    for (const auto& nproc : object.at("nprocs")) {
      welcome.nprocs.push_back(bounded(nproc, 1, kMostWorkersPerNode));
    }
    welcome.hosts = object.at("hosts").get<std::vector<std::string>>();
    welcome.max_restarts = bounded(object.at("max_restarts"), 0, kMostAttempts);
    if (welcome.hosts.size() != welcome.nprocs.size() ||
        static_cast<size_t>(welcome.node_rank) >= welcome.nprocs.size()) {
      throw Unexpected();
    }
    return welcome;
  });
}

std::string encode(const Refused& refused) {
  return line_of("refused", {{"message", refused.message}, {"status", refused.status}});
}

std::optional<Refused> decode_refused(std::string_view line) {
  return read_line<Refused>(line, "refused", [](const Json& object) {
    return Refused{object.at("message").get<std::string>(), bounded(object.at("status"), 1, 255)};
  });
}

std::string encode(const Event& event) {
  return line_of("event", {{"kind", kEvents[static_cast<int>(event.kind)]},
                           {"attempt", event.attempt},
                           {"failure", json_of(event.failure)},
                           {"signal", event.signal}});
}

std::optional<Event> decode_event(std::string_view line) {
  return read_line<Event>(line, "event", [](const Json& object) {
    Event event;
    event.kind = static_cast<Event::Kind>(choice(object.at("kind"), kEvents));
    event.attempt = bounded(object.at("attempt"), 0, kMostAttempts);
    event.failure = failure_of(object.at("failure"));
    event.signal = bounded(object.at("signal"), 0, 64);
    if (event.kind == Event::Kind::Failed && !event.failure) {
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
    order.signal = bounded(object.at("signal"), 0, 64);
    order.failure = failure_of(object.at("failure"));
    order.restart = object.at("restart").get<bool>();
    order.reason = object.at("reason").get<std::string>();
    order.status = bounded(object.at("status"), 0, 255);
    return order;
  });
}

}  // namespace lockstep::launch
