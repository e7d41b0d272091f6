#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "cli/output.h"
#include "cli/plan_view.h"
#include "cli/run/format.h"
#include "common/api/enum_names.h"
#include "common/text/quantity.h"

namespace trainyard::cli {
namespace {

/// A time in which a picture's numbers are short.
struct TimeUnit {
  double size = 1;
  std::string name;
};

TimeUnit unit_of(engine::PassCosts costs, double end) {
  if (costs == engine::PassCosts::kUnits) return {1, "passes of a stage"};
  constexpr std::array<const char*, 6> kPrefixes = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  double size = 1;
  for (; end / size >= 1000 && prefix + 1 < kPrefixes.size(); ++prefix)
    size *= 1000;
  return {size, std::string(kPrefixes[prefix]) + "FLOP of one rank"};
}

std::string title_of(const engine::MemoryPlan& plan) {
  const auto schedule = plan.setup().spec.parallelism.pipeline_schedule;
  const int stages = plan.stages().ranks();
  return fmt::format(
      "{}{} {}", stages > 1 ? fmt::format("{}, {} stages, ", api::name_of(schedule), stages) : "",
      grouped(plan.rounds()), text::plural(plan.rounds(), "micro-batch"));
}

engine::Bubble formula_of(const engine::MemoryPlan& plan, engine::PassCosts costs) {
  return bubble_of(plan.setup().spec.parallelism.pipeline_schedule, plan.stages(),
                   static_cast<int>(plan.rounds()), mean_times(plan, costs));
}

}  // namespace

Result<Timeline> planned_timeline(const engine::MemoryPlan& plan, engine::PassCosts costs) {
  const std::vector<int> ranks = pipeline_ranks(plan);
  std::vector<RowBuilder> rows(ranks.size(), RowBuilder(0));
  Timeline timeline{.title = title_of(plan), .unit = "", .rows = {}};
  TRAINYARD_TRY(simulate_step(
      plan, costs, [&](size_t rank, const engine::Instruction& i, double begin, double end) {
        const auto style = std::find_if(kPassStyles.begin(), kPassStyles.end(),
                                        [&](const PassStyle& s) { return s.planned == i.kind; });
        if (style == kPassStyles.end()) return;
        timeline.end = std::max(timeline.end, end);
        rows[rank].add({.style = static_cast<size_t>(style - kPassStyles.begin()),
                        .micro_batch = i.micro_batch,
                        .stage = plan.stages().stage_of(i.layer),
                        .begin = begin,
                        .end = end});
      }));
  const TimeUnit unit = unit_of(costs, timeline.end);
  timeline.unit = unit.name;
  timeline.end /= unit.size;
  for (size_t pp = 0; pp < rows.size(); ++pp) {
    std::vector<TimelinePiece> pieces = rows[pp].take();
    for (TimelinePiece& piece : pieces) {
      piece.begin /= unit.size;
      piece.end /= unit.size;
    }
    timeline.rows.push_back(
        {.label = fmt::format("stage {}, rank {}", pp, ranks[pp]), .pieces = std::move(pieces)});
  }
  const engine::Bubble formula = formula_of(plan, costs);
  timeline.title += fmt::format(": bubble {:.1f} %, by formula {:.1f} %", 100 * timeline.bubble(),
                                100 * formula.share);
  return timeline;
}

std::string program_text(const engine::MemoryPlan& plan, engine::PassCosts costs,
                         const Timeline& timeline, int columns) {
  std::string text = timeline_text(timeline, columns);
  std::string letters;
  for (size_t style = 0; style < kPassStyles.size(); ++style) {
    if (!timeline.has(style)) continue;
    letters += fmt::format("{} {}, ", kPassStyles[style].letter(), kPassStyles[style].what);
  }
  text += wrapped(
      fmt::format("{}{} waits. The step takes {:.4g} {}. Formula of the bubble where all stages "
                  "cost the same: {}.",
                  letters, kWaitLetter, timeline.end, timeline.unit,
                  formula_of(plan, costs).formula),
      static_cast<size_t>(columns));
  return text;
}

std::string program_list(const engine::MemoryPlan& plan, int rank) {
  std::string text;
  size_t id = 0;
  for (const engine::Instruction& instruction : plan.program_of(rank))
    text += fmt::format("{:>6}  {}\n", id++, to_string(instruction));
  return text;
}

}  // namespace trainyard::cli
