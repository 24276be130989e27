#include "svg.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace demo {
namespace {

constexpr int kGap = 8;  // between a label and what it names

std::string open(int width, double height, const std::string& description) {
  return fmt::format(
      "<svg width=\"{0}\" height=\"{1:.0f}\" viewBox=\"0 0 {0} {1:.0f}\" role=\"img\" aria-label=\"{2}\">",
      width, height, escape(description));
}

std::string text(double x, double y, const char* style, const std::string& content) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>", x, y, style, escape(content));
}

std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>", x1, y1,
                     x2, y2, style);
}

// With as many decimals as the distance between the ticks requires, and thousands separators.
std::string tick_text(double value, double distance) {
  const int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(distance) - 1e-9)));
  auto plain = fmt::format("{:.{}f}", value, digits);
  auto end = plain.find('.');
  if (end == std::string::npos) end = plain.size();
  for (auto position = static_cast<int>(end) - 3; position > 0; position -= 3)
    plain.insert(static_cast<size_t>(position), 1, ',');
  return plain;
}

// Maps 0 to `from` pixels and `end` to `to` pixels.
struct Scale {
  double end, from, to;
  double operator()(double value) const { return from + (to - from) * value / end; }
};

std::string x_axis(const Scale& x, double top, double bottom, const std::string& label, int width) {
  std::string out;
  const double distance = tick_distance(x.end, width > 500 ? 8 : 4);
  for (int i = 0; distance * i <= x.end * 1.0001; ++i) {
    const double position = x(distance * i);
    out += line(position, top, position, bottom, "grid");
    out += text(position, bottom + 18, "tick middle", tick_text(distance * i, distance));
  }
  return out + text((x.from + x.to) / 2, bottom + 38, "axis middle", label);
}

}  // namespace

std::string escape(const std::string& text) {
  std::string out;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += letter;
    }
  }
  return out;
}

double tick_distance(double end, int most) {
  if (!(end > 0) || !std::isfinite(end)) return 1;
  const double least = end / most;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1., 2., 5.}) {
    if (factor * power >= least * 0.9999) return factor * power;
  }
  return 10 * power;
}

std::string draw(const CurveFigure& figure, int width) {
  const double height = width > 500 ? 340 : 280, top = 48, bottom = height - 46;
  double highest = 0;
  for (const auto& curve : figure.curves) {
    for (const double value : curve.values) {
      if (std::isfinite(value)) highest = std::max(highest, value);
    }
  }
  const double distance = tick_distance(highest, 5);
  const Scale y{std::max(distance, std::ceil(highest / distance - 1e-9) * distance), bottom, top};
  const Scale x{figure.x_end, 40, width - 14.0};

  auto out = open(width, height, figure.description) + text(0, 12, "axis", figure.y_label);
  for (int i = 0; distance * i <= y.end * 1.0001; ++i) {
    const double position = y(distance * i);
    out += line(x.from, position, x.to, position, "grid");
    out += text(x.from - kGap, position + 4, "tick end", tick_text(distance * i, distance));
  }
  out += x_axis(x, bottom, bottom + 4, figure.x_label, width);
  double before = 0;
  for (size_t i = 0; i < figure.marks.size(); ++i) {
    if (i + 1 < figure.marks.size()) out += line(x(figure.marks[i]), top, x(figure.marks[i]), bottom, "mark");
    out += text(x((before + figure.marks[i]) / 2), top - 8, "tick middle", fmt::format("epoch {}", i + 1));
    before = figure.marks[i];
  }
  for (const auto& curve : figure.curves) {
    out += fmt::format("<path class=\"curve {}\" d=\"", curve.style);
    const char* verb = "M";
    for (size_t i = 0; i < curve.values.size(); ++i) {
      if (!std::isfinite(curve.values[i])) {  // a gap, not a line to nowhere
        verb = "M";
        continue;
      }
      out += fmt::format("{}{:.1f} {:.1f}", verb, x((static_cast<double>(i) + 0.5) * curve.spacing),
                         y(curve.values[i]));
      verb = "L";
    }
    out += "\"/>";
  }
  return out + "</svg>";
}

std::string draw(const BarFigure& figure, int width) {
  const double row = 52, top = 4, bottom = top + row * static_cast<double>(figure.bars.size());
  double highest = 0;
  for (const auto& bar : figure.bars) highest = std::max(highest, bar.value);
  const double distance = tick_distance(highest, width > 500 ? 8 : 4);
  // Leaves room for the value after its bar.
  const Scale x{highest > 0 ? std::ceil(highest / distance) * distance : 1, 1,
                width - (width > 500 ? 60.0 : 50.0)};
  auto out = open(width, bottom + 46, figure.description) + x_axis(x, top, bottom, figure.x_label, width);
  double y = top;
  for (const auto& bar : figure.bars) {
    out += text(x.from + 4, y + 16, "label", bar.label);
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"20\" rx=\"2\" class=\"bar {}\"/>", x.from,
        y + 23, x(bar.value) - x.from, bar.style);
    out += text(x(bar.value) + kGap, y + 38, "value", bar.value_text);
    y += row;
  }
  return out + "</svg>";
}

std::string draw(const TimelineFigure& figure, int width) {
  const double row = 46, top = 4, bottom = top + row * static_cast<double>(figure.spans.size());
  double last = 0;
  for (const auto& span : figure.spans) last = std::max(last, span.end);
  const Scale x{last > 0 ? last : 1, 4, width - 18.0};
  auto out = open(width, bottom + 46, figure.description) + x_axis(x, top, bottom, figure.x_label, width);
  double y = top;
  for (const auto& span : figure.spans) {
    // The label starts where its bar starts, unless that leaves too little room.
    const bool late = x(span.since) > width * 0.5;
    out += text(late ? x(span.end) : x(span.since), y + 16, late ? "label end" : "label", span.label);
    out += fmt::format("<g><title>{}</title>", escape(span.tip));
    if (span.begin > span.since) {
      out += line(x(span.since), y + 30, x(span.begin), y + 30, "wait");
      out += line(x(span.since), y + 24, x(span.since), y + 36, "wait");
    }
    // At least two pixels, so that short spans stay visible.
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"14\" rx=\"2\" class=\"bar {}\"/></g>",
        x(span.begin), y + 23, std::max(2.0, x(span.end) - x(span.begin)), span.style);
    y += row;
  }
  return out + "</svg>";
}

}  // namespace demo
