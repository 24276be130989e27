#include "snapshot.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "launch/nearest.h"
#include "snapshot/contents.h"
#include "snapshot/directory.h"
#include "snapshot/file_reader.h"
#include "snapshot/file_writer.h"
#include "snapshot/pt_reader.h"
#include "snapshot/pt_writer.h"

namespace lockstep::cli {

namespace {

namespace fs = std::filesystem;
using snapshot::Directory;
using snapshot::Origin;
using Json = nlohmann::ordered_json;

constexpr const char* kExamples = R"(
PATH is a snapshot, or the directory of a run, which stands for its newest snapshot.

Examples:
  lockstep snapshot ls run1
  lockstep snapshot verify run1/*.safetensors
  lockstep snapshot export run1 weights.pt           # in Python: model.load_state_dict(torch.load("weights.pt"))
  lockstep snapshot import weights.pt run2           # in C++: Snapshots("run2", group).resume(ddp)

The exit status is 1 when a file is damaged or missing, 2 when the command makes no sense.
)";

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

fs::path file_at(const fs::path& path) {
  if (!fs::is_directory(path)) return path;
  const auto files = Directory(path).list();
  if (files.empty()) {
    throw SnapshotError(base::compose({.what = "there is no snapshot", .where = path.string()}));
  }
  return files.back().path;
}

int list(const fs::path& path, bool json) {
  if (!fs::is_directory(path)) {
    throw UsageError(base::compose({.what = fmt::format("{} is not a directory", path.string()),
                                    .hint = "lockstep snapshot show tells about one file"}));
  }
  Json rows = Json::array();
  int damaged = 0;
  for (const auto& [sequence, file] : Directory(path).list()) {
    Json row{{"file", file.filename().string()}};
    try {
      const auto summary = snapshot::read_summary(file);
      const auto position = snapshot::position_of(summary.about);
      row.update({{"epoch", position.epoch},
                  {"step", position.step},
                  {"ranks", snapshot::world_size_of(summary.about)},
                  {"bytes", summary.bytes},
                  {"saved", time_text(snapshot::saved_of(summary.about))}});
    } catch (const SnapshotError& error) {
      row["damaged"] = error.what();
      ++damaged;
    }
    rows.push_back(std::move(row));
  }
  if (json) {
    fmt::print("{}\n", rows.dump(2));
  } else if (rows.empty()) {
    fmt::print("no snapshots in {}\n", path.string());
  } else {
    fmt::print("{:<32} {:>6} {:>9} {:>5} {:>10}  {}\n", "file", "epoch", "step", "ranks", "size", "saved");
    for (const auto& row : rows) {
      const auto name = row["file"].get<std::string>();
      if (row.contains("damaged")) {
        fmt::print("{:<32} damaged: {}\n", name, row["damaged"].get<std::string>());
      } else {
        fmt::print("{:<32} {:>6} {:>9} {:>5} {:>10}  {}\n", name, row["epoch"].get<int64_t>(),
                   row["step"].get<int64_t>(), row["ranks"].get<int>(),
                   human_bytes(row["bytes"].get<uint64_t>()), row["saved"].get<std::string>());
      }
    }
  }
  return damaged == 0 ? 0 : 1;
}

std::string text_of(const std::variant<int64_t, double, std::string>& value) {
  return std::visit([](const auto& held) { return fmt::format("{}", held); }, value);
}

int show(const fs::path& path, bool json) {
  const auto file = file_at(path);
  const auto summary = snapshot::read_summary(file, Origin::Any);
  Json out{{"file", file.string()},
           {"bytes", summary.bytes},
           {"about", summary.about},
           {"tensors", Json::array()}};
  for (const auto& tensor : summary.tensors) {
    out["tensors"].push_back({{"name", tensor.name},
                              {"dtype", std::string(snapshot::dtype_name(tensor.dtype).value_or("?"))},
                              {"shape", tensor.shape}});
  }
  if (json) {
    fmt::print("{}\n", out.dump(2));
    return 0;
  }
  fmt::print("{}: {}\n", file.string(), human_bytes(summary.bytes));
  if (summary.foreign) {
    fmt::print("  a safetensors file of another program\n");
  } else {
    const auto position = snapshot::position_of(summary.about);
    fmt::print("  saved {} by {} ranks\n", time_text(snapshot::saved_of(summary.about)),
               snapshot::world_size_of(summary.about));
    fmt::print("  epoch {}, step {}\n", position.epoch, position.step);
    for (const auto& [name, value] : position.values) fmt::print("  {} = {}\n", name, text_of(value));
    if (summary.about.contains("optimizers")) {
      for (const auto& [name, optimizer] : summary.about["optimizers"].items()) {
        fmt::print("  optimizer {}: {}\n", name, optimizer.value("kind", "?"));
      }
    }
  }
  for (const auto& tensor : out["tensors"]) {
    fmt::print("  {:<48} {:<5} [{}]\n", tensor["name"].get<std::string>(), tensor["dtype"].get<std::string>(),
               fmt::join(tensor["shape"].get<std::vector<int64_t>>(), ", "));
  }
  return 0;
}

int verify(const std::vector<std::string>& paths) {
  int bad = 0;
  const auto check = [&](const fs::path& file) {
    try {
      snapshot::verify_file(file, Origin::Any);
      const bool foreign = snapshot::read_summary(file, Origin::Any).foreign;
      fmt::print("{}: {}\n", file.string(), foreign ? "well-formed, but without a checksum" : "whole");
    } catch (const Error& error) {
      fmt::print("{}\n", error.what());
      ++bad;
    }
  };
  for (const auto& path : paths) {
    if (!fs::is_directory(path)) {
      check(path);
      continue;
    }
    const auto files = Directory(path).list();
    if (files.empty()) fmt::print("no snapshots in {}\n", path), ++bad;
    for (const auto& file : files) check(file.path);
  }
  return bad == 0 ? 0 : 1;
}

int export_pt(const fs::path& path, const fs::path& out, const std::string& model) {
  const auto file = file_at(path);
  const auto document = snapshot::read_file(file, Origin::Any);
  std::vector<snapshot::Entry> entries;
  if (document.about.contains("models")) {
    entries = snapshot::model_in(document, model);
  } else {
    entries = document.tensors;
  }
  snapshot::NamedTensors tensors;
  for (auto& entry : entries) tensors.emplace_back(std::move(entry.name), std::move(entry.tensor));
  snapshot::write_pt(out, tensors);
  fmt::print("{} -> {}: {} tensors, {}\n", file.string(), out.string(), tensors.size(),
             human_bytes(fs::file_size(out)));
  return 0;
}

int import_model(const fs::path& in, const fs::path& directory) {
  snapshot::NamedTensors tensors;
  if (in.extension() == ".safetensors") {
    for (auto& [name, tensor] : snapshot::read_file(in, Origin::Any).tensors)
      tensors.emplace_back(name, tensor);
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
  fmt::print("{} -> {}: {} tensors{}\n", in.string(), out.string(), document.tensors.size(),
             stripped ? ", without the prefix \"module.\" that all names had" : "");
  return 0;
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
  constexpr int kUsage = 2;
  CLI::App app("Lists, shows, checks and converts snapshots.", "lockstep snapshot");
  app.footer(kExamples);
  app.require_subcommand(1);
  std::string path, out, model;
  std::vector<std::string> paths;
  bool json = false;
  auto* ls = app.add_subcommand("ls", "the snapshots of a run");
  ls->add_option("DIRECTORY", path, "where they are")->required();
  ls->add_flag("--json", json, "print JSON");
  auto* showing = app.add_subcommand("show", "what is in a snapshot");
  showing->add_option("PATH", path, "a snapshot, or a directory for its newest")->required();
  showing->add_flag("--json", json, "print JSON");
  auto* verifying = app.add_subcommand("verify", "read everything and check the checksums");
  verifying->add_option("PATH", paths, "snapshots, or directories for all in them")->required();
  auto* exporting = app.add_subcommand("export", "write a model's state dict for Python's torch.load");
  exporting->add_option("PATH", path, "a snapshot, or a directory for its newest")->required();
  exporting->add_option("OUT", out, "the .pt file")->required();
  exporting->add_option("--model", model, "which, when it holds several");
  auto* importing = app.add_subcommand("import", "make a snapshot of a state dict saved in Python");
  importing->add_option("IN", path, "a .pt or .safetensors file")->required();
  importing->add_option("DIRECTORY", out, "of the run that shall begin with it")->required();

  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return fmt::format("lockstep snapshot: {}\nhint: lockstep snapshot --help shows examples\n",
                       error.what());
  });
  try {
    if (!arguments.empty() && !arguments[0].starts_with('-')) check_command(arguments[0], app);
    auto words = arguments;
    std::reverse(words.begin(), words.end());  // as CLI11 wants them
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  } catch (const UsageError& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
    return kUsage;
  }
  if (*ls) return list(path, json);
  if (*showing) return show(path, json);
  if (*verifying) return verify(paths);
  if (*exporting) return export_pt(path, out, model);
  return import_model(path, out);
}

}  // namespace lockstep::cli
