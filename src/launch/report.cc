#include "launch/report.h"

#include <algorithm>
#include <csignal>
#include <fmt/format.h>
#include <sys/wait.h>

#include "base/hints.h"
#include "base/rank_list.h"
#include "launch/shown.h"

namespace lockstep::launch {

namespace {

// The longest text of a worker that a report shows, in bytes.
constexpr size_t kMostShown = 8192;

// Indents each line of `text`.
std::string indented(const std::string& text, const char* indent) {
  std::string lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines += fmt::format("{}{}\n", indent, text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// Whether an uncaught lockstep error ended the process. Its message is sufficient; a core dump would not add
// to it.
bool died_of_our_error(const RankEnd& failure) {
  if (failure.note && failure.note->untold) return true;
  return WIFSIGNALED(failure.wait_status) && WTERMSIG(failure.wait_status) == SIGABRT &&
         std::any_of(failure.last_lines.begin(), failure.last_lines.end(), [](const std::string& line) {
           return line.find("after throwing an instance of 'lockstep::") != std::string::npos;
         });
}

std::string hint_for(const RankEnd& failure, const ReportContext& context) {
  // The message of a lockstep error contains a hint of its own.
  const bool hinted = failure.note && failure.note->message.find("\nhint: ") != std::string::npos;
  if (died_of_our_error(failure)) return {};
  if (auto hint = hint_for_end(failure.wait_status); !hint.empty()) return hint;
  if (hinted) return {};
  if (!failure.culprits.empty() && failure.culprits.front().ended) return base::kItMadeFewerSteps;
  if (context.log_dir.empty()) return "--log-dir DIR keeps the whole output of each rank in a file";
  return fmt::format("its whole output is in {}/rank_{}.log on {}", context.log_dir, failure.rank,
                     failure.host);
}

std::string error_of(const RankEnd& failure) {
  return shown_lines(fmt::format("{}: {}", failure.note->kind, failure.note->message), kMostShown, "");
}

std::string headline_of(const RankEnd& failure, const ReportContext& context) {
  std::string how = end_clause(failure.wait_status) + "\n";
  if (failure.note && failure.note->untold) {
    const auto error = error_of(failure);
    const auto end = std::min(error.find('\n'), error.size());
    how = fmt::format("failed: {}\n", error.substr(0, end)) +
          indented(error.substr(std::min(end + 1, error.size())), "  ");
  }
  return fmt::format(
      "lockstep run: rank {} {}"
      "  rank {} of {}, local rank {}, host {}, pid {}\n",
      failure.rank, how, failure.rank, context.world_size, failure.local_rank, failure.host, failure.pid);
}

// Whether the program has printed the error itself, so that the quoted last lines contain it.
bool is_quoted(const RankEnd& failure) {
  const auto& message = failure.note->message;
  const auto first = message.substr(0, message.find('\n'));
  return !first.empty() &&
         std::any_of(failure.last_lines.begin(), failure.last_lines.end(),
                     [&](const std::string& line) { return line.find(first) != std::string::npos; });
}

std::string headline_of(const std::vector<Culprit>& culprits, const RankEnd& failure,
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
                     base::describe_ranks(ranks), describe_culprits(culprits), where, failure.rank,
                     end_clause(failure.wait_status), failure.host, failure.pid);
}

}  // namespace

std::string failure_report(const RankEnd& failure, const ReportContext& context) {
  if (!failure.not_started.empty()) {
    return fmt::format("lockstep run: {}\n", failure.not_started);
  }
  std::string report = failure.culprits.empty() ? headline_of(failure, context)
                                                : headline_of(failure.culprits, failure, context);
  const bool in_headline = failure.note && failure.note->untold && failure.culprits.empty();
  if (failure.note && !in_headline && !is_quoted(failure)) {
    report += "  its error:\n" + indented(error_of(failure), "    ");
  }
  if (failure.last_lines.empty()) {
    if (!in_headline) report += "  it printed nothing\n";
  } else {
    report += "  its last lines:\n";
    for (const auto& line : failure.last_lines) {
      report += fmt::format("    | {}\n", shown_line(line, kMostShown));
    }
  }
  if (!context.stopping.empty() && !failure.culprits.empty()) {
    report += fmt::format("  stopping the ranks that are left{}: {}\n", context.several_nodes ? " here" : "",
                          base::describe_ranks(context.stopping));
  } else if (!context.stopping.empty()) {
    report += fmt::format("  stopping the other ranks{}: {}\n", context.several_nodes ? " here" : "",
                          base::describe_ranks(context.stopping));
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

}  // namespace lockstep::launch
