#include "rendezvous/key_store.h"

#include <algorithm>
#include <climits>
#include <fmt/format.h>

#include <lockstep/error.h>

#include "base/env.h"
#include "base/error_text.h"
#include "base/hints.h"

namespace lockstep::rendezvous {

namespace {

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// Part of the topic under which KeyStore::blame reports.
constexpr const char* kBlamed = "blamed";

}  // namespace

KeyStore::KeyStore(std::shared_ptr<store::KeyValues> values, std::string prefix,
                   std::chrono::milliseconds timeout)
    : compat::Store(timeout), values_(std::move(values)), prefix_(std::move(prefix) + '/') {}

KeyStorePtr KeyStore::under(const std::string& name) const {
  auto part = c10::make_intrusive<KeyStore>(values_, prefix_ + name, timeout_);
  part->members_ = members_;
  part->until_ = until_;
  return part;
}

KeyStorePtr KeyStore::under(const std::string& name, const std::vector<int>& ranks) const {
  auto part = under(name);
  std::vector<int> members;
  for (const int rank : ranks) members.push_back(members_.empty() ? rank : members_.at(rank));
  part->members_ = std::move(members);
  return part;
}

KeyStorePtr KeyStore::until(base::Deadline deadline) const {
  auto same = c10::make_intrusive<KeyStore>(*this);
  same->until_ = deadline;
  return same;
}

KeyStorePtr KeyStore::for_backend(base::Deadline deadline) const {
  auto part = under("c10d")->until(deadline);
  part->watched_ = true;
  return part;
}

c10::intrusive_ptr<c10d::Store> KeyStore::copy() const { return c10::make_intrusive<KeyStore>(*this); }

base::Deadline KeyStore::deadline_within(std::chrono::milliseconds timeout) const {
  if (until_ && until_->remaining() < timeout) return *until_;
  return base::Deadline::in(timeout);
}

std::vector<std::string> KeyStore::whole(const std::vector<std::string>& keys) const {
  std::vector<std::string> names;
  for (const auto& key : keys) names.push_back(prefix_ + key);
  return names;
}

void KeyStore::refuse_if_lost(const std::string& key) const {
  const auto lost = ended(store::Ending::Lost);
  if (lost.empty()) return;
  throw PeerLostError(base::compose({.what = fmt::format("rank {} has ended", lost.front().rank),
                                     .evidence = fmt::format("this rank asked the store for \"{}\"", key),
                                     .hint = base::kItEndedFirst}),
                      {lost.front().rank});
}

// The host of the store may have ended because another rank ended first.
template <class Call>
auto KeyStore::asked(const std::string& key, Call&& call) const {
  try {
    return call();
  } catch (const PeerLostError&) {
    refuse_if_lost(key);
    throw;
  }
}

std::vector<std::string> KeyStore::get_all(const std::vector<std::string>& keys, base::Deadline deadline) {
  const auto names = whole(keys);
  const auto give_up = [&] {
    // What a rank wrote before it ended can still be read.
    if (!ended(store::Ending::Lost).empty() && !values_->check(names, deadline)) refuse_if_lost(keys.front());
  };
  return asked(keys.front(), [&] { return values_->get(names, deadline, give_up); });
}

void KeyStore::set(const std::string& key, const std::vector<uint8_t>& value) { write(key, text_of(value)); }

std::vector<uint8_t> KeyStore::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                          const std::vector<uint8_t>& wanted) {
  return bytes_of(values_->compare_set(prefix_ + key, text_of(expected), text_of(wanted), deadline()));
}

std::vector<uint8_t> KeyStore::get(const std::string& key) {
  return bytes_of(get_all({key}, deadline()).front());
}

int64_t KeyStore::add(const std::string& key, int64_t amount) {
  return asked(key, [&] { return values_->add(prefix_ + key, amount, deadline()); });
}

bool KeyStore::deleteKey(const std::string& key) { return values_->erase(prefix_ + key, deadline()); }

bool KeyStore::check(const std::vector<std::string>& keys) {
  const bool there = asked(keys.front(), [&] { return values_->check(whole(keys), deadline()); });
  if (!there && watched_) refuse_if_lost(keys.front());
  return there;
}

int64_t KeyStore::getNumKeys() { return values_->count(deadline()); }

void KeyStore::wait(const std::vector<std::string>& keys) { get_all(keys, deadline()); }

void KeyStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  get_all(keys, deadline_within(timeout));
}

void KeyStore::write(const std::string& key, const std::string& value) {
  asked(key, [&] { values_->set(prefix_ + key, value, deadline()); });
}

std::optional<std::string> KeyStore::look(const std::string& key) {
  if (!check({key})) return std::nullopt;
  return get_all({key}, deadline()).front();
}

std::vector<std::string> KeyStore::read(const std::vector<std::string>& keys,
                                        const std::function<void()>& give_up) {
  return asked(keys.front(), [&] { return values_->get(whole(keys), deadline(), give_up); });
}

std::optional<store::Failure> KeyStore::failure() const {
  auto failure = values_->failure(prefix_);
  if (failure && !members_.empty()) {
    const auto found = std::find(members_.begin(), members_.end(), failure->rank);
    failure->rank = static_cast<int>(found - members_.begin());
  }
  return failure;
}

void KeyStore::blame(int rank) noexcept { values_->fail(prefix_ + kBlamed, std::to_string(rank)); }

std::optional<int> KeyStore::blamed() const {
  const auto report = values_->failure(prefix_ + kBlamed);
  if (!report) return std::nullopt;
  const auto rank = base::parse_int(report->text);
  return rank && *rank >= 0 && *rank <= INT_MAX ? std::optional(static_cast<int>(*rank)) : std::nullopt;
}

std::vector<KeyStore::EndedRank> KeyStore::ended(store::Ending how) const {
  std::vector<EndedRank> ranks;
  for (const auto& [rank, end] : values_->ended()) {
    if (end.how != how) continue;
    const auto found = std::find(members_.begin(), members_.end(), rank);
    if (members_.empty()) {
      ranks.push_back({rank, end.since});
    } else if (found != members_.end()) {
      ranks.push_back({static_cast<int>(found - members_.begin()), end.since});
    }
  }
  std::stable_sort(ranks.begin(), ranks.end(),
                   [](const EndedRank& a, const EndedRank& b) { return a.since < b.since; });
  return ranks;
}

}  // namespace lockstep::rendezvous
