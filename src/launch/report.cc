#include "launch/report.h"

#include <fmt/format.h>

#include "launch/shown.h"

namespace lockstep::launch {

namespace {

// What a worker wrote may be shown to somebody who did not write the program.
constexpr size_t kMostShown = 8192;

std::string hint_for(const Failure& failure, const ReportContext& context) {
  auto hint = hint_for_end(failure.wait_status);
  if (!hint.empty()) return hint;
  // The note of one of lockstep's errors brings its own.
  if (failure.note && failure.note->message.find("\nhint: ") != std::string::npos) return {};
  if (context.log_dir.empty()) return "--log-dir DIR keeps the whole output of each rank in a file";
  return fmt::format("its whole output is in {}/rank_{}.log on {}", context.log_dir, failure.rank,
                     failure.host);
}

std::string headline_of(const Failure& failure, const ReportContext& context) {
  return fmt::format(
      "lockstep run: rank {} {}\n"
      "  rank {} of {}, local rank {}, host {}, pid {}\n",
      failure.rank, describe_end(failure.wait_status), failure.rank, context.world_size, failure.local_rank,
      failure.host, failure.pid);
}

std::string headline_of(const std::vector<Culprit>& culprits, const Failure& failure,
                        const ReportContext& context) {
  std::vector<int> ranks;
  std::string where;
  for (const auto& culprit : culprits) {
    ranks.push_back(culprit.rank);
    where += fmt::format("  rank {} of {}, local rank {}, host {}{}\n", culprit.rank, context.world_size,
                         culprit.local_rank, culprit.host,
                         culprit.ended ? fmt::format(", pid {}", culprit.pid) : "");
  }
  return fmt::format("lockstep run: rank {} {}\n{}  rank {} {} because of it (host {}, pid {})\n",
                     rank_ranges(ranks), describe_culprits(culprits), where, failure.rank,
                     describe_end(failure.wait_status), failure.host, failure.pid);
}

// Each line of `text` on a line of its own, indented.
std::string indented(const std::string& text, const char* indent) {
  std::string lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines += fmt::format("{}{}\n", indent, text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

std::string failure_report(const Failure& failure, const ReportContext& context) {
  if (!failure.not_started.empty()) {
    return fmt::format("lockstep run: {}\n", failure.not_started);
  }
  std::string report = failure.culprits.empty() ? headline_of(failure, context)
                                                : headline_of(failure.culprits, failure, context);
  if (failure.note) {
    report += "  its error:\n" +
              indented(shown_lines(fmt::format("{}: {}", failure.note->kind, failure.note->message),
                                   kMostShown, ""),
                       "    ");
  }
  if (failure.last_lines.empty()) {
    report += "  it printed nothing\n";
  } else {
    report += "  its last lines:\n";
    for (const auto& line : failure.last_lines) {
      report += fmt::format("    | {}\n", shown_line(line, kMostShown));
    }
  }
  if (!context.stopping.empty() && !failure.culprits.empty()) {
    report += fmt::format("  stopping the ranks that are left{}: {}\n", context.several_nodes ? " here" : "",
                          rank_ranges(context.stopping));
  } else if (!context.stopping.empty()) {
    report += fmt::format("  stopping the other ranks{}: {}\n", context.several_nodes ? " here" : "",
                          rank_ranges(context.stopping));
  }
  if (context.attempt < context.max_restarts) {
    report += fmt::format("  restart {} of {} follows\n", context.attempt + 1, context.max_restarts);
  } else if (context.max_restarts > 0) {
    report += fmt::format("  after {} restart(s) this is final\n", context.max_restarts);
  }
  const auto hint = hint_for(failure, context);
  if (!hint.empty()) report += fmt::format("hint: {}\n", hint);
  return report;
}

std::string rank_ranges(const std::vector<int>& ranks) {
  std::string text;
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += text.empty() ? "" : ", ";
    text += last == first ? fmt::format("{}", ranks[first]) : fmt::format("{}-{}", ranks[first], ranks[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace lockstep::launch
