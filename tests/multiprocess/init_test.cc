// How the ranks of a job find each other. Each mistake is an error of the right kind, which names the cause,
// on every rank, within the deadline.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sstream>
#include <sys/stat.h>

#include <ATen/ATen.h>

#include "base/net.h"
#include "base/port.h"
#include "store/address.h"
#include "support/run_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace std::chrono_literals;

// An address of this machine, but none of the names that mark a job as one on a single machine.
constexpr const char* kThisMachineByTcp = "0.0.0.0";

// A minimal job: joins with a short timeout and sums a tensor.
void join_and_sum(const InitOptions& options) {
  const auto group = init_process_group(options);
  auto tensor = at::full({3}, group->rank() + 1);
  group->all_reduce(tensor);
  EXPECT_EQ(tensor[0].item<int>(), group->world_size() * (group->world_size() + 1) / 2);
}

// Addresses at which this process listens, in the format of /proc/net/tcp and tcp6.
std::vector<std::string> listening_addresses() {
  std::vector<std::string> own_sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry, gone).string();
    if (target.starts_with("socket:[")) own_sockets.push_back(target.substr(8, target.size() - 9));
  }
  std::vector<std::string> addresses;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
      const bool ours = std::find(own_sockets.begin(), own_sockets.end(), inode) != own_sockets.end();
      if (state == "0A" && ours) addresses.push_back(local.substr(0, local.find(':')));
    }
  }
  return addresses;
}

TEST(Init, AJobOnOneMachineListensOnLoopbackOnly) {
  run_ranks(2, "gloo", [](ProcessGroup& group) {
    group.new_group({0, 1});
    for (const auto& address : listening_addresses()) EXPECT_EQ(address, "0100007F") << "not 127.0.0.1";
    group.barrier();
  });
}

// Neither shared memory nor its store needs a network.
TEST(Init, AJobOnSharedMemoryListensAtNoPort) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    EXPECT_THAT(listening_addresses(), IsEmpty());
    group.barrier();
  });
}

TEST(Init, MeetsAtAnAddress) {
  const base::PortReservation port(base::Reach::ThisMachine);
  const auto method = "tcp://127.0.0.1:" + std::to_string(port.port());
  expect_success(start_ranks(3,
                             [&](int rank) {
                               join_and_sum(
                                   {.init_method = method, .rank = rank, .world_size = 3, .timeout = 20s});
                               EXPECT_EQ(get("lrank"), rank);
                             },
                             {.environment = [](int) {
                               return Environment{{"RANK", ""}, {"WORLD_SIZE", ""}};
                             }}));
}

// At a TCP port, as between machines.
TEST(Init, MeetsAtAPort) {
  expect_success(
      start_ranks(3, [](int) { join_and_sum({.timeout = 20s}); }, {.environment = [](int) {
                    return Environment{{"LOCAL_WORLD_SIZE", ""}, {"MASTER_ADDR", kThisMachineByTcp}};
                  }}));
}

TEST(Init, MeetsInAFile) {
  const ScratchFolder folder;
  const auto method = "file://" + (folder / "meeting").string();
  expect_success(start_ranks(3, [&](int) { join_and_sum({.init_method = method, .timeout = 20s}); },
                             {.environment = [](int) {
                               return Environment{{"MASTER_PORT", ""}};
                             }}));
}

TEST(Init, MeetingPointsThatCannotBe) {
  const auto outcomes = start_ranks(2, [](int rank) {
    for (const char* method :
         {"tcp://127.0.0.1", "tcp://:80", "tcp://127.0.0.1:0", "tcp://127.0.0.1:70000", "tcp://127.0.0.1:x",
          "file://relative", "file:///", "file:///no/such/directory/f", "http://x", ""}) {
      EXPECT_THROW(init_process_group({.init_method = method, .rank = rank, .world_size = 2, .timeout = 2s}),
                   UsageError)
          << method;
    }
  });
  expect_success(outcomes);
}

