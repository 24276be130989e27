// The part of the `lockstep` command that needs LibTorch. `lockstep run` stays without it, so that it starts
// at once; `lockstep` hands the other commands to this program.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fmt/format.h>

#include "cli/bench/command.h"
#include "cli/info.h"
#include "cli/snapshot.h"

namespace {

constexpr int kUsage = 2;

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Distributed Data Parallel training for C++ programs on LibTorch", "lockstep");
  app.require_subcommand(1);

  bool json = false;
  auto* info =
      app.add_subcommand("info", "versions, backends, cores, limits, and what is wrong with this machine");
  info->add_flag("--json", json, "print JSON");
  // It reads its own words, --help among them.
  auto* bench = app.add_subcommand("bench", "measure every collective on every backend")->prefix_command();
  bench->set_help_flag();
  auto* snapshot =
      app.add_subcommand("snapshot", "list, show, check and convert snapshots")->prefix_command();
  snapshot->set_help_flag();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  try {
    if (*info) return lockstep::cli::info(json);
    if (*bench) return lockstep::cli::bench(bench->remaining());
    if (*snapshot) return lockstep::cli::snapshot(snapshot->remaining());
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
    return 1;
  }
  return kUsage;
}
