// The engine: the thread that initialises and finalises MPI, and moves what nobody waits for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mpi.h>
#include <mutex>
#include <string>
#include <thread>

#include "module/post.h"
#include "mpi/engine.h"

namespace lockstep::mpi {

class ModuleEngine final : public Engine {
 public:
  std::string library() const override;
  void advance_to(Stage stage) override;
  Stage stage() const override;
  World world() const override;
  std::shared_ptr<comm::Link> make_link(Party party) override;
  bool in_trouble() const override;

 private:
  void run();
  void initialise();
  void adopt();
  void open();
  void finalise();
  bool await(Stage stage);
  void reach(Stage stage);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Stage wanted_ = Stage::Loaded;
  Stage reached_ = Stage::Loaded;
  std::string fault_;  // why there will be no other stage
  World world_{0, 1};
  bool ours_ = false;  // the engine has initialised MPI
  Post post_;
  std::thread thread_;
};

}  // namespace lockstep::mpi
