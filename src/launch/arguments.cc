#include "launch/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fmt/format.h>

#include <lockstep/error.h>

#include "base/address.h"
#include "base/env.h"
#include "base/error_text.h"
#include "base/net.h"
#include "launch/control.h"
#include "launch/limits.h"
#include "launch/nearest.h"

namespace lockstep::launch {

namespace {

using base::compose;

constexpr uint16_t kMasterPort = 29500;    // torchrun's --master-port
constexpr uint16_t kEndpointPort = 29400;  // torchrun's --rdzv-endpoint without a port

constexpr const char* kExamples = R"(Examples:
  lockstep run -n 4 ./train --epochs 10
  lockstep run --nproc-per-node auto --log-dir logs ./train
  lockstep run -n 4 python3 train.py
  lockstep run --nnodes 2 --node-rank 0 --master-addr node0 --nproc-per-node 4 ./train     (on node0)
  lockstep run --nnodes 2 --node-rank 1 --master-addr node0 --nproc-per-node 4 ./train     (on the other)
  lockstep run --nnodes 2 --rdzv-endpoint node0 --nproc-per-node 4 ./train                 (the same line on both)

Flags may be written with dashes or underscores, and preset with torchrun's variables (PET_NPROC_PER_NODE …). -np is -n.
The exit status is 0 if every rank exited with 0, otherwise that of the rank that failed first (128 + N for signal N).
)";

// The flags as text. interpret() parses them, so that the error messages are ours and not CLI11's.
struct Raw {
  std::string nproc = "1";
  std::string nnodes = "1";
  std::string node_rank;
  std::string master_addr;
  std::string master_port;
  std::string endpoint;
  std::string run_id = "none";
  std::string backend = "static";
  bool standalone = false;
  std::string max_restarts = "0";
  std::string monitor_interval;
  std::string log_dir;
  std::string tee = "3";
  std::string grace = "30";
  std::string timeout = "300";
  std::string node_timeout = "10";
  std::string token_file;
  bool no_bind = false;
  bool no_heap = false;
  bool no_python = false;
  std::string threads;
};

// Lists each flag once, by its first name: the spellings with underscores would double the list.
class Formatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode) const override {
    return "Usage: lockstep run [OPTIONS] [--] PROGRAM [ARGUMENTS…]\n\n" + app->get_description() + "\n" +
           flags(app) + "\n" + app->get_footer();
  }
  std::string make_option_name(const CLI::Option* option, bool) const override {
    std::string name = "--" + option->get_lnames().front();
    if (!option->get_snames().empty()) name = "-" + option->get_snames().front() + ", " + name;
    return name;
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_name().empty() ? "" : " " + option->get_type_name();
  }

 private:
  std::string flags(const CLI::App* app) const {
    std::string text;
    for (const auto& group : app->get_groups()) {
      if (group.empty()) continue;  // --help itself
      text += make_group(group, false, app->get_options([&](const CLI::Option* option) {
        return option->get_group() == group;
      }));
    }
    return text;
  }
};

std::string with_underscores(std::string name) {
  std::replace(name.begin() + 2, name.end(), '-', '_');
  return name;
}

