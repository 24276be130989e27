// What arrives at the post: notes, and the requests of MPI that are complete.
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "module/calls.h"
#include "module/post.h"

namespace lockstep::mpi {

void Post::listen(size_t slot) {
  check(MPI_Irecv(ring_[slot].data(), kNoteBytes, MPI_BYTE, MPI_ANY_SOURCE, kNoteTag, communicator_,
                  &listening_[slot]),
        "MPI_Irecv");
}

void Post::move() {
  if (!fault_.empty()) return;
  try {
    take_notes();
    finish_requests();
  } catch (const std::exception& error) {
    fault_ = error.what();
  }
}

// MPI fills the slots in the order in which they listen.
void Post::take_notes() {
  for (;;) {
    int done = 0;
    MPI_Status status;
    check(MPI_Test(&listening_[next_slot_], &done, &status), "MPI_Test");
    if (done == 0) return;
    const auto& slot = ring_[next_slot_];
    int bytes = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    Letter letter{.source = status.MPI_SOURCE, .note = {}, .content = {}};
    std::memcpy(&letter.note, slot.data(), sizeof letter.note);
    letter.content.assign(slot.begin() + sizeof letter.note, slot.begin() + bytes);
    listen(next_slot_);
    next_slot_ = (next_slot_ + 1) % kSlots;
    deliver(std::move(letter));
  }
}

void Post::finish_requests() {
  if (requests_.empty()) return;
  std::vector<int> finished(requests_.size());
  int count = 0;
  check(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, finished.data(),
                     MPI_STATUSES_IGNORE),
        "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0) return;
  for (int i = 0; i < count; ++i) {
    auto& job = jobs_[finished[i]];
    if (--job->requests == 0 && job->announced) job->owner.reset();
    job.reset();
  }
  std::erase(requests_, MPI_REQUEST_NULL);
  std::erase(jobs_, nullptr);
}

void Post::deliver(Letter&& letter) {
  const auto id = letter.note.group;
  if (const auto member = members_.find(id); member != members_.end()) {
    deliver(*member->second, std::move(letter));
  } else if (const auto group = left_.find(id); group != left_.end()) {
    if (letter.note.kind != Kind::HungUp) return discard(letter);
    if (--group->second == 0) left_.erase(group);
  } else {
    for_later_[id].push_back(std::move(letter));
  }
}

void Post::deliver(Member& member, Letter&& letter) {
  const auto& note = letter.note;
  auto& peer = member.peers.at(note.sender);
  if (note.kind == Kind::HungUp) {
    peer.hung_up = Clock::now();
    return;
  }
  if (!member.fault.empty()) return discard(letter);
  const auto found = peer.awaited.find(note.tag);
  if (found == peer.awaited.end()) {
    peer.early[note.tag].push_back(std::move(letter));
    return;
  }
  const auto job = std::move(found->second.front());
  found->second.pop_front();
  --awaited_;
  if (found->second.empty()) peer.awaited.erase(found);
  accept(member, job, letter);
}

void Post::accept(Member& member, const JobPtr& job, const Letter& letter) {
  if (letter.note.bytes != job->bytes) {
    discard(letter);
    give_up_receives(member, "a message of " + std::to_string(letter.note.bytes) +
                                 " bytes arrived instead of one of " + std::to_string(job->bytes));
    return;
  }
  job->announced = true;
  if (letter.note.kind == Kind::Long) return receive_data(job, letter);
  std::memcpy(job->data, letter.content.data(), job->bytes);
  job->owner.reset();
}

// Its sender must not wait for ever.
void Post::discard(const Letter& letter) {
  if (letter.note.kind != Kind::Long || !fault_.empty()) return;
  const auto job = std::make_shared<Job>();
  job->bytes = letter.note.bytes;
  job->own.resize(job->bytes);
  job->data = job->own.data();
  receive_data(job, letter);
}

void Post::discard_early(Member& member) {
  for (auto& peer : member.peers) {
    for (const auto& [tag, letters] : std::exchange(peer.early, {})) {
      for (const auto& letter : letters) discard(letter);
    }
  }
}

// For groups that this rank has not joined, too: it will not any more.
void Post::discard_unasked() {
  for (const auto& [id, member] : members_) discard_early(*member);
  for (const auto& [id, letters] : std::exchange(for_later_, {})) {
    for (const auto& letter : letters) discard(letter);
  }
}

void Post::receive_data(const JobPtr& job, const Letter& letter) {
  for (size_t received = 0; received < job->bytes; received += most_bytes_) {
    const auto piece = static_cast<int>(std::min(most_bytes_, job->bytes - received));
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Irecv(job->data + received, piece, MPI_BYTE, letter.source, letter.note.data_tag, communicator_,
                    &request),
          "MPI_Irecv");
    add_request(request, job);
  }
}

}  // namespace lockstep::mpi
