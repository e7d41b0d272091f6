#pragma once

#include <string>
#include <vector>

namespace trainyard::cli {

/// One curve: points in drawing order, gaps where a value is not finite.
struct ChartSeries {
  std::string name;
  std::string css_class;  ///< colours come from the page's style sheet
  std::vector<std::pair<double, double>> points;
};

/// A vertical mark with a text shown on hovering.
struct ChartMark {
  double x = 0;
  std::string text;
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<ChartSeries> series;
  std::vector<ChartMark> marks;
  bool from_zero = false;  ///< the y axis starts at 0
};

/// The chart as one inline <svg> element, 880 x 300 units, without scripts or outside references.
std::string render_svg(const Chart& chart);

/// `text` with the characters that mean something in HTML escaped.
std::string escape_html(const std::string& text);

/// Round numbers that divide [low, high] into about `count` steps. Pure.
std::vector<double> axis_ticks(double low, double high, int count);

}  // namespace trainyard::cli
