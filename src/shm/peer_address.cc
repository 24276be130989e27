#include "shm/peer_address.h"

#include <exception>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/host.h"
#include "compat/message_of.h"

namespace lockstep::shm {

namespace {

std::string encode(const PeerAddress& address) {
  return nlohmann::json{{"layout", address.layout_version},
                        {"facts", rendezvous::encode_facts(address.facts)},
                        {"socket", address.socket_name},
                        {"token", address.token},
                        {"user", address.user}}
      .dump();
}

PeerAddress decode(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    PeerAddress address;
    address.layout_version = json.at("layout");
    if (address.layout_version == kLayoutVersion) {
      address.facts = rendezvous::decode_facts(json.at("facts"));
      address.socket_name = json.at("socket");
      address.token = json.at("token");
      address.user = json.at("user");
      return address;
    }
  } catch (const nlohmann::json::exception&) {
    // Reported below, like another version.
  }
  throw MismatchError(
      base::compose({.what = "a rank of this group uses another layout of shared memory",
                     .evidence = fmt::format("ours is version {}; it published its address as {}",
                                             kLayoutVersion, text.substr(0, 200)),
                     .hint = "start the same build of the program for every rank"}));
}

std::string key_of(int rank) { return fmt::format("shm/{}", rank); }

template <class Question>
auto ask_store(const rendezvous::RankFacts& asker, Question&& question) {
  try {
    return question();
  } catch (const Error&) {
    throw;  // lockstep's own store throws a better message
  } catch (const std::exception& error) {
    throw PeerLostError(base::compose(
        {.what = "the store where the ranks meet is gone",
         .where = fmt::format("rank {}/{}, host {}", asker.rank, asker.world_size, base::host_name()),
         .evidence = compat::message_of(error),
         .hint = "look at the output of rank 0, which hosts it"}));
  }
}

}  // namespace

void publish_address(c10d::Store& store, const PeerAddress& mine) {
  const auto text = encode(mine);
  ask_store(mine.facts,
            [&] { store.set(key_of(mine.facts.rank), std::vector<uint8_t>(text.begin(), text.end())); });
}

std::optional<PeerAddress> find_address(c10d::Store& store, int other, const rendezvous::RankFacts& asker) {
  const auto text = ask_store(asker, [&]() -> std::optional<std::string> {
    if (!store.check({key_of(other)})) return std::nullopt;
    const auto value = store.get(key_of(other));
    return std::string(value.begin(), value.end());
  });
  if (!text) return std::nullopt;
  return decode(*text);
}

}  // namespace lockstep::shm