TEST(Init, OptionsThatCannotBe) {
  expect_success(start_ranks(2, [](int) {
    EXPECT_THROW(init_process_group({.rank = 0}), UsageError);
    EXPECT_THROW(init_process_group({.world_size = 2}), UsageError);
    EXPECT_THROW(init_process_group({.rank = 2, .world_size = 2}), UsageError);
    EXPECT_THROW(init_process_group({.timeout = 0ms}), UsageError);
    EXPECT_THROW(init_process_group({.timeout = -5ms}), UsageError);
    try {
      init_process_group({.backend = "smoke signals"});
      ADD_FAILURE() << "took an unknown backend";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("smoke signals"), HasSubstr("available: shm, gloo"), HasSubstr("hint:")));
    }
    EXPECT_THROW(init_process_group({.backend = "nccl"}), UsageError);
    join_and_sum({.timeout = 20s});  // a rejected call has no effects
  }));
}

TEST(Init, TheEnvironmentChoosesABackendWhereTheProgramDoesNot) {
  for (const std::string wanted : {"gloo", "shm", "auto"}) {
    expect_success(start_ranks(2,
                               [&](int) {
                                 const auto group = init_process_group();
                                 EXPECT_EQ(group->backend(), wanted == "gloo" ? "gloo" : "shm");
                                 destroy_process_group();
                                 if (wanted == "auto") return;
                                 const std::string other = wanted == "gloo" ? "shm" : "gloo";
                                 EXPECT_EQ(init_process_group({.backend = other})->backend(), other);
                               },
                               {.environment = [&](int) {
                                 return Environment{{"LOCKSTEP_BACKEND", wanted}};
                               }}));
  }
  const auto outcomes = start_ranks(1, [](int) { init_process_group(); }, {.environment = [](int) {
                                      return Environment{{"LOCKSTEP_BACKEND", "glue"}};
                                    }});
  EXPECT_THAT(
      outcomes[0].output,
      AllOf(
          HasSubstr("UsageError: backend \"glue\" is not available (environment variable LOCKSTEP_BACKEND)"),
          HasSubstr("available: shm, gloo"), HasSubstr("hint: correct LOCKSTEP_BACKEND")));
}

TEST(Init, EnvironmentThatCannotBe) {
  const std::vector<Environment> mistakes = {{{"WORLD_SIZE", ""}},
                                             {{"RANK", ""}},
                                             {{"RANK", "7"}},
                                             {{"RANK", "-1"}},
                                             {{"RANK", "one"}},
                                             {{"WORLD_SIZE", "0"}},
                                             {{"WORLD_SIZE", "2x"}},
                                             {{"MASTER_ADDR", ""}},
                                             {{"MASTER_PORT", ""}},
                                             {{"MASTER_PORT", "0"}},
                                             {{"MASTER_PORT", "99999"}},
                                             {{"LOCAL_RANK", "5"}}};
  for (const auto& mistake : mistakes) {
    const auto& [name, value] = *mistake.begin();
    SCOPED_TRACE(name + "=" + value);
    const auto outcomes =
        start_ranks(1, [](int) { init_process_group({.timeout = 5s}); }, {.environment = [&](int) {
                      auto environment = mistake;
                      environment.insert({"WORLD_SIZE", "2"});
                      environment.insert({"LOCAL_WORLD_SIZE", "2"});
                      return environment;
                    }});
    EXPECT_EQ(outcomes[0].exit_status, 1) << outcomes[0].describe();
    EXPECT_THAT(outcomes[0].output, AllOf(HasSubstr("UsageError: "), HasSubstr(name), HasSubstr("hint:")));
  }
}

TEST(Init, ARankThatNeverArrivesIsNamed) {
  const auto outcomes = start_ranks(3, [](int rank) {
    if (rank != 1) init_process_group({.timeout = 2s});
  });
  for (const int rank : {0, 2}) {
    EXPECT_EQ(outcomes[rank].exit_status, 1);
    EXPECT_THAT(outcomes[rank].output,
                AllOf(HasSubstr("TimeoutError: not all ranks arrived within 2.0 s"),
                      HasSubstr("missing: rank 1 (2 of 3 have arrived)"), HasSubstr("hint:")));
  }
}

