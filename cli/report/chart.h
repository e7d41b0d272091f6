#pragma once

#include <string>
#include <utility>
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

/// A stretch of the x axis with a text shown on hovering.
struct ChartBand {
  double from = 0;
  double to = 0;
  std::string text;
};

struct Chart {
  std::string title;
  std::string unit;  ///< of y; may be empty
  std::string x_label;
  std::vector<ChartSeries> series;
  std::vector<ChartMark> marks;
  std::vector<ChartBand> bands;
  bool from_zero = false;  ///< the y axis starts at 0
  /// Series are layers on top of each other, filled, in ascending order; all have the same x.
  bool stacked = false;
};

/// In the units that fonts and lines of the style sheet count in.
struct ChartSize {
  double width = 0;
  double height = 0;
};
/// For a column of about 600 pixels, and for a telephone.
inline constexpr ChartSize kWideChart{620, 260};
inline constexpr ChartSize kNarrowChart{380, 240};

/// The chart as one inline <svg> element, without scripts or outside references.
std::string render_svg(const Chart& chart, const ChartSize& size);

/// The chart as a <figure>: title, legend where there are several series, and the drawing for wide
/// and for narrow screens, of which the style sheet shows one.
std::string render_figure(const Chart& chart);

/// `text` with the characters that mean something in HTML escaped.
std::string escape_html(const std::string& text);

/// Round numbers that divide [low, high] into about `count` steps. Pure.
std::vector<double> axis_ticks(double low, double high, int count);

}  // namespace trainyard::cli
