#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cli/report/chart.h"
#include "cli/report/style.h"
#include "cli/report/timeline.h"

namespace trainyard::cli {
namespace {

constexpr double kWidth = 980;
constexpr double kPlotLeft = 124;
constexpr double kPlotRight = 900;  ///< the bubble stands right of it
constexpr double kPlotTop = 66;
constexpr double kRowHeight = 24;
constexpr double kRowStep = 30;
constexpr double kBelow = 54;       ///< room for the axis
constexpr int kPassWidth = 4;       ///< of a typical pass, at the least
constexpr double kCutWidth = 28;    ///< between the two parts of a step that is cut
constexpr double kNumberWidth = 7;  ///< of a digit
constexpr int kTicks = 8;

/// Where times are in the picture.
class Scale {
 public:
  explicit Scale(const Timeline& timeline)
      : window_(window_of(timeline, static_cast<int>(kPlotRight - kPlotLeft) / kPassWidth,
                          static_cast<int>(kCutWidth) / kPassWidth)),
        end_(timeline.end) {
    const double shown = window_.is_cut() ? window_.head + (end_ - window_.tail) : end_;
    const double room = kPlotRight - kPlotLeft - (window_.is_cut() ? kCutWidth : 0);
    per_time_ = shown > 0 ? room / shown : 0;
  }

  const TimelineWindow& window() const { return window_; }
  double per_time() const { return per_time_; }
  /// Of a time in the head or in the tail.
  double at(double time) const {
    if (!window_.is_cut() || time <= window_.head) return kPlotLeft + time * per_time_;
    return kPlotRight - (end_ - std::max(time, window_.tail)) * per_time_;
  }