class RunParser {
 public:
  RunParser()
      : app_(
            "Starts a program as the ranks of one job, on this machine or on several, and watches over it.") {
    app_.formatter(std::make_shared<Formatter>());
    app_.get_formatter()->column_width(35);
    app_.prefix_command();
    app_.footer(kExamples);
    app_.set_help_flag("-h,--help", "show this help and exit");

    app_.get_help_ptr()->group("");
    group_ = "Workers";
    nproc_ =
        value("--nproc-per-node", raw_.nproc, "N|auto|cpu|gpu",
              "workers on this machine (default 1)\nauto: one per GPU, or one per core if there is no GPU",
              "PET_NPROC_PER_NODE", "-n");
    value("--max-restarts", raw_.max_restarts, "N",
          "when a rank fails, stop and restart all ranks,\nup to N times (default 0)", "PET_MAX_RESTARTS");
    value("--grace-period", raw_.grace, "SECONDS",
          "time that workers have between SIGTERM and SIGKILL (default 30)");
    value("--threads", raw_.threads, "N",
          "compute threads of each worker (default cores / workers);\n0 leaves them alone");
    flag("--no-bind", raw_.no_bind, "do not bind each worker to its own cores");
    flag("--no-heap", raw_.no_heap, "do not make the C library keep freed memory");

    group_ = "Output";
    value("--log-dir", raw_.log_dir, "DIR", "also write the output of each rank to DIR/rank_<R>.log",
          "PET_LOG_DIR");
    value("--tee", raw_.tee, "WHAT",
          "with --log-dir, what is shown as well: 0 nothing, 1 stdout,\n2 stderr, 3 both (default); or by "
          "local rank: 0:3,1:2",
          "PET_TEE");

    group_ = "Several nodes";
    value("--nnodes", raw_.nnodes, "N", "machines in the job (default 1)", "PET_NNODES");
    value("--node-rank", raw_.node_rank, "N", "which of them this is, from 0", "PET_NODE_RANK");
    value("--master-addr", raw_.master_addr, "HOST", "address of node 0", "PET_MASTER_ADDR");
    value("--master-port", raw_.master_port, "PORT",
          "a free port on node 0 (default 29500; on one node: any)", "PET_MASTER_PORT");
    value("--rdzv-endpoint", raw_.endpoint, "HOST[:PORT]",
          "in place of the three above: HOST becomes node 0, the others\nare numbered as they arrive "
          "(default port 29400)",
          "PET_RDZV_ENDPOINT");
    value("--rdzv-id", raw_.run_id, "NAME", "name of the job; nodes of another one are refused",
          "PET_RDZV_ID");
    value("--rdzv-backend", raw_.backend, "NAME", "static or c10d; both mean the same here",
          "PET_RDZV_BACKEND");
    value("--timeout", raw_.timeout, "SECONDS", "how long the nodes wait for each other (default 300)");
    value("--node-timeout", raw_.node_timeout, "SECONDS",
          "a node that says nothing for so long is lost (default 10;\nnode 0's counts)");
    value("--token-file", raw_.token_file, "FILE",
          "the job's secret: only nodes that know it are admitted\n(default LOCKSTEP_TOKEN, or the file in "
          "LOCKSTEP_TOKEN_FILE)");

    group_ = "Accepted for compatibility with torchrun";
    flag("--standalone", raw_.standalone, "one node, any free port: what happens without it, too",
         "PET_STANDALONE");
    value("--monitor-interval", raw_.monitor_interval, "SECONDS", "no effect: lockstep reacts at once",
          "PET_MONITOR_INTERVAL");
    flag("--no-python", raw_.no_python, "no effect: PROGRAM is any program", "PET_NO_PYTHON");
  }

  std::variant<RunOptions, HelpText> parse(const std::vector<std::string>& arguments) {
    try {
      auto words = with_long_names(arguments);
      std::reverse(words.begin(), words.end());  // the order that CLI11 expects
      app_.parse(std::move(words));
    } catch (const CLI::CallForHelp&) {
      return HelpText{app_.help()};
    } catch (const CLI::ParseError& error) {
      throw UsageError(compose({.what = error.what(), .hint = "lockstep run --help shows all flags"}));
    }
    return interpret(command());
  }

 private:
  CLI::Option* add_environment(CLI::Option* option, const char* variable) {
    if (variable != nullptr) option->envname(variable);
    option->group(group_);
    known_.push_back("--" + option->get_lnames().front());
    return option;
  }

  CLI::Option* value(const std::string& name, std::string& target, const char* type, const char* help,
                     const char* variable = nullptr, const std::string& short_name = "") {
    const auto names = (short_name.empty() ? "" : short_name + ",") + name + "," + with_underscores(name);
    auto* option = app_.add_option(names, target, help);
    option->type_name(type)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    return add_environment(option, variable);
  }

  void flag(const std::string& name, bool& target, const char* help, const char* variable = nullptr) {
    auto* option = app_.add_flag(name + "," + with_underscores(name), target, help);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    add_environment(option, variable);
  }

  // Replaces mpirun's -np, which CLI11 would parse as -n with the value "p". Only before the program's name.
  std::vector<std::string> with_long_names(std::vector<std::string> words) const {
    for (size_t i = 0; i < words.size() && words[i].starts_with('-') && words[i] != "--";) {
      if (words[i] == "-np") words[i] = "--nproc-per-node";
      const auto* option = app_.get_option_no_throw(words[i]);
      i += option != nullptr && option->get_items_expected_max() > 0 ? 2 : 1;
    }
    return words;
  }

