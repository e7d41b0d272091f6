#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string_view>

/// The figures that ranks tell of a run beside its place: one list. Page, messages, readings,
/// metrics, `trainyard top`, history and JSON are visitors of it. A new figure is a member of
/// Figures, its line in visit_figures and the place where it is computed.
namespace trainyard::contract {

/// Figures of the progress page's first layout, and room for further ones.
inline constexpr size_t kFirstFigures = 6;
inline constexpr size_t kFurtherFigures = 16;
inline constexpr size_t kFigureSlots = kFirstFigures + kFurtherFigures;

/// What makes a figure.
enum class FigureSource { kStep, kEvaluation };

/// How people read a figure.
enum class FigureNotation { kHidden, kFixed, kScientific, kGrouped, kPercent };

/// What a figure is, for tools and for people.
struct Figure {
  size_t slot = 0;               ///< its place in page and messages; never another's
  std::string_view key;          ///< member of JSON objects
  std::string_view family;       ///< of the metric; empty: ranks have one of their own
  std::string_view description;  ///< a sentence, with the unit
  FigureSource source = FigureSource::kStep;
  bool zero_is_unknown = false;
  /// What the metric shows while the figure is not known.
  double unknown = std::numeric_limits<double>::quiet_NaN();
  FigureNotation notation = FigureNotation::kHidden;
  int digits = 0;             ///< after the point
  std::string_view before{};  ///< what people read before the value
  std::string_view after{};   ///< and after it
};

/// Value: double in readings, where not a number or zero may stand for unknown;
/// std::optional<double> in what is shown.
template <class Value>
struct Figures {
  Value loss{};             ///< mean over the newest step, nats per token
  Value validation_loss{};  ///< of the newest evaluation
  Value learning_rate{};
  Value gradient_norm{};  ///< before clipping
  Value tokens_per_second{};
  Value step_seconds{};             ///< exponentially weighted mean
  Value model_flops_utilization{};  ///< 0 to 1
  Value gpu_memory_bytes{};         ///< in use on the rank's GPU

  bool operator==(const Figures&) const = default;
};

/// Of what is shown: a figure that is not known is absent.
using KnownFigures = Figures<std::optional<double>>;

/// Calls visit(Figure, member) for each figure in the order in which people read them.
template <class V, class F>
constexpr void visit_figures(V&& visit, F& figures) {  // NOLINT(readability-function-size): a list
  using enum FigureNotation;
  visit(Figure{.slot = 0,
               .key = "loss",
               .family = "trainyard_loss_nats",
               .description = "Mean training loss of the newest step, in nats per token; NaN "
                              "before the first step.",
               .notation = kFixed,
               .digits = 4,
               .before = "loss "},
        figures.loss);
  visit(Figure{.slot = 3,
               .key = "validationLoss",
               .family = "trainyard_validation_loss_nats",
               .description = "Mean loss over the held-out windows, in nats per token; NaN before "
                              "the first evaluation.",
               .source = FigureSource::kEvaluation,
               .zero_is_unknown = true,
               .notation = kFixed,
               .digits = 4,
               .before = "validation "},
        figures.validation_loss);
  visit(Figure{.slot = 2,
               .key = "learningRate",
               .family = "trainyard_learning_rate",
               .description = "Learning rate of the newest step; NaN before the first step.",
               .notation = kScientific,
               .before = "lr "},
        figures.learning_rate);
  visit(Figure{.slot = 1,
               .key = "gradientNorm",
               .family = "trainyard_gradient_norm",
               .description = "Global norm of the newest gradient, before clipping; NaN before the "
                              "first step.",
               .notation = kFixed,
               .digits = 3,
               .before = "grad "},
        figures.gradient_norm);
  visit(
      Figure{
          .slot = 5,
          .key = "tokensPerSecond",
          .family = "trainyard_tokens_per_second",
          .description =
              "Tokens trained per second by all ranks together, smoothed; 0 before the first step.",
          .zero_is_unknown = true,
          .unknown = 0,
          .notation = kGrouped,
          .before = "",
          .after = " tokens/s"},
      figures.tokens_per_second);
  visit(Figure{.slot = 4,
               .key = "stepSeconds",
               .family = "",
               .description = "Smoothed duration of a step.",
               .zero_is_unknown = true},
        figures.step_seconds);
  visit(Figure{.slot = 6,
               .key = "modelFlopsUtilization",
               .family = "trainyard_model_flops_utilization_ratio",
               .description =
                   "Model FLOPs utilization: FLOPs that the model needs for the tokens trained per "
                   "second, divided by the peak of the job's GPUs; NaN before the first step and "
                   "if the peak is not known.",
               .zero_is_unknown = true,
               .notation = kPercent,
               .digits = 1,
               .before = "MFU ",
               .after = " %"},
        figures.model_flops_utilization);
  visit(Figure{.slot = 7,
               .key = "gpuMemoryBytes",
               .family = "",
               .description = "Memory in use on the rank's GPU.",
               .zero_is_unknown = true},
        figures.gpu_memory_bytes);
}

/// Without values.
template <class V>
constexpr void visit_figures(V&& visit) {
  const Figures<double> none;
  visit_figures([&](const Figure& figure, double) { visit(figure); }, none);
}

inline constexpr size_t kFigures = [] {
  size_t count = 0;
  visit_figures([&](const Figure&) { ++count; });
  return count;
}();
static_assert(kFigures <= kFigureSlots);

}  // namespace trainyard::contract
