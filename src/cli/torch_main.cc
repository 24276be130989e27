// The part of the `lockstep` command that needs LibTorch. `lockstep run` stays without it, so that it starts
// at once; `lockstep` hands the other commands to this program.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fmt/format.h>

#include "bench.h"
#include "info.h"

namespace {

constexpr int kUsage = 2;

int not_built_yet(const char* command) {
  fmt::print(stderr, "lockstep {}: not part of this version yet; `lockstep --help` lists what is\n", command);
  return kUsage;
}

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
  // Whatever arguments it is given, the answer is the same.
  auto* snapshot =
      app.add_subcommand("snapshot", "list, check and convert snapshots (not yet)")->prefix_command();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  try {
    if (*info) return lockstep::cli::info(json);
    if (*bench) return lockstep::cli::bench(bench->remaining());
    if (*snapshot) return not_built_yet("snapshot");
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
    return 1;
  }
  return kUsage;
}
