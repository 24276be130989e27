// The commands of `lockstep` that need LibTorch. `lockstep` executes this program for them; it does not link
// LibTorch itself, so that `lockstep run` starts fast.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <string>

#include "cli/bench/command.h"
#include "cli/commands.h"
#include "cli/info.h"
#include "cli/snapshot.h"

int main(int argc, char** argv) {
  CLI::App app("Distributed Data Parallel training for C++ programs on LibTorch", "lockstep");
  app.require_subcommand(1);

  bool json = false;
  auto* info = app.add_subcommand("info", "versions, backends, cores, limits, and problems of this machine");
  info->add_flag("--json", json, "print JSON");
  std::string master;
  info->add_option("--master-addr", master,
                   "show which network interface would be used (default MASTER_ADDR)")
      ->type_name("HOST");
  // The command parses its own arguments, including --help.
  auto* bench = app.add_subcommand("bench", "measure every collective on every backend")->prefix_command();
  bench->set_help_flag();
  auto* snapshot =
      app.add_subcommand("snapshot", "list, show, verify and convert snapshots")->prefix_command();
  snapshot->set_help_flag();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : lockstep::cli::kUsage;
  }
  try {
    if (*info) return lockstep::cli::info(json, master);
    if (*bench) return lockstep::cli::bench(bench->remaining());
    if (*snapshot) return lockstep::cli::snapshot(snapshot->remaining());
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
    return 1;
  }
  return lockstep::cli::kUsage;
}
