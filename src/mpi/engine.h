// What the module liblockstep_mpi.so does for the library, which does not link MPI itself: only a program
// that asks for MPI loads the module, and with it the MPI library of this machine.
//
// The module needs no symbols of the library, so that it works with programs that link the library
// statically, too. Therefore it throws only std::runtime_error and, because headers alone define that,
// comm::LinkError; the library turns both into lockstep's errors.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/link.h"

namespace lockstep::mpi {

// A group of ranks that send each other messages.
struct Party {
  uint64_t id = 0;                      // the same on its ranks, and no other group's in this job
  int rank = 0;                         // of this process in the group
  std::vector<int> world_ranks;         // in MPI_COMM_WORLD, by rank
  std::chrono::milliseconds timeout{};  // of a wait
  std::function<bool()> has_lost_rank;  // may be called by any thread, as long as the link exists
};

// The use of MPI by this process. There is one, and it is never destroyed. Thread-safe.
class Engine {
 public:
  enum class Stage {
    Loaded,
    Initialised,  // MPI is, by the program or by the engine
    Open,         // all processes of the MPI job have a communicator for lockstep's messages
    Closed,       // no MPI any more; the engine has finalised it unless the program had initialised it
  };
  struct World {
    int rank;
    int size;
  };

  virtual ~Engine() = default;

  // The name and version of the MPI library.
  virtual std::string library() const = 0;

  // A thread of the engine's own goes through the stages up to this one: what MPI does there may block for as
  // long as other processes have not come as far. Returns immediately.
  virtual void advance_to(Stage stage) = 0;
  // The stage that has been reached. Throws std::runtime_error if no other one will be.
  virtual Stage stage() const = 0;

  // Of this process in MPI_COMM_WORLD. From the stage Initialised on.
  virtual World world() const = 0;
  // From the stage Open on. The ranks of the party may make their links at different times.
  virtual std::shared_ptr<comm::Link> make_link(Party party) = 0;

  // Whether a link has hung up because of a failure or has lost a rank, also if it does not exist any more:
  // then other processes may never finalise MPI.
  virtual bool in_trouble() const = 0;
};

// Changes with everything that the library and the module must have in common.
constexpr const char* kInterface = LOCKSTEP_VERSION "/1";

// The module's entry point. Returns null if its interface is another one.
constexpr const char* kEntryPoint = "lockstep_mpi_engine";
using EntryPoint = Engine* (*)(const char* interface);

}  // namespace lockstep::mpi
