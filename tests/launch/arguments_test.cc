#include "launch/arguments.h"

#include <cstdlib>
#include <gtest/gtest.h>

#include <lockstep/error.h>

#include "launch/limits.h"

namespace lockstep::launch {
namespace {

using Words = std::vector<std::string>;

RunOptions parse(Words words) { return std::get<RunOptions>(parse_run_arguments(words)); }

std::string refusal(Words words) {
  try {
    parse(std::move(words));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Arguments, Defaults) {
  const auto options = parse({"./train"});
  EXPECT_EQ(options.nproc, 1);
  EXPECT_EQ(options.nnodes, 1);
  EXPECT_EQ(options.port, 0);
  EXPECT_EQ(options.max_restarts, 0);
  EXPECT_EQ(options.grace, std::chrono::seconds(30));
  EXPECT_EQ(options.timeout, std::chrono::seconds(300));
  EXPECT_EQ(options.node_timeout, std::chrono::seconds(10));
  EXPECT_TRUE(options.token.empty());
  EXPECT_TRUE(options.bind);
  EXPECT_TRUE(options.heap);
  EXPECT_FALSE(options.threads);
  EXPECT_EQ(options.command, Words{"./train"});
}

TEST(Arguments, BothSpellingsAndBothForms) {
  for (const Words& words : {Words{"--nproc-per-node", "4", "p"}, Words{"--nproc_per_node", "4", "p"},
                             Words{"--nproc-per-node=4", "p"}, Words{"--nproc_per_node=4", "p"}}) {
    EXPECT_EQ(parse(words).nproc, 4);
  }
  const auto options =
      parse({"--max_restarts=2", "--no_bind", "--no_heap", "--log_dir", "d", "--grace_period", "0.5",
             "--threads", "0", "--standalone", "--monitor_interval", "3", "--no_python", "p"});
  EXPECT_EQ(options.max_restarts, 2);
  EXPECT_FALSE(options.bind);
  EXPECT_FALSE(options.heap);
  EXPECT_EQ(options.log_dir, "d");
  EXPECT_EQ(options.grace, std::chrono::milliseconds(500));
  EXPECT_EQ(options.threads, 0);
}

TEST(Arguments, ShortFormsOfTheNumberOfWorkers) {
  for (const Words& words :
       {Words{"-n", "4", "p", "-np", "9"}, Words{"-n4", "p", "-np", "9"}, Words{"-np", "4", "p", "-np", "9"},
        Words{"--no-bind", "-np", "4", "p", "-np", "9"},
        Words{"--log-dir", "d", "-np", "4", "--", "p", "-np", "9"}}) {
    EXPECT_EQ(parse(words).nproc, 4);
    EXPECT_EQ(parse(words).command, (Words{"p", "-np", "9"})) << "the program's own arguments";
  }
  EXPECT_EQ(parse({"-n", "cpu", "p"}).nproc, available_cores());
  EXPECT_EQ(parse({"-n", "2", "--nproc-per-node", "3", "p"}).nproc, 3);
  EXPECT_NE(refusal({"-n", "0", "p"}).find("--nproc-per-node \"0\" is invalid"), std::string::npos);
  EXPECT_NE(refusal({"-np"}), "accepted");
  const auto help = std::get<HelpText>(parse_run_arguments({"--help"})).text;
  EXPECT_NE(help.find("-n, --nproc-per-node N|auto|cpu|gpu"), std::string::npos) << help;
}

TEST(Arguments, KnowsWhetherTheNumberWasGiven) {
  EXPECT_TRUE(parse({"p", "-n", "2"}).nproc_by_default);
  EXPECT_FALSE(parse({"-n", "1", "p"}).nproc_by_default);
  ::setenv("PET_NPROC_PER_NODE", "1", 1);
  EXPECT_FALSE(parse({"p"}).nproc_by_default);
  ::unsetenv("PET_NPROC_PER_NODE");
}

TEST(Arguments, AShortNodeTimeoutIsRejected) {
  EXPECT_EQ(parse({"--node-timeout", "1", "p"}).node_timeout, std::chrono::seconds(1));
  for (const char* bad : {"0", "0.9", "-1", "x", "nan"}) {
    EXPECT_NE(refusal({"--node-timeout", bad, "p"}).find("--node-timeout"), std::string::npos) << bad;
  }
}

TEST(Arguments, EverythingAfterTheProgramIsUntouched) {
  const Words command{"./train", "--nproc-per-node", "9", "--", "-x", "--help", "--unknown=1", ""};
  for (Words words : {Words{"--nproc-per-node", "2"}, Words{"--nproc-per-node", "2", "--"}}) {
    words.insert(words.end(), command.begin(), command.end());
    const auto options = parse(words);
    EXPECT_EQ(options.nproc, 2);
    EXPECT_EQ(options.command, command);
  }
}

TEST(Arguments, TheLastOfSeveralCounts) {
  EXPECT_EQ(parse({"--nproc-per-node", "2", "--nproc_per_node", "3", "p"}).nproc, 3);
}

TEST(Arguments, NumberOfWorkers) {
  for (const char* bad : {"0", "-1", "abc", "2.5", "", "4097", "99999999999999999999"}) {
    const auto text = refusal({"--nproc-per-node", bad, "p"});
    EXPECT_NE(text.find(std::string("--nproc-per-node \"") + bad + "\" is invalid"), std::string::npos)
        << text;
    EXPECT_NE(text.find("\nhint: "), std::string::npos) << text;
  }
  EXPECT_EQ(parse({"--nproc-per-node", "cpu", "p"}).nproc, available_cores());
  if (available_gpus() == 0) {
    EXPECT_EQ(parse({"--nproc-per-node", "auto", "p"}).nproc, available_cores());
    EXPECT_NE(refusal({"--nproc-per-node", "gpu", "p"}).find("no GPU"), std::string::npos);
  }
}

TEST(Arguments, UnknownFlagsAreNamedAndASimilarOneSuggested) {
  EXPECT_NE(refusal({"--nproc-per-nod", "2", "p"})
                .find("unknown flag --nproc-per-nod\nhint: did you mean --nproc-per-node?"),
            std::string::npos);
  EXPECT_NE(refusal({"--max_restart=2", "p"})
                .find("unknown flag --max_restart\nhint: did you mean --max-restarts?"),
            std::string::npos);
  EXPECT_NE(refusal({"--nprocs", "2", "p"}).find("did you mean --nproc-per-node?"), std::string::npos);
  EXPECT_NE(refusal({"--zzz", "p"}).find("unknown flag --zzz\nhint: lockstep run --help"), std::string::npos);
  EXPECT_NE(refusal({"-x", "2", "p"}).find("unknown flag -x"), std::string::npos);
}

TEST(Arguments, AProgramIsNeeded) {
  for (const Words& words : {Words{}, Words{"--nproc-per-node", "2"}, Words{"--"}, Words{""}}) {
    EXPECT_NE(refusal(words).find("no program"), std::string::npos);
  }
  EXPECT_NE(refusal({"--nproc-per-node"}), "accepted");
}

TEST(Arguments, Nodes) {
  const auto fixed = parse({"--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1", "p"});
  EXPECT_EQ(fixed.nnodes, 2);
  EXPECT_EQ(fixed.node_rank, 1);
  EXPECT_EQ(fixed.address, "10.0.0.1");
  EXPECT_EQ(fixed.port, 29500);
  const auto endpoint =
      parse({"--nnodes=3:3", "--rdzv-endpoint", "h", "--rdzv-backend", "c10d", "--rdzv-id", "j", "p"});
  EXPECT_EQ(endpoint.nnodes, 3);
  EXPECT_FALSE(endpoint.node_rank);
  EXPECT_EQ(endpoint.address, "h");
  EXPECT_EQ(endpoint.port, 29400);
  EXPECT_EQ(endpoint.run_id, "j");
  EXPECT_EQ(parse({"--nnodes", "2", "--rdzv-endpoint", "h:1234", "p"}).port, 1234);
  EXPECT_EQ(parse({"--master-port", "1234", "p"}).port, 1234);
}

TEST(Arguments, IPv6) {
  for (const char* address : {"fd00::1", "[fd00::1]"}) {
    EXPECT_EQ(parse({"--nnodes", "2", "--node-rank", "1", "--master-addr", address, "p"}).address, "fd00::1");
    const auto endpoint = parse({"--nnodes", "2", "--rdzv-endpoint", address, "p"});
    EXPECT_EQ(endpoint.address, "fd00::1");
    EXPECT_EQ(endpoint.port, 29400);
  }
  const auto endpoint = parse({"--nnodes", "2", "--rdzv-endpoint", "[fd00::1]:1234", "p"});
  EXPECT_EQ(endpoint.address, "fd00::1");
  EXPECT_EQ(endpoint.port, 1234);
  EXPECT_NE(refusal({"--nnodes", "2", "--rdzv-endpoint", "[fd00::1", "p"}).find("--rdzv-endpoint"),
            std::string::npos);
}

TEST(Arguments, InvalidNodes) {
  EXPECT_NE(refusal({"--nnodes", "1:4", "p"}).find("comes with elastic membership"), std::string::npos);
  EXPECT_NE(refusal({"--nnodes", "0", "p"}).find("\"0\""), std::string::npos);
  EXPECT_NE(refusal({"--nnodes", "2", "p"}).find("--rdzv-endpoint"), std::string::npos);
  EXPECT_NE(refusal({"--nnodes", "2", "--master-addr", "h", "p"}).find("--node-rank"), std::string::npos);
  EXPECT_NE(refusal({"--nnodes", "2", "--master-addr", "h", "--node-rank", "2", "p"}).find("from 0 to 1"),
            std::string::npos);
  EXPECT_NE(refusal({"--nnodes", "2", "--standalone", "--rdzv-endpoint", "h", "p"}).find("contradict"),
            std::string::npos);
  EXPECT_NE(refusal({"--master-port", "65536", "p"}).find("from 0 to 65535"), std::string::npos);
  EXPECT_NE(refusal({"--nnodes", "2", "--rdzv-endpoint", "h", "--master-port", "0", "p"}).find("port 0"),
            std::string::npos);
  EXPECT_NE(refusal({"--rdzv-backend", "etcd", "p"}).find("etcd is not supported"), std::string::npos);
  EXPECT_NE(refusal({"--master-addr", "192.0.2.1", "p"}).find("is not this machine"), std::string::npos);
}

TEST(Arguments, Endpoints) {
  EXPECT_EQ(parse_endpoint("h").host, "h");
  EXPECT_FALSE(parse_endpoint("h").port);
  EXPECT_EQ(parse_endpoint("h:80").port, 80);
  EXPECT_EQ(parse_endpoint("[::1]:80").host, "::1");
  EXPECT_EQ(parse_endpoint("::1").host, "::1");
  for (const char* bad : {"", ":80", "h:", "h:0", "h:x", "h:70000", "[::1", "[::1]80"}) {
    EXPECT_THROW(parse_endpoint(bad), UsageError) << bad;
  }
}

TEST(Arguments, Tee) {
  EXPECT_EQ(parse({"p"}).tee.of(7), 3);
  EXPECT_EQ(parse({"--tee", "1", "p"}).tee.of(7), 1);
  const auto tee = parse({"--tee", "0:3,2:1", "p"}).tee;
  EXPECT_EQ(tee.of(0), 3);
  EXPECT_EQ(tee.of(1), 0);
  EXPECT_EQ(tee.of(2), 1);
  for (const char* bad : {"4", "x", "0:4", "0:", ":1", "0:1,", "0:1,1"}) {
    EXPECT_NE(refusal({"--tee", bad, "p"}).find("--tee"), std::string::npos) << bad;
  }
}

TEST(Arguments, Times) {
  for (const char* bad : {"-1", "x", "1s", "nan", "inf", "1e300"}) {
    EXPECT_NE(refusal({"--grace-period", bad, "p"}).find("--grace-period"), std::string::npos) << bad;
  }
}

TEST(Arguments, TorchrunsVariablesAreDefaults) {
  ::setenv("PET_NPROC_PER_NODE", "3", 1);
  ::setenv("PET_MAX_RESTARTS", "5", 1);
  EXPECT_EQ(parse({"p"}).nproc, 3);
  EXPECT_EQ(parse({"--nproc-per-node", "2", "p"}).nproc, 2);
  EXPECT_EQ(parse({"p"}).max_restarts, 5);
  ::unsetenv("PET_NPROC_PER_NODE");
  ::unsetenv("PET_MAX_RESTARTS");
}

TEST(Arguments, HelpNamesEveryFlagOnce) {
  const auto text = std::get<HelpText>(parse_run_arguments({"--help"})).text;
  for (const char* flag : {"-n, --nproc-per-node", "--nnodes", "--node-rank", "--master-addr",
                           "--master-port", "--rdzv-endpoint", "--rdzv-id", "--rdzv-backend", "--standalone",
                           "--max-restarts", "--monitor-interval", "--log-dir", "--tee", "--grace-period",
                           "--timeout", "--no-bind", "--no-heap", "--threads"}) {
    EXPECT_NE(text.find(std::string("  ") + flag), std::string::npos) << flag;
  }
  EXPECT_EQ(text.find("_per_node,"), std::string::npos);
  EXPECT_NE(text.find("Examples:"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::launch
