#include "module/post.h"

#include <algorithm>
#include <cstring>
#include <sched.h>
#include <stdexcept>
#include <thread>
#include <utility>

#include "module/calls.h"

namespace lockstep::mpi {

namespace {

using namespace std::chrono_literals;

// A waiting thread yields for as long as a small message takes at 1 Gbit/s, or 1 MiB on a fast fabric. Then
// it leaves its CPU to those who compute; its wait becomes longer by an eighth at most.
constexpr auto kYield = 100us;
constexpr int kShareAsleep = 8;
constexpr std::chrono::nanoseconds kShortestSleep = 20us, kLongestSleep = 1ms;
// How often a waiting thread asks whether its wait is hopeless.
constexpr auto kBetweenQuestions = 20ms;
// Time for messages to be taken by a rank that has hung up, if it had asked for them before.
constexpr auto kLastWords = 500ms;
// For the last messages before MPI is finalised, after a failure.
constexpr auto kMostFarewell = 2s;
// Between the looks of tend(), and how many it makes in vain before it sleeps until it is woken.
constexpr auto kBetweenLooks = 1ms;
constexpr int kMostIdleLooks = 50;

constexpr const char* kHungUp = "Connection closed by peer";

}  // namespace

// A transfer that is complete has no job.
class Post::Message final : public comm::Transfer {
 public:
  Message(Post& post, MemberPtr member, int peer, JobPtr job)
      : post_(post), member_(std::move(member)), peer_(peer), job_(std::move(job)) {}
  void wait(const std::function<bool()>& hopeless) override {
    if (job_) post_.wait(*member_, peer_, *job_, hopeless);
    job_.reset();
  }

 private:
  Post& post_;
  const MemberPtr member_;
  const int peer_;
  JobPtr job_;
};

// ---- Beginning and end

void Post::open(MPI_Comm communicator) {
  const Lock lock(mutex_);
  communicator_ = communicator;
  check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int* bound = nullptr;
  int there = 0;
  check(MPI_Comm_get_attr(communicator_, MPI_TAG_UB, &bound, &there), "MPI_Comm_get_attr");
  most_data_tags_ = there != 0 ? *bound : 32767;  // what MPI guarantees
  ring_.assign(kSlots, std::vector<std::byte>(kNoteBytes));
  listening_.assign(kSlots, MPI_REQUEST_NULL);
  for (size_t slot = 0; slot < kSlots; ++slot) listen(slot);
  fault_.clear();
}

void Post::close() noexcept {
  Lock lock(mutex_);
  if (!fault_.empty() && listening_.empty()) return;
  try {
    for (const auto& [id, member] : members_) send_hang_up(*member);
    for (const auto end = Clock::now() + kMostFarewell;;) {
      move();
      // Their senders end only when MPI has taken them.
      discard_unasked();
      if (!fault_.empty() || !expects_more()) break;
      if (Clock::now() >= end && (members_.empty() || is_troubled())) break;
      lock.unlock();
      std::this_thread::sleep_for(kBetweenLooks);
      lock.lock();
    }
  } catch (const std::exception&) {
    // What cannot be sent is lost.
  }
  for (auto& request : listening_) {
    if (request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  listening_.clear();
  if (fault_.empty()) fault_ = "MPI has been finalised";
  wanted_.notify_all();
}

bool Post::expects_more() const {
  return !requests_.empty() || !left_.empty() ||
         std::any_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return entry.second->ranks_not_hung_up() != 0; });
}

bool Post::in_trouble() const {
  const Lock lock(mutex_);
  return is_troubled();
}

bool Post::is_troubled() const {
  return troubled_ || std::any_of(members_.begin(), members_.end(),
                                  [](const auto& entry) { return entry.second->in_trouble(); });
}

Post::MemberPtr Post::join(Party party) {
  auto member = std::make_shared<Member>(std::move(party));
  const Lock lock(mutex_);
  members_[member->party.id] = member.get();
  if (const auto found = for_later_.find(member->party.id); found != for_later_.end()) {
    for (auto& letter : found->second) deliver(*member, std::move(letter));
    for_later_.erase(found);
  }
  return member;
}

void Post::leave(Member& member) noexcept {
  const Lock lock(mutex_);
  if (member.in_trouble()) troubled_ = true;
  sever(member);
  members_.erase(member.party.id);
  if (const int ranks = member.ranks_not_hung_up(); ranks != 0) left_[member.party.id] = ranks;
}

void Post::hang_up(Member& member) noexcept {
  const Lock lock(mutex_);
  troubled_ = true;
  sever(member);
}

void Post::sever(Member& member) noexcept {
  if (member.hung_up) return;
  try {
    send_hang_up(member);
  } catch (const std::exception& error) {
    if (fault_.empty()) fault_ = error.what();
  }
  give_up_receives(member, "this rank has closed its connections");
}

// Notes are not overtaken: everything that this rank has sent has arrived before, or has been announced.
void Post::send_hang_up(Member& member) {
  if (std::exchange(member.hung_up, true) || !fault_.empty()) return;
  for (int peer = 0; peer < static_cast<int>(member.peers.size()); ++peer) {
    if (peer == member.party.rank) continue;
    send_note(std::make_shared<Job>(), member.party.world_ranks[peer],
              {.group = member.party.id, .bytes = 0, .sender = member.party.rank, .kind = Kind::HungUp},
              nullptr);
  }
}

// Their memory is free at once: MPI does not know it before the note has arrived.
void Post::give_up_receives(Member& member, const std::string& why) {
  if (member.fault.empty()) member.fault = why;
  for (auto& peer : member.peers) {
    for (const auto& [tag, jobs] : peer.awaited) awaited_ -= jobs.size();
    peer.awaited.clear();
  }
  try {
    discard_early(member);
  } catch (const std::exception& error) {
    if (fault_.empty()) fault_ = error.what();
  }
}

// ---- Transfers

void Post::refuse(const Member& member, int peer) const {
  if (!fault_.empty()) throw std::runtime_error(fault_);
  if (!member.fault.empty()) throw std::runtime_error(member.fault);
  if (member.peers.at(peer).hung_up) throw comm::LinkError(peer, kHungUp);
}

comm::TransferPtr Post::send(const MemberPtr& member, int to, int tag, const std::byte* data, size_t bytes,
                             comm::Link::Owner owner) {
  auto job = std::make_shared<Job>();
  Note note{.group = member->party.id,
            .bytes = bytes,
            .sender = member->party.rank,
            .tag = tag,
            .kind = bytes <= kShortBytes ? Kind::Short : Kind::Long};
  const int target = member->party.world_ranks.at(to);
  const Lock lock(mutex_);
  refuse(*member, to);
  use();
  if (note.kind == Kind::Short) {
    send_note(job, target, note, data);
    return std::make_unique<Message>(*this, member, to, nullptr);
  }
  // Used again only after thousands of others.
  note.data_tag = kNoteTag + 1 + static_cast<int>(data_tags_used_++ % static_cast<uint32_t>(most_data_tags_));
  job->owner = std::move(owner);
  send_note(job, target, note, nullptr);
  for (size_t sent = 0; sent < bytes; sent += most_bytes_) {
    const auto piece = static_cast<int>(std::min(most_bytes_, bytes - sent));
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Isend(data + sent, piece, MPI_BYTE, target, note.data_tag, communicator_, &request),
          "MPI_Isend");
    add_request(request, job);
  }
  return std::make_unique<Message>(*this, member, to, std::move(job));
}

