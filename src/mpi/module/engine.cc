#include "module/engine.h"

#include <cstring>
#include <pthread.h>
#include <stdexcept>
#include <utility>

#include "module/calls.h"

namespace lockstep::mpi {

namespace {

using namespace std::chrono_literals;

constexpr auto kBetweenTests = 1ms;

class Link final : public comm::Link {
 public:
  Link(Post& post, Party party) : post_(post), member_(post.join(std::move(party))) {}
  ~Link() override { post_.leave(*member_); }

  comm::TransferPtr send(int to, int tag, const std::byte* data, size_t bytes, Owner owner) override {
    return post_.send(member_, to, tag, data, bytes, std::move(owner));
  }
  comm::TransferPtr receive(int from, int tag, std::byte* data, size_t bytes, Owner owner) override {
    return post_.receive(member_, from, tag, data, bytes, std::move(owner));
  }
  void hang_up() noexcept override { post_.hang_up(*member_); }

 private:
  Post& post_;
  const Post::MemberPtr member_;
};

}  // namespace

std::string ModuleEngine::library() const {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string whole(text, static_cast<size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));
}

void ModuleEngine::advance_to(Stage stage) {
  {
    const std::lock_guard lock(mutex_);
    if (stage <= wanted_) return;
    wanted_ = stage;
    if (!thread_.joinable()) {
      thread_ = std::thread([this] {
        ::pthread_setname_np(::pthread_self(), "mpi-engine");
        run();
      });
    }
    changed_.notify_all();
  }
  post_.wake();
}

Engine::Stage ModuleEngine::stage() const {
  const std::lock_guard lock(mutex_);
  if (!fault_.empty()) throw std::runtime_error(fault_);
  return reached_;
}

Engine::World ModuleEngine::world() const {
  const std::lock_guard lock(mutex_);
  return world_;
}

std::shared_ptr<comm::Link> ModuleEngine::make_link(Party party) {
  return std::make_shared<Link>(post_, std::move(party));
}

// Before the stage Open, other processes may be waiting for this one elsewhere.
bool ModuleEngine::in_trouble() const {
  {
    const std::lock_guard lock(mutex_);
    if (reached_ < Stage::Open) return true;
  }
  return post_.in_trouble();
}

// ---- On the engine's thread

// Whether that stage is the next one that is wanted. Blocks until it or a later one is.
bool ModuleEngine::await(Stage stage) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return wanted_ >= stage; });
  return wanted_ == stage;
}

void ModuleEngine::reach(Stage stage) {
  const std::lock_guard lock(mutex_);
  reached_ = stage;
}

void ModuleEngine::run() {
  const auto closing = [this] {
    const std::lock_guard lock(mutex_);
    return wanted_ == Stage::Closed;
  };
  try {
    initialise();
    reach(Stage::Initialised);
    if (await(Stage::Open)) {
      open();
      reach(Stage::Open);
      while (!closing() && post_.tend()) continue;
    }
    await(Stage::Closed);
    finalise();
    reach(Stage::Closed);
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    fault_ = error.what();
  }
}

void ModuleEngine::initialise() {
  int initialised = 0, finalised = 0;
  check(MPI_Finalized(&finalised), "MPI_Finalized");
  if (finalised != 0) throw std::runtime_error("the program has already finalised MPI");
  check(MPI_Initialized(&initialised), "MPI_Initialized");
  if (initialised != 0) {
    adopt();
  } else {
    int level = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
    ours_ = true;
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    if (level < MPI_THREAD_SERIALIZED)
      throw std::runtime_error("this MPI does not support MPI_THREAD_SERIALIZED");
  }
  World world{};
  check(MPI_Comm_rank(MPI_COMM_WORLD, &world.rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &world.size), "MPI_Comm_size");
  const std::lock_guard lock(mutex_);
  world_ = world;
}

// The program has initialised MPI, and will finalise it: MPI_Finalize first deletes the attributes of
// MPI_COMM_SELF.
void ModuleEngine::adopt() {
  int level = 0;
  check(MPI_Query_thread(&level), "MPI_Query_thread");
  if (level < MPI_THREAD_MULTIPLE)
    throw std::runtime_error("the program has initialised MPI without MPI_THREAD_MULTIPLE");
  const auto close = [](MPI_Comm, int, void* post, void*) {
    static_cast<Post*>(post)->close();
    return MPI_SUCCESS;
  };
  int key = 0;
  check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, close, &key, nullptr), "MPI_Comm_create_keyval");
  check(MPI_Comm_set_attr(MPI_COMM_SELF, key, &post_), "MPI_Comm_set_attr");
}

void ModuleEngine::open() {
  MPI_Comm communicator = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(MPI_COMM_WORLD, &communicator, &request), "MPI_Comm_idup");
  for (int done = 0;;) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) break;
    std::this_thread::sleep_for(kBetweenTests);
  }
  post_.open(communicator);
}

void ModuleEngine::finalise() {
  post_.close();
  if (ours_) check(MPI_Finalize(), "MPI_Finalize");
}

}  // namespace lockstep::mpi

extern "C" __attribute__((visibility("default"))) lockstep::mpi::Engine* lockstep_mpi_engine(
    const char* interface) {
  using namespace lockstep::mpi;
  static auto* const engine = new ModuleEngine;  // never destroyed: its thread may be in MPI
  return std::strcmp(interface, kInterface) == 0 ? engine : nullptr;
}
