// demo_report PAGE RUN.json…: prints a table of runs of fashion_mnist and plots them on an HTML page. The
// other runs are compared with the first one.
#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "machine.h"
#include "page.h"
#include "run.h"
#include "summary.h"

int main(int argc, char** argv) {
  if (argc < 3 || argv[1][0] == '-') {
    fmt::print(stderr, "usage: demo_report PAGE.html RUN.json…\n");
    return 2;
  }
  try {
    std::vector<demo::Run> runs;
    for (int i = 2; i < argc; ++i) runs.push_back(demo::read_run(argv[i]));
    std::ofstream file(argv[1]);
    file << demo::page_of(runs, demo::this_machine());
    if (!file.flush()) throw std::runtime_error(fmt::format("cannot write {}", argv[1]));
    fmt::print("{}", demo::summary_of(runs));
  } catch (const std::exception& error) {
    fmt::print(stderr, "demo_report: {}\n", error.what());
    return 1;
  }
}