TEST(Init, RankZeroThatNeverArrivesIsSuspected) {
  const auto outcomes = start_ranks(2, [](int rank) {
    if (rank != 0) init_process_group({.timeout = 1s});
  });
  EXPECT_THAT(outcomes[1].output, AllOf(HasSubstr("TimeoutError: "), HasSubstr("Connection refused"),
                                        HasSubstr("check that rank 0 was started")));
}

TEST(Init, AMasterThatDoesNotExistIsNamed) {
  for (const char* address : {"no-such-host.invalid", "127.0.0.2"}) {
    const auto outcomes =
        start_ranks(1, [](int) { init_process_group({.timeout = 1s}); }, {.environment = [&](int) {
                      return Environment{{"RANK", "1"},
                                         {"WORLD_SIZE", "2"},
                                         {"LOCAL_RANK", ""},
                                         {"LOCAL_WORLD_SIZE", ""},
                                         {"MASTER_ADDR", address}};
                    }});
    EXPECT_THAT(outcomes[0].output, AllOf(HasSubstr("TimeoutError: "), HasSubstr("hint:")));
  }
}

TEST(Init, TwoProcessesWithOneRankAreAMismatchForAll) {
  const auto outcomes =
      start_ranks(3, [](int) { init_process_group({.timeout = 20s}); }, {.environment = [](int rank) {
                    return Environment{{"RANK", rank == 2 ? "1" : std::to_string(rank)}};
                  }});
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_status, 1);
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("MismatchError: two processes claim to be rank 1 of 3"),
                                      HasSubstr("pid"), HasSubstr("hint:")));
  }
}

TEST(Init, DifferentWorldSizesAreAMismatchForAll) {
  const auto outcomes =
      start_ranks(2, [](int) { init_process_group({.timeout = 20s}); }, {.environment = [](int rank) {
                    return Environment{{"WORLD_SIZE", rank == 0 ? "2" : "3"}, {"LOCAL_WORLD_SIZE", "3"}};
                  }});
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_status, 1);
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("MismatchError: the ranks disagree on the world size"), HasSubstr("hint:")));
  }
}

TEST(Init, APortThatIsTakenIsNamed) {
  const auto listener = base::listen_on(base::Reach::Everyone, 0);
  const auto port = std::to_string(base::local_port(listener));
  const auto outcomes = start_ranks(
      1, [](int) { init_process_group({.timeout = 2s}); }, {.environment = [&](int) {
        return Environment{{"WORLD_SIZE", "2"}, {"MASTER_ADDR", kThisMachineByTcp}, {"MASTER_PORT", port}};
      }});
  EXPECT_THAT(outcomes[0].output, AllOf(HasSubstr("SystemError: cannot open TCP port " + port),
                                        HasSubstr("Address already in use"), HasSubstr("hint:")));
}

