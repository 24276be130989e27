// Figures as SVG text. The page's style sheet defines colours and fonts, by class.
//
// Text in a scaled image becomes too small on a phone, so each figure is drawn for a given width in pixels.
// The page contains a wide and a narrow version and shows the one that fits.
#pragma once

#include <string>
#include <vector>

namespace demo {

struct Curve {
  std::string style;           // CSS class
  std::vector<double> values;  // at steps spacing/2, 3*spacing/2, …
  double spacing = 1;
};

struct CurveFigure {
  std::string description;  // for screen readers
  std::string x_label, y_label;
  double x_end = 1;
  std::vector<double> marks;  // vertical lines: where epochs end
  std::vector<Curve> curves;
};
std::string draw(const CurveFigure& figure, int width);

struct Bar {
  std::string style, label, value_text;
  double value = 0;
};

struct BarFigure {
  std::string description, x_label;
  std::vector<Bar> bars;
};
std::string draw(const BarFigure& figure, int width);

// A row of a timeline: a bar from `begin` to `end`, and a thin line from `since` to `begin` for the wait.
struct Span {
  std::string style, label, tip;
  double since = 0, begin = 0, end = 0;
};

struct TimelineFigure {
  std::string description, x_label;
  std::vector<Span> spans;
};
std::string draw(const TimelineFigure& figure, int width);

// Escapes text for HTML and for attributes.
std::string escape(const std::string& text);

// A round distance between ticks, with at most `most` ticks up to `end`.
double tick_distance(double end, int most);

}  // namespace demo
