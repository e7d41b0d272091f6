#pragma once

#include <string>
#include <vector>

namespace trainyard::cli {

/// Stacked bars: each bar has one value per layer, drawn upwards in their order.
struct BarChart {
  struct Bar {
    std::string label;
    bool marked = false;  ///< drawn on a band
    std::vector<double> values;
  };
  std::string title;
  std::string unit;  ///< of the values
  std::vector<std::string> layers;
  std::vector<Bar> bars;
};

/// The chart as an SVG document that needs nothing else: legend, axis from zero, the value of each
/// piece on hovering. At most kBarLayersMax layers have colours of their own.
std::string render_bars(const BarChart& chart);
inline constexpr size_t kBarLayersMax = 11;

}  // namespace trainyard::cli
