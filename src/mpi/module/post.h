// Moves the messages of all links of this process, over one communicator.
//
// MPI's tags have no room for those of a link: InfiniBand leaves 23 bits of 31 (MPI_TAG_UB), and different
// groups must not meet. So lockstep matches messages itself. Each begins with a small one, the note: group,
// sender, tag and size. Notes are received into a ring of buffers, from any process, in MPI's order. A short
// message is inside its note; a long one follows directly from and to the user's memory, with an MPI tag that
// the note announces. A message that nobody has asked for yet waits here as its note.
//
// MPI moves bytes only inside its calls. A thread that waits calls it again and again: first it yields
// between the calls, then it sleeps between them for a part of the time that it has waited. While transfers
// are under way, tend() calls it too, for those that nobody waits for.
//
// All calls of MPI are made with the mutex held, so that MPI_THREAD_SERIALIZED is enough: some networks are
// slower, or missing, with more. None of them blocks. Thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mpi.h>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/link.h"
#include "mpi/engine.h"

namespace lockstep::mpi {

class Post {
 public:
  class Member;  // a link's part of it
  using MemberPtr = std::shared_ptr<Member>;

  // Longer messages are divided: MPI counts bytes with an int.
  static constexpr size_t kMostBytes = size_t{1} << 30;
  // Messages of up to this size are inside their notes, which most networks of MPI send at once.
  static constexpr size_t kShortBytes = 4032;

  explicit Post(size_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}

  // `communicator`: for nothing else, on all processes. Throws std::runtime_error.
  void open(MPI_Comm communicator);
  // Hangs up all links, and makes no more calls of MPI afterwards. Blocks until everything has been sent and
  // all other ranks have hung up, too, so that nothing is left in MPI; after a failure, only for a moment.
  // What has arrived and nobody has asked for is discarded. May be called twice.
  void close() noexcept;
  // Whether a link, also of a member that has left, has hung up because of a failure or has lost a rank.
  bool in_trouble() const;

  MemberPtr join(Party party);
  void leave(Member& member) noexcept;
  // Because of a failure.
  void hang_up(Member& member) noexcept;
  comm::TransferPtr send(const MemberPtr& member, int to, int tag, const std::byte* data, size_t bytes,
                         comm::Link::Owner owner);
  comm::TransferPtr receive(const MemberPtr& member, int from, int tag, std::byte* data, size_t bytes,
                            comm::Link::Owner owner);

  // Moves bytes once, and sleeps: for a moment, or until something is to be done. Returns false after
  // close().
  bool tend();
  // Ends its sleep.
  void wake();

 private:
  class Message;
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  enum class Kind : int32_t { Short, Long, HungUp };
  struct Note {
    uint64_t group;
    uint64_t bytes;
    int32_t sender;  // in the group
    int32_t tag;
    int32_t data_tag;  // of a long message, for MPI
    Kind kind;
  };
  static constexpr size_t kNoteBytes = sizeof(Note) + kShortBytes;
  static constexpr int kNoteTag = 0;  // for MPI; data has others
  // Enough for notes that arrive between two looks; MPI keeps more.
  static constexpr size_t kSlots = 32;

  // A note with what is inside it.
  struct Letter {
    int source;  // in the communicator
    Note note;
    std::vector<std::byte> content;
  };
  // What a transfer waits for.
  struct Job {
    std::byte* data = nullptr;
    size_t bytes = 0;
    comm::Link::Owner owner;
    std::vector<std::byte> own;  // memory of this job's
    bool announced = true;       // of a receive: the note has arrived
    int requests = 0;            // of MPI, not complete
    bool done() const { return announced && requests == 0; }
  };
  using JobPtr = std::shared_ptr<Job>;

  // All functions below: with the lock held.
  void move();
  void take_notes();
  void finish_requests();
  void listen(size_t slot);
  void deliver(Letter&& letter);
  void deliver(Member& member, Letter&& letter);
  void accept(Member& member, const JobPtr& job, const Letter& letter);
  void discard(const Letter& letter);
  void discard_early(Member& member);
  void discard_unasked();
  void receive_data(const JobPtr& job, const Letter& letter);
  void send_note(const JobPtr& job, int target, const Note& note, const std::byte* content);
  void send_hang_up(Member& member);
  void sever(Member& member) noexcept;
  bool expects_more() const;
  bool is_troubled() const;
  void add_request(MPI_Request request, const JobPtr& job);
  void use();
  void refuse(const Member& member, int peer) const;
  void wait(const Member& member, int peer, const Job& job, const std::function<bool()>& hopeless);
  void give_up_receives(Member& member, const std::string& why);

  const size_t most_bytes_;
  mutable std::mutex mutex_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int most_data_tags_ = 0;
  uint32_t data_tags_used_ = 0;
  std::string fault_ = "MPI is not open";  // why nothing moves any more; empty if it does

  std::vector<std::vector<std::byte>> ring_;  // receives notes, in this order
  std::vector<MPI_Request> listening_;        // by slot of the ring
  size_t next_slot_ = 0;

  std::vector<MPI_Request> requests_;
  std::vector<JobPtr> jobs_;  // of the requests
  size_t awaited_ = 0;        // receives without a note

  std::map<uint64_t, Member*> members_;
  std::map<uint64_t, std::vector<Letter>> for_later_;  // for groups that have not joined yet
  std::map<uint64_t, int> left_;                       // groups, and how many of their ranks have not hung up
  bool troubled_ = false;  // a link has failed: a rank that has ended never hangs up nor finalises MPI

  std::condition_variable wanted_;  // tend() sleeps until then
  bool used_ = false;               // since tend() last looked
  int idle_looks_ = 0;
  bool asleep_ = false;
};

// A link's part of the post.
class Post::Member {
 public:
  struct Peer {
    std::map<int, std::deque<JobPtr>> awaited;  // by tag
    std::map<int, std::deque<Letter>> early;    // messages that nobody has asked for yet, by tag
    std::optional<Clock::time_point> hung_up;
  };

  explicit Member(Party of) : party(std::move(of)), peers(party.world_ranks.size()) {}

  bool in_trouble() const { return !fault.empty() || (party.has_lost_rank && party.has_lost_rank()); }
  int ranks_not_hung_up() const {
    const auto all = static_cast<int>(peers.size()) - 1;
    return all - static_cast<int>(std::count_if(peers.begin(), peers.end(),
                                                [](const Peer& peer) { return peer.hung_up.has_value(); }));
  }

  const Party party;
  std::vector<Peer> peers;  // by rank
  std::string fault;        // why this rank waits for nothing any more
  bool hung_up = false;
};

}  // namespace lockstep::mpi
