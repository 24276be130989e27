// The command line of fashion_mnist.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>

namespace fashion_mnist {

struct Options {
  std::string data = "/usr/share/datasets/fashion-mnist";
  int64_t epochs = 3;
  int64_t batch = 128;
  double lr = 2e-3;
  int64_t limit = std::numeric_limits<int64_t>::max();
  std::string snapshots, json;
  std::string command;  // the command line
};

// Exits for --help and for invalid arguments.
inline Options parse(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Trains a convolutional net on Fashion-MNIST, or on other images in MNIST's format.\n"
      "Without a launcher it is one process; under lockstep run, torchrun, mpirun or srun, each is a rank.");
  app.add_option("--data", options.data, "folder with the four files, gzipped or not")->capture_default_str();
  app.add_option("--epochs", options.epochs, "number of epochs")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "images per step, over all ranks")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lr", options.lr, "learning rate of Adam")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--limit", options.limit, "train on the first N images only")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  app.add_option("--snapshots", options.snapshots, "save here after every epoch, and resume from here")
      ->type_name("DIR");
  app.add_option("--json", options.json, "write losses and times to this file")->type_name("FILE");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  for (int i = 0; i < argc; ++i) options.command.append(i == 0 ? "" : " ").append(argv[i]);
  return options;
}

}  // namespace fashion_mnist
