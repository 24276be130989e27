#include "page.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "numbers.h"
#include "style.h"
#include "svg.h"

namespace demo {
namespace {

constexpr int kWide = 720, kNarrow = 350;
constexpr size_t kPoints = 150;  // per curve: more would show only noise

// The CSS class of a run.
const char* style_of(const Run& run) {
  if (run.world_size > 1) return "many";
  return run.threads > 1 ? "threads" : "one";
}

template <class Figure>
std::string both_widths(const Figure& figure) {
  auto wide = draw(figure, kWide), narrow = draw(figure, kNarrow);
  return wide.insert(4, " class=\"wide\"") + "\n" + narrow.insert(4, " class=\"narrow\"") + "\n";
}

std::vector<double> means(const std::vector<double>& values, size_t window) {
  std::vector<double> out;
  for (size_t from = 0; from < values.size(); from += window) {
    const size_t to = std::min(values.size(), from + window);
    double sum = 0;
    for (size_t i = from; i < to; ++i) sum += values[i];
    out.push_back(sum / static_cast<double>(to - from));
  }
  return out;
}

const Run* with_ranks(const std::vector<Run>& runs) {
  const auto found =
      std::find_if(runs.begin(), runs.end(), [](const auto& run) { return run.world_size > 1; });
  return found == runs.end() ? nullptr : &*found;
}

std::string card(const std::string& name, const std::string& number, const std::string& note,
                 const char* style = "") {
  return fmt::format("<div><dt>{}</dt><dd class=\"number {}\">{}</dd><dd class=\"note\">{}</dd></div>\n",
                     escape(name), style, escape(number), escape(note));
}

std::string cards(const std::vector<Run>& runs) {
  const Run& base = runs.front();
  const Run* many = with_ranks(runs);
  const Run& shown = many != nullptr ? *many : base;
  std::string out = "<dl class=\"figures\">\n";
  if (many != nullptr) {
    const auto speed = speed_up(runs, *many);
    out += card("Speed-up", speed.empty() ? "–" : speed + "×",
                speed.empty()
                    ? "not measured: other programs were running"
                    : fmt::format("{} against {}", processes(many->world_size), processes(base.world_size)));
  }
  out += card("Test accuracy", fmt::format("{:.1f} %", 100 * shown.epochs.back().accuracy),
              many == nullptr ? ""
                              : fmt::format("{}: {:.1f} %", processes(base.world_size),
                                            100 * base.epochs.back().accuracy));
  if (many != nullptr) {
    out += card("Waiting for gradients", fmt::format("{:.1f} %", 100 * many->exposed_share()),
                "of the training time");
    out += card("Replicas identical", many->identical() ? "yes" : "NO",
                fmt::format("{} × {}", many->replicas.size(), many->replicas.front()),
                many->identical() ? "good" : "");
  }
  return out + "</dl>\n";
}

std::string loss_section(const std::vector<Run>& runs) {
  std::vector<const Run*> drawn{&runs.front()};
  if (const Run* many = with_ranks(runs); many != nullptr && many != drawn[0]) drawn.push_back(many);
  const Run& base = *drawn[0];
  const size_t window = std::max<size_t>(1, base.losses.size() / kPoints);

  CurveFigure figure{.x_label = "step",
                     .y_label = "training loss (cross-entropy)",
                     .x_end = static_cast<double>(base.losses.size())};
  std::string legend = "<ul class=\"legend\">\n";
  for (const Run* run : drawn) {
    figure.x_end = std::max(figure.x_end, static_cast<double>(run->losses.size()));
    figure.curves.push_back({style_of(*run), means(run->losses, window), static_cast<double>(window)});
    legend += fmt::format(
        "<li><svg width=\"28\" height=\"10\" aria-hidden=\"true\"><path class=\"curve {}\" d=\"M3 "
        "5H25\"/></svg>{}</li>\n",
        style_of(*run), escape(run->name()));
    if (!figure.description.empty()) figure.description += "; ";
    figure.description +=
        fmt::format("{}: from {:.2f} to {:.2f}", run->name(), figure.curves.back().values.front(),
                    figure.curves.back().values.back());
  }
  figure.description = "Training loss over the steps. " + figure.description;
  for (size_t i = 1; i <= base.epochs.size(); ++i) {
    figure.marks.push_back(static_cast<double>(base.losses.size() * i) /
                           static_cast<double>(base.epochs.size()));
  }
  auto caption = window == 1 ? std::string("Every step.") : fmt::format("Means over {} steps.", window);
  if (drawn.size() == 2) {
    const auto &a = figure.curves[0].values, &b = figure.curves[1].values;
    double most = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) most = std::max(most, std::abs(a[i] - b[i]));
    caption += fmt::format(
        " The curves differ by at most {:.2g}: every step processes the same images, and only the order of "
        "additions differs.",
        most);
  }
  return "<h2>The same training</h2>\n<figure>\n" + legend + "</ul>\n" + both_widths(figure) +
         "<figcaption>" + caption + "</figcaption>\n</figure>\n";
}

std::string throughput_section(const std::vector<Run>& runs) {
  BarFigure figure{.description = "Throughput.", .x_label = "images per second"};
  std::string caption = "Over all epochs, evaluation left out.";
  for (const auto& run : runs) {
    figure.bars.push_back({style_of(run), run.name(), grouped(run.rate()), run.rate()});
    figure.description += fmt::format(" {}: {} images per second.", run.name(), grouped(run.rate()));
    if (run.world_size == 1 && run.threads > 1)
      caption += " Several threads in one process: how LibTorch itself uses more cores.";
  }
  return "<h2>Throughput</h2>\n<figure>\n" + both_widths(figure) + "<figcaption>" + caption +
         "</figcaption>\n</figure>\n";
}

std::string timeline_section(const Run& run) {
  const Pass& pass = run.typical_pass;
  if (pass.buckets.empty()) return "";
  const auto ms = [](double seconds) { return fmt::format("{:.2f} ms", 1e3 * seconds); };
  TimelineFigure figure{.description = "Backward takes " + ms(pass.backward) + ".",
                        .x_label = "milliseconds since the first gradient"};
  figure.spans.push_back({"backward", "backward, " + ms(pass.backward), "backward: " + ms(pass.backward), 0,
                          0, 1e3 * pass.backward});
  for (size_t i = 0; i < pass.buckets.size(); ++i) {
    const auto& bucket = pass.buckets[i];
    const auto times = fmt::format("ready at {}, in progress from {} to {}", ms(bucket.ready),
                                   ms(bucket.launched), ms(bucket.finished));
    figure.spans.push_back({"many", fmt::format("bucket {}, {}", i + 1, bytes_text(bucket.bytes)),
                            fmt::format("{}; holds {}", times, fmt::join(bucket.parameters, ", ")),
                            1e3 * bucket.ready, 1e3 * bucket.launched, 1e3 * bucket.finished});
    figure.description += fmt::format(" Bucket {} is {}.", i + 1, times);
  }
  std::string holds;
  for (size_t i = 0; i < pass.buckets.size(); ++i) {
    holds += fmt::format(
        "<tr><th "
        "scope=\"row\">{}</th><td>{}</td><td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td><td "
        "class=\"names\">{}</td></tr>\n",
        i + 1, bytes_text(pass.buckets[i].bytes), 1e3 * pass.buckets[i].ready, 1e3 * pass.buckets[i].launched,
        1e3 * pass.buckets[i].finished,
        escape(fmt::format("{}", fmt::join(pass.buckets[i].parameters, ", "))));
  }
  return fmt::format(
      "<h2>One step: gradients are exchanged during backward</h2>\n<figure>\n"
      "<ul class=\"legend\">\n"
      "<li><svg width=\"28\" height=\"12\" aria-hidden=\"true\"><rect class=\"bar backward\" y=\"1\" "
      "width=\"28\" height=\"10\" "
      "rx=\"2\"/></svg>backward</li>\n"
      "<li><svg width=\"28\" height=\"12\" aria-hidden=\"true\"><rect class=\"bar many\" y=\"1\" "
      "width=\"28\" height=\"10\" "
      "rx=\"2\"/></svg>exchange of a bucket of gradients</li>\n"
      "<li><svg width=\"28\" height=\"12\" aria-hidden=\"true\"><path class=\"wait\" d=\"M1 1V11M1 "
      "6H28\"/></svg>the bucket is "
      "ready and waits</li>\n</ul>\n{}<figcaption>{}: the step with the median time of the last epoch, on "
      "rank 0. At least one bucket "
      "was in progress for {}, including the time until the other ranks were ready; computation was "
      "blocked for {} of that.</figcaption>\n</figure>\n"
      "<div class=\"scroll\"><table><caption>Times in milliseconds since the first "
      "gradient</caption><thead><tr><th "
      "scope=\"col\">bucket</th><th scope=\"col\">size</th><th scope=\"col\">ready</th><th "
      "scope=\"col\">start</th><th "
      "scope=\"col\">end</th><th scope=\"col\" class=\"names\">gradients "
      "of</th></tr></thead>\n<tbody>\n{}</tbody></table></div>\n",
      both_widths(figure), escape(run.name()), ms(pass.communication), ms(pass.exposed), holds);
}

std::string table_section(const std::vector<Run>& runs) {
  std::string out =
      "<h2>All figures</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">run</th><th "
      "scope=\"col\">s per epoch</th><th scope=\"col\">images/s</th><th scope=\"col\">speed-up</th><th "
      "scope=\"col\">last loss</th><th scope=\"col\">accuracy</th><th "
      "scope=\"col\">waiting</th></tr></thead>\n<tbody>\n";
  for (const auto& run : runs) {
    const auto speed = speed_up(runs, run);
    const auto waiting = run.world_size > 1 ? fmt::format("{:.1f} %", 100 * run.exposed_share()) : "–";
    out += fmt::format(
        "<tr><th scope=\"row\">{}</th><td>{:.2f}</td><td>{}</td><td>{}</td><td>{:.4f}</td><td>{:.2f} "
        "%</td><td>{}</td></tr>\n",
        escape(run.name()), run.seconds() / static_cast<double>(run.epochs.size()), grouped(run.rate()),
        speed.empty() ? "–" : speed + "×", run.epochs.back().loss, 100 * run.epochs.back().accuracy, waiting);
  }
  return out + "</tbody>\n</table></div>\n";
}

std::string facts_section(const std::vector<Run>& runs, const Machine& machine) {
  std::string out = "<h2>Machine and commands</h2>\n<dl class=\"facts\">\n";
  const auto fact = [&](const char* name, const std::string& value) {
    out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, escape(value));
  };
  fact("processor", fmt::format("{}, {} core{} for these runs", machine.cpu, machine.cores,
                                machine.cores == 1 ? "" : "s"));
  fact("system", machine.kernel);
  fact("LibTorch", runs.front().libtorch);
  fact("when", machine.date);
  for (const auto& run : runs) {
    if (run.world_size == 1) continue;
    fact("backend", run.backend);
    for (size_t rank = 0; rank < run.replicas.size(); ++rank) {
      fact("replica", fmt::format("rank {}: {}", rank, run.replicas[rank]));
    }
  }
  out += "</dl>\n";
  for (const auto& run : runs) out += "<pre>" + escape(run.full_command()) + "</pre>\n";
  return out;
}

}  // namespace