TEST(Init, AMeetingPointThatIsTakenIsNamed) {
  const base::PortReservation port(base::Reach::ThisMachine);
  const auto other_job = store::listen_at(store::Address::on_this_machine(port.port()));
  const auto outcomes = start_ranks(
      1, [](int) { init_process_group({.timeout = 2s}); }, {.environment = [&](int) {
        return Environment{
            {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", std::to_string(port.port())}};
      }});
  EXPECT_THAT(outcomes[0].output, AllOf(HasSubstr("SystemError: cannot open the meeting point"),
                                        HasSubstr(std::to_string(port.port())), HasSubstr("another job")));
}

// At rank 0's address, something accepts connections but never responds.
TEST(Init, ASilentMeetingPointIsATimeout) {
  const auto tcp = base::listen_on(base::Reach::Everyone, 0);
  const base::PortReservation port(base::Reach::ThisMachine);
  const auto local = store::listen_at(store::Address::on_this_machine(port.port()));
  for (const bool one_machine : {true, false}) {
    const auto outcomes = start_ranks(
        1, [](int) { init_process_group({.timeout = 1s}); },
        {.deadline = 20s, .environment = [&](int) {
           return one_machine ? Environment{{"RANK", "1"},
                                            {"WORLD_SIZE", "2"},
                                            {"LOCAL_WORLD_SIZE", "2"},
                                            {"MASTER_PORT", std::to_string(port.port())}}
                              : Environment{{"RANK", "1"},
                                            {"WORLD_SIZE", "2"},
                                            {"LOCAL_WORLD_SIZE", ""},
                                            {"MASTER_ADDR", kThisMachineByTcp},
                                            {"MASTER_PORT", std::to_string(base::local_port(tcp))}};
         }});
    EXPECT_FALSE(outcomes[0].hung);
    EXPECT_THAT(outcomes[0].output,
                AllOf(HasSubstr("TimeoutError: the job's meeting point does not answer"),
                      HasSubstr("accepts connections, but does not answer"), HasSubstr("hint:")));
  }
}

// torchrun's agent hosts a LibTorch store; the agent may be stopped, too.
TEST(Init, ASilentAgentIsATimeout) {
  const auto listener = base::listen_on(base::Reach::ThisMachine, 0);
  const auto outcomes =
      start_ranks(2, [](int) { init_process_group({.timeout = 1s}); },
                  {.deadline = 20s, .environment = [&](int) {
                     return Environment{{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                        {"MASTER_PORT", std::to_string(base::local_port(listener))}};
                   }});
  for (const auto& outcome : outcomes) {
    EXPECT_FALSE(outcome.hung) << outcome.describe();
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("TimeoutError: "), HasSubstr("does not answer"), HasSubstr("hint:")));
  }
}

TEST(Init, AnotherTokenIsRefusedAndTheJobGoesOn) {
  const auto outcomes = start_ranks(
      3,
      [](int process) {
        if (process == 2) {
          init_process_group({.timeout = 5s});
        } else {
          join_and_sum({.timeout = 20s});
        }
      },
      {.environment = [](int process) {
        // The third process is from another job, and claims to be rank 1.
        return Environment{
            {"WORLD_SIZE", "2"},
            {"LOCAL_WORLD_SIZE", "2"},
            {"RANK", process == 0 ? "0" : "1"},
            {"LOCKSTEP_TOKEN", process == 2 ? "another secret of another job" : "the secret of this job"}};
      }});
  for (const int rank : {0, 1}) EXPECT_EQ(outcomes[rank].exit_status, 0) << outcomes[rank].describe();
  EXPECT_EQ(outcomes[2].exit_status, 1);
  EXPECT_THAT(outcomes[2].output, AllOf(HasSubstr("Error: "), Not(HasSubstr("another secret"))));
}

TEST(Init, AMeetingFileOfAnEarlierJobIsFound) {
  const ScratchFolder folder;
  const auto method = "file://" + (folder / "meeting").string();
  // The file is left from an earlier job, whose ranks were killed during the rendezvous.
  start_ranks(1, [&](int) { init_process_group({.init_method = method, .timeout = 300ms}); },
              {.environment = [](int) {
                return Environment{{"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}};
              }});
  const auto outcomes =
      start_ranks(2, [&](int) { init_process_group({.init_method = method, .timeout = 5s}); });
  EXPECT_THAT(outcomes[0].output,
              AllOf(HasSubstr("MismatchError: two processes claim"), HasSubstr("must be new")));
  EXPECT_EQ(outcomes[1].exit_status, 1) << outcomes[1].describe();
}

TEST(Init, JobsSideBySideDoNotMeet) {
  const std::vector<base::PortReservation> ports = [] {
    std::vector<base::PortReservation> reserved;
    for (int job = 0; job < 3; ++job) reserved.emplace_back(base::Reach::ThisMachine);
    return reserved;
  }();
  // Six processes: three jobs of two ranks.
  expect_success(
      start_ranks(6, [](int) { join_and_sum({.timeout = 20s}); }, {.environment = [&](int process) {
                    return Environment{{"RANK", std::to_string(process % 2)},
                                       {"LOCAL_RANK", std::to_string(process % 2)},
                                       {"WORLD_SIZE", "2"},
                                       {"LOCAL_WORLD_SIZE", "2"},
                                       {"MASTER_PORT", std::to_string(ports[process / 2].port())}};
                  }}));
}

}  // namespace
}  // namespace lockstep::testing
