#include "cli/report/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace trainyard::cli {
namespace {

constexpr double kWidth = 880;
constexpr double kHeight = 300;
constexpr double kLeft = 70;
constexpr double kRight = 20;
constexpr double kTop = 36;
constexpr double kBottom = 44;
constexpr int kTicks = 5;

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

struct Frame {
  Extent x;
  Extent y;
  double at_x(double value) const {
    return kLeft + (value - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight);
  }
  double at_y(double value) const {
    return kHeight - kBottom - (value - y.low) / (y.high - y.low) * (kHeight - kTop - kBottom);
  }
};

Frame frame_of(const Chart& chart) {
  Frame frame;
  for (const ChartSeries& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      frame.x.include(x);
      frame.y.include(y);
    }
  }
  if (chart.from_zero) frame.y.include(0);
  frame.x.widen();
  frame.y.widen();
  return frame;
}

std::string tick_text(double value) {
  if (value == 0) return "0";
  const double size = std::fabs(value);
  if (size >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.3g}k", value / 1e3);
  if (size < 1e-4) return fmt::format("{:.2e}", value);
  return fmt::format("{:.4g}", value);
}

std::string axes(const Chart& chart, const Frame& frame) {
  std::string svg;
  for (const double tick : axis_ticks(frame.y.low, frame.y.high, kTicks)) {
    const double y = frame.at_y(tick);
    svg += fmt::format(
        "<line class='grid' x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}'/>"
        "<text class='tick' x='{}' y='{:.1f}' text-anchor='end'>{}</text>",
        kLeft, kWidth - kRight, y, y, kLeft - 8, y + 4, tick_text(tick));
  }
  for (const double tick : axis_ticks(frame.x.low, frame.x.high, kTicks)) {
    svg += fmt::format("<text class='tick' x='{:.1f}' y='{}' text-anchor='middle'>{}</text>",
                       frame.at_x(tick), kHeight - kBottom + 18, tick_text(tick));
  }
  svg += fmt::format("<text class='label' x='{}' y='{}' text-anchor='middle'>{}</text>",
                     (kLeft + kWidth - kRight) / 2, kHeight - 6, escape_html(chart.x_label));
  svg += fmt::format(
      "<text class='label' transform='translate(16 {}) rotate(-90)' text-anchor='middle'>{}</text>",
      (kTop + kHeight - kBottom) / 2, escape_html(chart.y_label));
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
  return fmt::format("<path class='curve {}' d='{}'/>", series.css_class, path);
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

std::string render_svg(const Chart& chart) {
  const Frame frame = frame_of(chart);
  std::string svg = fmt::format("<svg viewBox='0 0 {} {}' role='img' aria-label='{}'>", kWidth,
                                kHeight, escape_html(chart.title));
  svg +=
      fmt::format("<text class='title' x='{}' y='20'>{}</text>", kLeft, escape_html(chart.title));
  svg += axes(chart, frame);
  for (const ChartMark& mark : chart.marks) {
    const double x = frame.at_x(std::clamp(mark.x, frame.x.low, frame.x.high));
    svg += fmt::format(
        "<g class='mark'><line x1='{0:.1f}' x2='{0:.1f}' y1='{1}' y2='{2}'/><circle cx='{0:.1f}' "
        "cy='{1}' r='5'/><title>{3}</title></g>",
        x, kTop, kHeight - kBottom, escape_html(mark.text));
  }
  double legend = kWidth - kRight;
  for (const ChartSeries& series : chart.series) {
    svg += curve(series, frame);
    if (chart.series.size() < 2) continue;
    svg += fmt::format("<text class='legend {}' x='{}' y='20' text-anchor='end'>{}</text>",
                       series.css_class, legend, escape_html(series.name));
    legend -= 110;
  }
  return svg + "</svg>";
}

}  // namespace trainyard::cli