  // The program and its arguments: what CLI11 did not parse.
  std::vector<std::string> command() const {
    auto rest = app_.remaining();
    if (!rest.empty() && rest.front() == "--") {
      rest.erase(rest.begin());
    } else if (!rest.empty() && rest.front().starts_with('-')) {
      const auto word = rest.front().substr(0, rest.front().find('='));
      auto spelled = word;
      std::replace(spelled.begin(), spelled.end(), '_', '-');
      const auto near = nearest(spelled, known_);
      throw UsageError(compose({.what = fmt::format("unknown flag {}", word),
                                .hint = near.empty() ? "lockstep run --help shows all flags"
                                                     : fmt::format("did you mean {}?", near)}));
    }
    if (rest.empty() || rest.front().empty()) {
      throw UsageError(compose(
          {.what = "no program to run was given",
           .hint = "lockstep run [OPTIONS] PROGRAM [ARGUMENTS…]; lockstep run --help shows examples"}));
    }
    return rest;
  }

  RunOptions interpret(std::vector<std::string> command) const;
  void interpret_nodes(RunOptions& options) const;
  Tee interpret_tee() const;

  CLI::App app_;
  Raw raw_;
  CLI::Option* nproc_ = nullptr;
  std::string group_;
  std::vector<std::string> known_;
};

int64_t whole_number(const char* name, const std::string& text, int64_t low, int64_t high) {
  const auto number = base::parse_int(text);
  if (number && *number >= low && *number <= high) return *number;
  throw UsageError(compose({.what = fmt::format("{} \"{}\" is invalid", name, text),
                            .evidence = fmt::format("it must be a whole number from {} to {}", low, high)}));
}

std::chrono::milliseconds seconds(const char* name, const std::string& text) {
  double number = -1;
  try {
    size_t used = 0;
    number = std::stod(text, &used);
    if (used != text.size()) number = -1;
  } catch (const std::exception&) {
  }
  constexpr double kMost = 30.0 * 24 * 3600;
  if (!(number >= 0 && number <= kMost)) {
    throw UsageError(
        compose({.what = fmt::format("{} \"{}\" is invalid", name, text),
                 .evidence = fmt::format("it must be a number of seconds from 0 to {:.0f}", kMost)}));
  }
  return std::chrono::milliseconds(static_cast<int64_t>(number * 1000));
}

int parse_nnodes(const std::string& text) {
  const auto colon = text.find(':');
  if (colon == std::string::npos) return static_cast<int>(whole_number("--nnodes", text, 1, kMostNodes));
  const auto low = whole_number("--nnodes", text.substr(0, colon), 1, kMostNodes);
  const auto high = whole_number("--nnodes", text.substr(colon + 1), 1, kMostNodes);
  if (low != high) {
    throw UsageError(compose({.what = fmt::format("--nnodes {} is not supported yet", text),
                              .evidence = "a range comes with elastic membership",
                              .hint = fmt::format("give one number: --nnodes {}", high)}));
  }
  return static_cast<int>(low);
}