 private:
  TimelineWindow window_;
  double end_;
  double per_time_;
};

std::string painted_wait() { return fmt::format("class='wait' fill='{}'", light_colour("line")); }

std::string title_of(const Timeline& timeline, const TimelinePiece& piece) {
  const PassStyle& style = kPassStyles[piece.style];
  const std::string stage = piece.stage < 0 ? "" : fmt::format(", stage {}", piece.stage);
  return fmt::format("{}, {}: micro-batch {}{}, {:.4g} to {:.4g} {}", style.letter(), style.what,
                     piece.micro_batch, stage, piece.begin, piece.end, timeline.unit);
}

/// The part of a piece within [begin, end).
void add_piece(std::string& svg, const Timeline& timeline, const TimelinePiece& piece,
               const Scale& scale, double begin, double end, double y) {
  const double from = std::max(begin, piece.begin);
  const double to = std::min(end, piece.end);
  if (to <= from) return;
  const PassStyle& style = kPassStyles[piece.style];
  const double left = scale.at(from);
  const double width = (to - from) * scale.per_time();
  svg += fmt::format(
      "<rect class='layer {}' fill='{}' stroke='{}' stroke-width='.6' x='{:.2f}' y='{}' "
      "width='{:.2f}' height='{}'><title>{}</title></rect>",
      style.css_class, light_colour(style.css_class), light_colour("card"), left, y, width,
      kRowHeight, escape_html(title_of(timeline, piece)));
  const std::string number = std::to_string(piece.micro_batch);
  if (width < kNumberWidth * static_cast<double>(number.size()) + 4) return;
  svg += fmt::format(
      "<text class='{}' fill='{}' x='{:.2f}' y='{}' text-anchor='middle' "
      "style='font-size:11px;pointer-events:none'>{}</text>",
      style.number, light_colour(style.number == "dark" ? "ink" : style.number), left + width / 2,
      y + kRowHeight / 2 + 4, number);
}

void add_row(std::string& svg, const Timeline& timeline, const TimelineRow& row, const Scale& scale,
             double y) {
  const TimelineWindow& window = scale.window();
  const std::string wait = painted_wait();
  svg += fmt::format(
      "<text x='{}' y='{}' text-anchor='end'>{}</text>"
      "<rect {} x='{}' y='{}' width='{:.2f}' height='{}'/>",
      kPlotLeft - 8, y + kRowHeight / 2 + 4, escape_html(row.label), wait, kPlotLeft, y,
      scale.at(window.head) - kPlotLeft, kRowHeight);
  if (window.is_cut()) {
    svg += fmt::format("<rect {} x='{:.2f}' y='{}' width='{:.2f}' height='{}'/>", wait,
                       scale.at(window.tail), y, kPlotRight - scale.at(window.tail), kRowHeight);
  }
  for (const TimelinePiece& piece : row.pieces) {
    add_piece(svg, timeline, piece, scale, 0, window.head, y);
    if (window.is_cut()) add_piece(svg, timeline, piece, scale, window.tail, timeline.end, y);
  }
  svg += fmt::format("<text x='{}' y='{}' text-anchor='end'>{:.1f} %</text>\n", kWidth - 12,
                     y + kRowHeight / 2 + 4, 100 * timeline.bubble(row));
}

void add_axis(std::string& svg, const Timeline& timeline, const Scale& scale, double y) {
  const TimelineWindow& window = scale.window();
  const auto ticks = [&](double begin, double end) {
    const double share = (end - begin) * scale.per_time() / (kPlotRight - kPlotLeft);
    for (const double tick :
         axis_ticks(begin, end, std::max(1, static_cast<int>(std::lround(kTicks * share))))) {
      if (tick < begin || tick > end) continue;
      svg += fmt::format(
          "<line class='grid' stroke='{5}' x1='{0:.2f}' x2='{0:.2f}' y1='{1}' y2='{2}'/>"
          "<text x='{0:.2f}' y='{3}' text-anchor='middle'>{4:.4g}</text>\n",
          scale.at(tick), y, y + 5, y + 19, tick, light_colour("line"));
    }
  };
  ticks(0, window.head);
  if (window.is_cut()) {
    ticks(window.tail, timeline.end);
    svg += fmt::format("<text x='{:.2f}' y='{}' text-anchor='middle'>...</text>",
                       (scale.at(window.head) + scale.at(window.tail)) / 2, y + 10);
  }
  svg += fmt::format("<text x='{}' y='{}' text-anchor='middle'>{}</text>\n",
                     (kPlotLeft + kPlotRight) / 2, y + 38, escape_html(timeline.unit));
}

std::string legend(const Timeline& timeline) {
  std::string svg;
  double x = kPlotLeft;
  const auto entry = [&](const std::string& painted, const std::string& text) {
    svg += fmt::format(
        "<rect {} x='{}' y='38' width='11' height='11' rx='2'/><text x='{}' y='48'>{}</text>",
        painted, x, x + 16, text);
    x += 16 + kNumberWidth * static_cast<double>(text.size()) + 14;
  };
  for (size_t i = 0; i < kPassStyles.size(); ++i) {
    if (!timeline.has(i)) continue;
    const PassStyle& style = kPassStyles[i];
    entry(fmt::format("class='layer {}' fill='{}'", style.css_class, light_colour(style.css_class)),
          fmt::format("{} {}", style.letter(), style.what));
  }
  entry(painted_wait(), "waits");
  return svg + "\n";
}

}  // namespace

std::string timeline_svg(const Timeline& timeline, bool alone) {
  const double bottom = kPlotTop + kRowStep * static_cast<double>(timeline.rows.size());
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} {}' role='img' "
      "aria-label='{}' {} fill='{}'>\n",
      kWidth, bottom + kBelow, escape_html(timeline.title), kTextAttributes, light_colour("soft"));
  if (alone)
    svg += fmt::format("<rect width='100%' height='100%' fill='{}'/>\n", light_colour("card"));
  svg += fmt::format(
      "<text class='ink' fill='{}' font-weight='600' x='{}' y='24'>{}</text>"
      "<text x='{}' y='48' text-anchor='end'>bubble</text>\n",
      light_colour("ink"), kPlotLeft, escape_html(timeline.title), kWidth - 12);
  svg += legend(timeline);
  const Scale scale(timeline);
  double y = kPlotTop;
  for (const TimelineRow& row : timeline.rows) {
    add_row(svg, timeline, row, scale, y);
    y += kRowStep;
  }
  add_axis(svg, timeline, scale, bottom);
  return svg + "</svg>\n";
}

}  // namespace trainyard::cli
