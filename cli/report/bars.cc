#include "cli/report/bars.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>

#include "cli/report/chart.h"
#include "cli/report/style.h"

namespace trainyard::cli {
namespace {

constexpr std::array<const char*, kBarLayersMax> kColours = {"s0", "s1", "s2", "s3", "s4",  "s5",
                                                             "s6", "s7", "a",  "b",  "good"};
constexpr double kWidth = 720;
constexpr double kHeight = 380;
constexpr double kPlotTop = 44;
constexpr double kPlotBottom = 340;
constexpr double kPlotLeft = 60;
constexpr double kPlotRight = 520;  ///< the legend stands right of it
constexpr double kBarShare = 0.55;  ///< of the room of a bar
constexpr int kRows = 6;
constexpr double kLegendRow = 20;

double total(const BarChart::Bar& bar) {
  return std::accumulate(bar.values.begin(), bar.values.end(), 0.0);
}

/// The bar's pieces and its label; `at` is the middle, `scale` units of drawing per unit of value.
std::string bar_svg(const BarChart& chart, const BarChart::Bar& bar, double at, double width,
                    double scale) {
  std::string svg;
  double y = kPlotBottom;
  for (size_t layer = 0; layer < bar.values.size(); ++layer) {
    const double height = bar.values[layer] * scale;
    y -= height;
    if (height <= 0) continue;
    svg += fmt::format(
        "<rect fill='{}' x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}'>"
        "<title>{}, {}: {:.3f} {}</title></rect>",
        light_colour(kColours[layer % kBarLayersMax]), at - width / 2, y, width, height,
        escape_html(bar.label), escape_html(chart.layers[layer]), bar.values[layer],
        escape_html(chart.unit));
  }
  svg += fmt::format(
      "<text x='{0:.1f}' y='{1:.1f}' text-anchor='middle'>{2:.2f}</text>"
      "<text x='{0:.1f}' y='{3:.1f}' text-anchor='middle'>{4}</text>\n",
      at, y - 5, total(bar), kPlotBottom + 18, escape_html(bar.label));
  return svg;
}

}  // namespace

std::string render_bars(const BarChart& chart) {
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} {}' role='img' aria-label='{}' {} "
      "fill='{}'>\n<rect width='100%' height='100%' fill='{}'/>\n"
      "<text x='{}' y='22' fill='{}' font-weight='600'>{}, {}</text>\n",
      kWidth, kHeight, escape_html(chart.title), kTextAttributes, light_colour("soft"),
      light_colour("card"), kPlotLeft, light_colour("ink"), escape_html(chart.title),
      escape_html(chart.unit));
  double highest = 0;
  for (const BarChart::Bar& bar : chart.bars)
    highest = std::max(highest, total(bar));
  const double scale = highest > 0 ? (kPlotBottom - kPlotTop - kLegendRow) / highest : 0;
  const double room =
      (kPlotRight - kPlotLeft) / static_cast<double>(std::max<size_t>(1, chart.bars.size()));
  for (size_t i = 0; i < chart.bars.size(); ++i) {
    if (!chart.bars[i].marked) continue;
    svg += fmt::format(
        "<rect fill='{}' fill-opacity='.12' x='{:.1f}' y='{}' width='{:.1f}' height='{}'/>\n",
        light_colour("mark"), kPlotLeft + static_cast<double>(i) * room, kPlotTop, room,
        kPlotBottom - kPlotTop + 26);
  }
  for (const double tick : axis_ticks(0, highest, kRows)) {
    svg += fmt::format(
        "<line stroke='{6}' x1='{0}' x2='{1}' y1='{2:.1f}' y2='{2:.1f}'/>"
        "<text x='{3}' y='{4:.1f}' text-anchor='end'>{5:g}</text>\n",
        kPlotLeft, kPlotRight, kPlotBottom - tick * scale, kPlotLeft - 7,
        kPlotBottom - tick * scale + 4, tick, light_colour("line"));
  }
  for (size_t i = 0; i < chart.bars.size(); ++i) {
    svg += bar_svg(chart, chart.bars[i], kPlotLeft + (static_cast<double>(i) + 0.5) * room,
                   kBarShare * room, scale);
  }
  // In the order of the bars, from the highest piece down.
  for (size_t row = 0; row < chart.layers.size(); ++row) {
    const size_t layer = chart.layers.size() - 1 - row;
    const double y = kPlotTop + kLegendRow * static_cast<double>(row);
    svg += fmt::format(
        "<rect fill='{}' x='{}' y='{:.1f}' width='10' height='10' rx='2'/>"
        "<text x='{}' y='{:.1f}'>{}</text>\n",
        light_colour(kColours[layer % kBarLayersMax]), kPlotRight + 24, y, kPlotRight + 42, y + 9,
        escape_html(chart.layers[layer]));
  }
  return svg + "</svg>\n";
}

}  // namespace trainyard::cli