RunOptions RunParser::interpret(std::vector<std::string> command) const {
  RunOptions options;
  options.command = std::move(command);
  options.nproc = parse_nproc(raw_.nproc);
  options.nproc_by_default = nproc_->count() == 0;
  options.nnodes = parse_nnodes(raw_.nnodes);
  options.run_id = raw_.run_id;
  if (options.run_id.size() > 256 || std::any_of(options.run_id.begin(), options.run_id.end(),
                                                 [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
    throw UsageError(compose({.what = "--rdzv-id is invalid",
                              .evidence = "it contains control characters or is longer than 256 bytes"}));
  }
  options.max_restarts = static_cast<int>(whole_number("--max-restarts", raw_.max_restarts, 0, 1'000'000));
  options.log_dir = raw_.log_dir;
  options.tee = interpret_tee();
  options.grace = seconds("--grace-period", raw_.grace);
  options.timeout = seconds("--timeout", raw_.timeout);
  options.node_timeout = seconds("--node-timeout", raw_.node_timeout);
  if (options.node_timeout < std::chrono::milliseconds(kLeastNodeTimeoutMs)) {
    throw UsageError(compose({.what = fmt::format("--node-timeout {} is too short", raw_.node_timeout),
                              .evidence = "it must be at least 1 s",
                              .hint = "on a busy machine an agent may be delayed for a moment"}));
  }
  options.token =
      raw_.token_file.empty() ? base::Token::from_environment() : base::Token::from_file(raw_.token_file);
  options.bind = !raw_.no_bind;
  options.heap = !raw_.no_heap;
  if (!raw_.threads.empty())
    options.threads = static_cast<int>(whole_number("--threads", raw_.threads, 0, 1 << 16));
  if (raw_.backend != "static" && raw_.backend != "c10d") {
    throw UsageError(compose({.what = fmt::format("--rdzv-backend {} is not supported", raw_.backend),
                              .evidence = "it must be static or c10d"}));
  }
  interpret_nodes(options);
  return options;
}

void RunParser::interpret_nodes(RunOptions& options) const {
  if (!raw_.node_rank.empty()) {
    options.node_rank = static_cast<int>(whole_number("--node-rank", raw_.node_rank, 0, options.nnodes - 1));
  }
  std::optional<uint16_t> port;
  if (!raw_.master_port.empty()) {
    port = static_cast<uint16_t>(whole_number("--master-port", raw_.master_port, 0, 65535));
  }
  if (options.nnodes == 1) {
    // The ranks of one machine always use 127.0.0.1, which other machines cannot reach.
    if (!raw_.master_addr.empty() && !base::is_this_machine(base::without_brackets(raw_.master_addr))) {
      throw UsageError(compose({.what = fmt::format("--master-addr {} is not this machine", raw_.master_addr),
                                .evidence = "with --nnodes 1 this machine is node 0",
                                .hint = "omit --master-addr, or give the number of nodes with --nnodes"}));
    }
    options.port = port.value_or(0);
    return;
  }
  const auto several = fmt::format("--nnodes {}", options.nnodes);
  if (raw_.standalone) {
    throw UsageError(compose({.what = fmt::format("{} and --standalone contradict each other", several),
                              .evidence = "--standalone is for one node"}));
  }
  if (!raw_.endpoint.empty()) {
    const auto endpoint = parse_endpoint(raw_.endpoint);
    options.address = endpoint.host;
    options.port = endpoint.port ? *endpoint.port : port.value_or(kEndpointPort);
  } else {
    options.address = base::without_brackets(raw_.master_addr);
    options.port = port.value_or(kMasterPort);
    if (raw_.master_addr.empty() || !options.node_rank) {
      throw UsageError(compose(
          {.what = fmt::format("{} needs an address at which the nodes meet", several),
           .evidence = raw_.master_addr.empty() ? "neither --master-addr nor --rdzv-endpoint was given"
                                                : "--master-addr was given without --node-rank",
           .hint = "give each node --master-addr HOST --node-rank N, or all of them --rdzv-endpoint HOST"}));
    }
  }
  if (options.port == 0) {
    throw UsageError(compose({.what = fmt::format("port 0 cannot be used with {}", several),
                              .evidence = "all nodes must know the port in advance"}));
  }
}

Tee RunParser::interpret_tee() const {
  const auto what = [this](const std::string& text) {
    const auto number = base::parse_int(text);
    if (number && *number >= 0 && *number <= 3) return static_cast<int>(*number);
    throw UsageError(compose({.what = fmt::format("--tee \"{}\" is invalid", raw_.tee),
                              .evidence = "it must be 0, 1, 2 or 3, or a list such as 0:3,1:1"}));
  };
  Tee tee;
  if (raw_.tee.find(':') == std::string::npos) {
    tee.all = what(raw_.tee);
    return tee;
  }
  for (size_t begin = 0; begin <= raw_.tee.size();) {
    const size_t end = std::min(raw_.tee.find(',', begin), raw_.tee.size());
    const auto entry = raw_.tee.substr(begin, end - begin);
    const auto colon = std::min(entry.find(':'), entry.size());
    const auto rank = base::parse_int(entry.substr(0, colon));
    if (!rank || *rank < 0 || *rank >= kMostWorkersPerNode || colon == entry.size()) what("");
    tee.by_local_rank[static_cast<int>(*rank)] = what(entry.substr(colon + 1));
    begin = end + 1;
  }
  return tee;
}

}  // namespace

Endpoint parse_endpoint(const std::string& text) {
  const auto refuse = [&text] {
    throw UsageError(compose({.what = fmt::format("--rdzv-endpoint \"{}\" is invalid", text),
                              .evidence = "it must be HOST or HOST:PORT, with a port from 1 to 65535"}));
  };
  std::string host = text;
  std::string port;
  if (text.starts_with('[')) {  // an IPv6 address, which contains colons
    const auto bracket = text.find(']');
    if (bracket == std::string::npos) refuse();
    host = text.substr(1, bracket - 1);
    port = text.substr(bracket + 1);
    if (!port.empty() && !port.starts_with(':')) refuse();
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    host = text.substr(0, text.find(':'));
    port = text.substr(text.find(':'));
  }
  if (host.empty()) refuse();
  if (port.empty()) return {host, std::nullopt};
  const auto number = base::parse_int(port.substr(1));
  if (!number || *number < 1 || *number > 65535) refuse();
  return {host, static_cast<uint16_t>(*number)};
}

std::variant<RunOptions, HelpText> parse_run_arguments(const std::vector<std::string>& arguments) {
  return RunParser().parse(arguments);
}

}  // namespace lockstep::launch
