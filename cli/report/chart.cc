#include "cli/report/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace trainyard::cli {
namespace {

/// Of the numbers of the vertical axis, at least; more where they are wider.
constexpr double kLeftLeast = 52;
constexpr double kLetter = 6.2;
constexpr double kTickGap = 7;
constexpr double kRight = 12;
constexpr double kTop = 12;
constexpr double kBottom = 38;
/// Room that a number on an axis wants.
constexpr double kTickWidth = 90;
constexpr double kTickHeight = 36;
/// At most this wide is half a letter of it.
constexpr double kHalfLetter = 4;
constexpr double kMarkRadius = 4;
/// A curve of so few points shows each of them.
constexpr size_t kDotsMax = 24;
/// More points than this on a narrow drawing only make the file large.
constexpr double kPointsPerUnit = 2;

struct Extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  /// Never of zero length, so that a flat curve is drawn in the middle.
  void widen() {
    if (empty()) *this = {0, 1};
    if (high - low < 1e-12 * std::max(1.0, std::fabs(high))) {
      low -= 0.5 * std::max(1e-9, std::fabs(low));
      high += 0.5 * std::max(1e-9, std::fabs(high));
    }
  }
};

struct Tick {
  double value = 0;
  std::string text;
};

struct Frame {
  ChartSize size;
  Extent x;
  Extent y;
  double left = kLeftLeast;
  std::vector<Tick> rows;  ///< of the vertical axis
  double right() const { return size.width - kRight; }
  double bottom() const { return size.height - kBottom; }
  double at_x(double value) const {
    return left + (value - x.low) / (x.high - x.low) * (right() - left);
  }
  double at_y(double value) const {
    return bottom() - (value - y.low) / (y.high - y.low) * (bottom() - kTop);
  }
};

/// Numbers of one axis, told apart by as few digits as that takes, all in one unit.
std::vector<Tick> labelled(const std::vector<double>& values) {
  std::vector<Tick> ticks;
  double largest = 0;
  for (const double value : values)
    largest = std::max(largest, std::fabs(value));
  const double step = values.size() > 1 ? values[1] - values[0] : std::max(largest / 100, 1e-300);
  // Decimal places that a number of the size of `of` needs, for steps to show.
  const auto places = [&](double of) {
    constexpr double kMost = 9;
    const double fraction = std::floor(std::log10(of)) - std::floor(std::log10(step) + 1e-9);
    return static_cast<int>(std::clamp(fraction, 0.0, kMost));
  };
  for (const double value : values) {
    // 0 may come out as a rest of what was added up.
    if (std::fabs(value) < 1e-9 * step) {
      ticks.push_back({0, "0"});
    } else if (largest >= 1e6) {
      ticks.push_back({value, largest < 1e12 ? fmt::format("{:.{}f}M", value / 1e6, places(1e6))
                                             : fmt::format("{:.{}e}", value, places(largest))});
    } else if (largest >= 1e4) {
      ticks.push_back({value, fmt::format("{:.{}f}k", value / 1e3, places(1e3))});
    } else if (largest < 1e-3) {
      ticks.push_back({value, fmt::format("{:.{}e}", value, places(std::fabs(value)))});
    } else {
      ticks.push_back({value, fmt::format("{:.{}f}", value, places(1))});
    }
  }
  return ticks;
}

Frame frame_of(const Chart& chart, const std::vector<ChartSeries>& series, const ChartSize& size) {
  Frame frame{size, {}, {}};
  for (const ChartSeries& one : series) {
    for (const auto& [x, y] : one.points) {
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      frame.x.include(x);
      frame.y.include(y);
    }
  }
  if (chart.from_zero || chart.stacked) frame.y.include(0);
  frame.x.widen();
  frame.y.widen();
  const int rows = std::max(2, static_cast<int>((frame.bottom() - kTop) / kTickHeight));
  frame.rows = labelled(axis_ticks(frame.y.low, frame.y.high, rows));
  for (const Tick& tick : frame.rows) {
    const double width = kLetter * static_cast<double>(tick.text.size());
    frame.left = std::max(frame.left, std::ceil(width + kTickGap));
  }
  return frame;
}

/// Layers as curves of their upper edges.
std::vector<ChartSeries> stacked(std::vector<ChartSeries> series) {
  for (size_t layer = 1; layer < series.size(); ++layer) {
    auto& points = series[layer].points;
    const auto& below = series[layer - 1].points;
    for (size_t i = 0; i < std::min(points.size(), below.size()); ++i)
      points[i].second += below[i].second;
  }
  return series;
}

/// Of more points than can be told apart on the drawing every n-th, and each gap.
ChartSeries thinned(const ChartSeries& series, const ChartSize& size) {
  const auto limit = static_cast<size_t>(kPointsPerUnit * size.width);
  if (series.points.size() <= limit) return series;
  const size_t every = (series.points.size() + limit - 1) / limit;
  ChartSeries kept{series.name, series.css_class, {}};
  for (size_t i = 0; i < series.points.size(); ++i) {
    const bool gap = !std::isfinite(series.points[i].second);
    if (gap || i % every == 0 || i + 1 == series.points.size()) {
      kept.points.push_back(series.points[i]);
    }
  }
  return kept;
}

