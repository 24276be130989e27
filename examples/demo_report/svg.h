// Figures as SVG text. Colours and fonts come from the page's style sheet, by class.
//
// Text in a scaled picture becomes too small on a phone, so each figure is drawn for a given width in pixels;
// the page holds a wide and a narrow one and shows what fits.
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
  std::string description;  // for those who do not see it
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

// A row of a timeline: a bar from `begin` to `end`, and a thin line from `since` to `begin` for waiting.
struct Span {
  std::string style, label, tip;
  double since = 0, begin = 0, end = 0;
};

struct TimelineFigure {
  std::string description, x_label;
  std::vector<Span> spans;
};
std::string draw(const TimelineFigure& figure, int width);

// For text in HTML and in attributes.
std::string escape(const std::string& text);

// A round number for the distance of ticks, so that there are at most `most` of them up to `end`.
double tick_distance(double end, int most);

}  // namespace demo
