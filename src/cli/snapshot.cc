#include "cli/snapshot.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/printable.h"
#include "cli/commands.h"
#include "launch/nearest.h"
#include "snapshot/about.h"
#include "snapshot/contents.h"
#include "snapshot/directory.h"
#include "snapshot/file_reader.h"
#include "snapshot/file_writer.h"
#include "snapshot/newest.h"
#include "snapshot/pt_reader.h"
#include "snapshot/pt_writer.h"

namespace lockstep::cli {

namespace {

namespace fs = std::filesystem;
using base::printable;
using snapshot::Directory;
using snapshot::Origin;
using Json = nlohmann::ordered_json;

constexpr const char* kExamples = R"(
PATH is a snapshot, or the directory of a run, which means its newest snapshot.

Examples:
  lockstep snapshot ls run1
  lockstep snapshot verify run1/*.safetensors
  lockstep snapshot export run1 weights.pt           # in Python: model.load_state_dict(torch.load("weights.pt"))
  lockstep snapshot import weights.pt run2           # in C++: Snapshots("run2", group).resume(ddp)

The exit status is 1 if a file is damaged or missing, 2 if the command line is invalid.
)";

// Why `ls` cannot show the contents of a file.
constexpr const char* kDamaged = "damaged";
constexpr const char* kUnreadable = "unreadable";

std::string human_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string time_text(std::chrono::system_clock::time_point time) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(std::chrono::system_clock::to_time_t(time)));
}

std::string shown(const fs::path& path) { return printable(path.string()); }

// ASCII only, so that the output cannot control the terminal.
void print_json(const Json& json) {
  fmt::print("{}\n", json.dump(2, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace));
}

// Calls `use` with the file, or with the newest snapshot of the directory.
void with_file(const fs::path& path, const std::function<void(const fs::path&)>& use) {
  if (!fs::is_directory(path)) return use(path);
  if (!snapshot::with_newest(Directory(path), use)) {
    throw SnapshotError(base::compose({.what = "there is no snapshot", .where = shown(path)}));
  }
}

// Whether the snapshot holds imported weights, which no run has saved.
bool is_imported(const nlohmann::json& about) { return about.value("imported", false); }

void print_row(const Json& row) {
  const auto name = row["file"].get<std::string>();
  for (const char* trouble : {kDamaged, kUnreadable}) {
    if (!row.contains(trouble)) continue;
    fmt::print("{:<32} {}: {}\n", name, trouble, row[trouble].get<std::string>());
    return;
  }
  const bool imported = row["imported"].get<bool>();
  const auto number = [&](const char* field) {
    return imported ? std::string("-") : fmt::format("{}", row[field].get<int64_t>());
  };
  fmt::print("{:<32} {:>6} {:>9} {:>5} {:>10}  {}{}\n", name, number("epoch"), number("step"),
             number("ranks"), human_bytes(row["bytes"].get<uint64_t>()), row["saved"].get<std::string>(),
             imported ? ", imported" : "");
}

int list(const fs::path& path, bool json) {
  if (!fs::is_directory(path)) {
    throw UsageError(base::compose({.what = fmt::format("{} is not a directory", shown(path)),
                                    .hint = "lockstep snapshot show describes a single file"}));
  }
  Json rows = Json::array();
  int bad = 0;
  for (const auto& [sequence, file] : Directory(path).list()) {
    Json row{{"file", file.filename().string()}};
    try {
      const auto summary = snapshot::read_summary(file);
      const auto position = snapshot::position_of(summary.about);
      row.update({{"epoch", position.epoch},
                  {"step", position.step},
                  {"ranks", snapshot::world_size_of(summary.about)},
                  {"bytes", summary.bytes},
                  {"saved", time_text(snapshot::saved_of(summary.about))},
                  {"imported", is_imported(summary.about)}});
    } catch (const snapshot::GoneError&) {
      continue;  // a writer has removed it since
    } catch (const SnapshotError& error) {
      row[dynamic_cast<const snapshot::DamagedError*>(&error) ? kDamaged : kUnreadable] = error.what();
      ++bad;
    }
    rows.push_back(std::move(row));
  }
  if (json) {
    print_json(rows);
  } else if (rows.empty()) {
    fmt::print("no snapshots in {}\n", shown(path));
  } else {
    fmt::print("{:<32} {:>6} {:>9} {:>5} {:>10}  {}\n", "file", "epoch", "step", "ranks", "size", "saved");
    for (const auto& row : rows) print_row(row);
  }
  return bad == 0 ? 0 : 1;
}

std::string text_of(const std::variant<int64_t, double, std::string>& value) {
  return std::visit([](const auto& held) { return fmt::format("{}", held); }, value);
}

void show_run(const nlohmann::json& about) {
  const auto saved = time_text(snapshot::saved_of(about));
  if (is_imported(about)) {
    fmt::print("  imported {}: weights alone; a run that resumes with them begins at epoch 0\n", saved);
    return;
  }
  const auto position = snapshot::position_of(about);
  const auto ranks = snapshot::world_size_of(about);
  fmt::print("  saved {} by {} rank{}\n", saved, ranks, ranks == 1 ? "" : "s");
  fmt::print("  epoch {}, step {}\n", position.epoch, position.step);
  for (const auto& [name, value] : position.values) {
    fmt::print("  {} = {}\n", printable(name), printable(text_of(value)));
  }
  for (const auto& [name, kind] : snapshot::optimizers_in(about)) {
    fmt::print("  optimizer {}: {}\n", printable(name), printable(kind));
  }
  for (const auto& [name, counters] : snapshot::schedulers_in(about)) {
    fmt::print("  scheduler {}: {}\n", printable(name), printable(counters));
  }
}

void show_file(const fs::path& file, bool json) {
  const auto summary = snapshot::read_summary(file, Origin::Any);
  const auto dtype_of = [](const snapshot::TensorInfo& tensor) {
    return std::string(snapshot::dtype_name(tensor.dtype).value_or("?"));
  };
  if (json) {
    Json out{{"file", file.string()},
             {"bytes", summary.bytes},
             {"about", summary.about},
             {"tensors", Json::array()}};
    for (const auto& tensor : summary.tensors) {
      out["tensors"].push_back({{"name", tensor.name}, {"dtype", dtype_of(tensor)}, {"shape", tensor.shape}});
    }
    print_json(out);
    return;
  }
  fmt::print("{}: {}\n", shown(file), human_bytes(summary.bytes));
  if (summary.foreign) {
    fmt::print("  a safetensors file of another program\n");
  } else {
    show_run(summary.about);
  }
  for (const auto& tensor : summary.tensors) {
    fmt::print("  {:<48} {:<5} [{}]\n", printable(tensor.name), dtype_of(tensor),
               fmt::join(tensor.shape, ", "));
  }
}

int verify(const std::vector<std::string>& paths) {
  int bad = 0;
  const auto check = [&](const fs::path& file, bool of_run) {
    try {
      snapshot::verify_file(file, Origin::Any);
      const bool foreign = snapshot::read_summary(file, Origin::Any).foreign;
      fmt::print("{}: {}\n", shown(file), foreign ? "well-formed, but without a checksum" : "whole");
    } catch (const snapshot::GoneError& error) {
      if (of_run) return;  // a writer has removed it since
      fmt::print("{}\n", error.what());
      ++bad;
    } catch (const Error& error) {
      fmt::print("{}\n", error.what());
      ++bad;
    }
  };
  for (const auto& path : paths) {
    if (!fs::is_directory(path)) {
      check(path, false);
      continue;
    }
    const auto files = Directory(path).list();
    if (files.empty()) fmt::print("no snapshots in {}\n", shown(path)), ++bad;
    for (const auto& file : files) check(file.path, true);
  }
  return bad == 0 ? 0 : 1;
}

void export_pt(const fs::path& file, const fs::path& out, const std::string& model) {
  const auto document = snapshot::read_file(file, Origin::Any);
  std::vector<snapshot::Entry> entries;
  if (document.about.contains("models")) {
    entries = snapshot::model_in(document, model);
  } else if (!model.empty()) {
    throw UsageError(
        base::compose({.what = fmt::format("there is no model \"{}\"", printable(model)),
                       .where = shown(file),
                       .evidence = "the file was written by another program and contains one model",
                       .hint = "leave --model out"}));
  } else {
    entries = document.tensors;
  }
  snapshot::NamedTensors tensors;
  for (auto& entry : entries) tensors.emplace_back(std::move(entry.name), std::move(entry.tensor));
  snapshot::write_pt(out, tensors);
  fmt::print("{} -> {}: {} tensors, {}\n", shown(file), shown(out), tensors.size(),
             human_bytes(fs::file_size(out)));
}

void import_model(const fs::path& in, const fs::path& directory) {
  snapshot::NamedTensors tensors;
  if (in.extension() == ".safetensors") {
    for (const auto& entry : snapshot::read_file(in, Origin::Any).tensors) {
      tensors.emplace_back(entry.name, entry.tensor);
    }
  } else {
    tensors = snapshot::read_pt(in);
  }
  const auto first = tensors.empty() ? "" : tensors.front().first;
  tensors = snapshot::strip_prefix(std::move(tensors), "module.");
  const bool stripped = !tensors.empty() && tensors.front().first != first;
  const auto document = snapshot::import_model(tensors);
  Directory run(directory);
  run.lock();
  const auto out = run.next();
  snapshot::write_file(document, out);
  fmt::print("{} -> {}: {} tensors{}\n", shown(in), shown(out), tensors.size(),
             stripped ? ", without the prefix \"module.\" that all names had" : "");
}

void check_command(const std::string& word, const CLI::App& app) {
  std::vector<std::string> known;
  for (const auto* command : app.get_subcommands({})) known.push_back(command->get_name());
  if (std::find(known.begin(), known.end(), word) != known.end()) return;
  const auto near = launch::nearest(word, known);
  throw UsageError(base::compose({.what = fmt::format("there is no command \"snapshot {}\"", word),
                                  .hint = near.empty() ? fmt::format("known are {}", fmt::join(known, ", "))
                                                       : fmt::format("did you mean {}?", near)}));
}

}  // namespace

int snapshot(const std::vector<std::string>& arguments) {
  CLI::App app("Lists, shows, verifies and converts snapshots.", "lockstep snapshot");
  app.footer(kExamples);
  app.require_subcommand(1);
  std::string path, out, model;
  std::vector<std::string> paths;
  bool json = false;
  auto* ls = app.add_subcommand("ls", "the snapshots of a run");
  ls->add_option("DIRECTORY", path, "of the run")->required();
  ls->add_flag("--json", json, "print JSON");
  auto* showing = app.add_subcommand("show", "the contents of a snapshot");
  showing->add_option("PATH", path, "a snapshot, or a directory: its newest snapshot")->required();
  showing->add_flag("--json", json, "print JSON");
  auto* verifying = app.add_subcommand("verify", "read everything and verify the checksums");
  verifying->add_option("PATH", paths, "snapshots, or directories: all snapshots in them")->required();
  auto* exporting = app.add_subcommand("export", "write a model's state dict for Python's torch.load");
  exporting->add_option("PATH", path, "a snapshot, or a directory: its newest snapshot")->required();
  exporting->add_option("OUT", out, "the .pt file")->required();
  exporting->add_option("--model", model, "which model, if the snapshot holds several");
  auto* importing = app.add_subcommand("import", "create a snapshot from a state dict saved in Python");
  importing->add_option("IN", path, "a .pt or .safetensors file")->required();
  importing->add_option("DIRECTORY", out, "of the run that will start with it")->required();

  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return fmt::format("lockstep snapshot: {}\nhint: lockstep snapshot --help shows examples\n",
                       error.what());
  });
  try {
    if (!arguments.empty() && !arguments[0].starts_with('-')) check_command(arguments[0], app);
    auto words = arguments;
    std::reverse(words.begin(), words.end());  // the order that CLI11 expects
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  } catch (const UsageError& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
    return kUsage;
  }
  if (*ls) return list(path, json);
  if (*verifying) return verify(paths);
  if (*showing) {
    with_file(path, [&](const fs::path& file) { show_file(file, json); });
  } else if (*exporting) {
    with_file(path, [&](const fs::path& file) { export_pt(file, out, model); });
  } else {
    import_model(path, out);
  }
  return 0;
}

}  // namespace lockstep::cli