std::string axes(const Chart& chart, const Frame& frame) {
  std::string svg;
  for (const Tick& tick : frame.rows) {
    const double y = frame.at_y(tick.value);
    svg += fmt::format(
        "<line class='grid' x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}'/>"
        "<text class='tick' x='{}' y='{:.1f}' text-anchor='end'>{}</text>",
        frame.left, frame.right(), y, y, frame.left - kTickGap, y + 4, tick.text);
  }
  const int columns = std::max(2, static_cast<int>((frame.right() - frame.left) / kTickWidth));
  for (const Tick& tick : labelled(axis_ticks(frame.x.low, frame.x.high, columns))) {
    const double last = frame.size.width - kHalfLetter * static_cast<double>(tick.text.size());
    svg += fmt::format("<text class='tick' x='{:.1f}' y='{}' text-anchor='middle'>{}</text>",
                       std::min(frame.at_x(tick.value), last), frame.bottom() + 16, tick.text);
  }
  svg += fmt::format("<text class='label' x='{}' y='{}' text-anchor='middle'>{}</text>",
                     (frame.left + frame.right()) / 2, frame.size.height - 5,
                     escape_html(chart.x_label));
  return svg;
}

std::string curve(const ChartSeries& series, const Frame& frame) {
  std::string path;
  bool pen_down = false;
  for (const auto& [x, y] : series.points) {
    if (!std::isfinite(x) || !std::isfinite(y)) {
      pen_down = false;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", frame.at_x(x), frame.at_y(y));
    pen_down = true;
  }
  std::string svg = fmt::format("<path class='curve {}' d='{}'/>", series.css_class, path);
  if (series.points.size() > kDotsMax) return svg;
  for (const auto& [x, y] : series.points) {
    if (!std::isfinite(x) || !std::isfinite(y)) continue;
    svg += fmt::format("<circle class='dot {}' cx='{:.1f}' cy='{:.1f}' r='2.5'/>", series.css_class,
                       frame.at_x(x), frame.at_y(y));
  }
  return svg;
}

/// The surface between a layer's upper edge and the axis; the layers below are drawn over it.
std::string layer(const ChartSeries& series, const Frame& frame) {
  std::string path;
  double first_x = 0;
  double last_x = 0;
  bool open = false;
  const auto close = [&] {
    if (open)
      path += fmt::format("L{:.1f} {:.1f}L{:.1f} {:.1f}Z", last_x, frame.at_y(0), first_x,
                          frame.at_y(0));
    open = false;
  };
  for (const auto& [x, y] : series.points) {
    if (!std::isfinite(x) || !std::isfinite(y)) {
      close();
      continue;
    }
    last_x = frame.at_x(x);
    if (!open) first_x = last_x;
    path += fmt::format("{}{:.1f} {:.1f}", open ? "L" : "M", last_x, frame.at_y(y));
    open = true;
  }
  close();
  return fmt::format("<path class='layer {}' d='{}'/>", series.css_class, path);
}

std::string bands(const Chart& chart, const Frame& frame) {
  std::string svg;
  for (const ChartBand& band : chart.bands) {
    const double from = frame.at_x(std::clamp(band.from, frame.x.low, frame.x.high));
    const double to = frame.at_x(std::clamp(band.to, frame.x.low, frame.x.high));
    svg += fmt::format(
        "<rect class='band' x='{:.1f}' y='{}' width='{:.1f}' height='{}'><title>{}</title></rect>",
        from, kTop, std::max(1.0, to - from), frame.bottom() - kTop, escape_html(band.text));
  }
  return svg;
}

std::string marks(const Chart& chart, const Frame& frame) {
  std::string svg;
  for (const ChartMark& mark : chart.marks) {
    svg += fmt::format(
        "<g class='mark'><line x1='{0:.1f}' x2='{0:.1f}' y1='{1}' y2='{2}'/>"
        "<circle cx='{0:.1f}' cy='{1}' r='{3}'/><title>{4}</title></g>",
        frame.at_x(std::clamp(mark.x, frame.x.low, frame.x.high)), kTop, frame.bottom(),
        kMarkRadius, escape_html(mark.text));
  }
  return svg;
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::vector<double> axis_ticks(double low, double high, int count) {
  std::vector<double> ticks;
  const double span = high - low;
  if (!(span > 0) || count < 1) return ticks;
  const double raw = span / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = power;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    step = factor * power;
    if (step >= raw) break;
  }
  for (double k = std::ceil(low / step); k * step <= high + 1e-9 * span; ++k) {
    ticks.push_back(k * step);
  }
  return ticks;
}

std::string render_svg(const Chart& chart, const ChartSize& size) {
  std::vector<ChartSeries> series = chart.stacked ? stacked(chart.series) : chart.series;
  const Frame frame = frame_of(chart, series, size);
  std::string svg = fmt::format("<svg viewBox='0 0 {} {}' role='img' aria-label='{}'>", size.width,
                                size.height, escape_html(chart.title));
  svg += bands(chart, frame) + axes(chart, frame);
  if (chart.stacked) {
    // From the highest edge down, so that each covers what of the ones above is not its own.
    for (auto one = series.rbegin(); one != series.rend(); ++one)
      svg += layer(thinned(*one, size), frame);
  }
  svg += marks(chart, frame);
  if (!chart.stacked) {
    for (const ChartSeries& one : series)
      svg += curve(thinned(one, size), frame);
  }
  return svg + "</svg>";
}

std::string render_figure(const Chart& chart) {
  std::string html = "<figure><figcaption>" + escape_html(chart.title);
  if (!chart.unit.empty()) html += " <span>" + escape_html(chart.unit) + "</span>";
  html += "</figcaption>";
  if (chart.series.size() > 1) {
    html += "<ul class='legend'>";
    for (const ChartSeries& series : chart.series) {
      html += fmt::format("<li class='{}'>{}</li>", series.css_class, escape_html(series.name));
    }
    html += "</ul>";
  }
  html += "<div class='wide'>" + render_svg(chart, kWideChart) + "</div>";
  html += "<div class='narrow'>" + render_svg(chart, kNarrowChart) + "</div>";
  return html + "</figure>\n";
}

}  // namespace trainyard::cli