std::string page_of(const std::vector<Run>& runs, const Machine& machine) {
  const Run& base = runs.front();
  const Run* many = with_ranks(runs);
  auto page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>lockstep: {}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n"
      "<h1>{}</h1>\n<p class=\"lead\">A convolutional net of {} parameters learns {} images of clothes "
      "(Fashion-MNIST) in "
      "{} epoch{}, {} images per step. Several processes share the same step: each processes its part of the "
      "images, and the gradients "
      "are averaged.</p>\n",
      many == nullptr ? "one process" : "one process and " + std::to_string(many->world_size), kStyle,
      many == nullptr ? "One process, one model"
                      : fmt::format("{} processes, one model", capital_number(many->world_size)),
      grouped(static_cast<double>(base.parameters)), grouped(static_cast<double>(base.samples)),
      base.epochs.size(), base.epochs.size() == 1 ? "" : "s", base.batch);
  if (const Run* run = disturbed_one(runs)) {
    page += fmt::format(
        "<p class=\"warning\"><strong>Other programs were running.</strong> \"{}\" had {:.2f} cores on "
        "average, so the times on "
        "this page cannot be compared. Losses, accuracy and replicas are not affected.</p>\n",
        escape(run->name()), run->cpu_seconds / run->seconds());
  }
  page += cards(runs) + loss_section(runs) + throughput_section(runs);
  if (many != nullptr) page += timeline_section(*many);
  return page + table_section(runs) + facts_section(runs, machine) + "</main>\n</body>\n</html>\n";
}

}  // namespace demo