void Post::send_note(const JobPtr& job, int target, const Note& note, const std::byte* content) {
  const size_t inside = content == nullptr ? 0 : note.bytes;
  job->own.resize(sizeof note + inside);
  std::memcpy(job->own.data(), &note, sizeof note);
  if (inside != 0) std::memcpy(job->own.data() + sizeof note, content, inside);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Isend(job->own.data(), static_cast<int>(job->own.size()), MPI_BYTE, target, kNoteTag,
                  communicator_, &request),
        "MPI_Isend");
  int done = 0;
  check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  if (done == 0) add_request(request, job);
}

comm::TransferPtr Post::receive(const MemberPtr& member, int from, int tag, std::byte* data, size_t bytes,
                                comm::Link::Owner owner) {
  auto job = std::make_shared<Job>();
  job->data = data;
  job->bytes = bytes;
  job->owner = std::move(owner);
  job->announced = false;
  const Lock lock(mutex_);
  // Also for a message that is here already: the rest of a long one would have to come from MPI.
  if (!fault_.empty()) throw std::runtime_error(fault_);
  auto& peer = member->peers.at(from);
  use();
  if (const auto early = peer.early.find(tag); early != peer.early.end()) {
    const auto letter = std::move(early->second.front());
    early->second.pop_front();
    if (early->second.empty()) peer.early.erase(early);
    accept(*member, job, letter);
  } else {
    refuse(*member, from);
    peer.awaited[tag].push_back(job);
    ++awaited_;
  }
  return std::make_unique<Message>(*this, member, from, std::move(job));
}

void Post::add_request(MPI_Request request, const JobPtr& job) {
  requests_.push_back(request);
  jobs_.push_back(job);
  ++job->requests;
}

// ---- Waiting

void Post::wait(const Member& member, int rank, const Job& job, const std::function<bool()>& hopeless) {
  const auto begin = Clock::now();
  auto asked = begin;
  for (Lock lock(mutex_);; lock.lock()) {
    move();
    if (job.done()) return;
    if (!fault_.empty()) throw std::runtime_error(fault_);
    if (!member.fault.empty()) throw std::runtime_error(member.fault);
    const auto now = Clock::now();
    const auto hung_up = member.peers.at(rank).hung_up;
    if (hung_up && (!job.announced || now - *hung_up >= kLastWords)) throw comm::LinkError(rank, kHungUp);
    lock.unlock();

    const auto waited = now - begin;
    if (waited >= member.party.timeout)
      throw std::runtime_error("timed out after " + std::to_string(member.party.timeout.count()) + " ms");
    if (now - asked >= kBetweenQuestions) {
      if (hopeless()) throw std::runtime_error("the wait was given up");
      asked = now;
    }
    if (waited < kYield) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(
          std::clamp<std::chrono::nanoseconds>(waited / kShareAsleep, kShortestSleep, kLongestSleep));
    }
  }
}

void Post::use() {
  used_ = true;
  if (asleep_) wanted_.notify_all();
}

void Post::wake() {
  const Lock lock(mutex_);
  use();
}

bool Post::tend() {
  Lock lock(mutex_);
  if (listening_.empty()) return false;
  if (!requests_.empty() || awaited_ != 0) used_ = true;
  // Also for a while after the last use: MPI may still owe another rank an answer.
  move();
  idle_looks_ = std::exchange(used_, false) ? 0 : idle_looks_ + 1;
  if (idle_looks_ < kMostIdleLooks) {
    wanted_.wait_for(lock, kBetweenLooks);
  } else {
    asleep_ = true;
    wanted_.wait(lock, [this] { return used_ || listening_.empty(); });
    asleep_ = false;
    idle_looks_ = 0;
  }
  return !listening_.empty();
}

}  // namespace lockstep::mpi
