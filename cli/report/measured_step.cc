#include "cli/report/measured_step.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/run/format.h"
#include "common/text/whole_number.h"

namespace trainyard::cli {
namespace {

using Json = nlohmann::json;

/// Stretches that a rank does something else between two passes, in parts of the step, which a
/// picture does not show.
constexpr double kGap = 0.002;
constexpr double kMicrosecondsPerMillisecond = 1e3;

/// One span of a training thread, milliseconds.
struct Event {
  std::string category;
  double begin = 0;
  double end = 0;
  int micro_batch = -1;
};

/// By rank and step. A step's spans follow it in no order.
using Events = std::map<int, std::map<int64_t, std::vector<Event>>>;

Result<Events> read_events(const std::filesystem::path& trace_file) {
  std::ifstream file(trace_file);
  if (!file) return Error{ErrorCode::kIo, trace_file.string() + ": cannot be opened"};
  Events events;
  std::string line;
  std::getline(file, line);  // the header
  while (std::getline(file, line)) {
    if (line.ends_with(',')) line.pop_back();
    if (line == "]}" || line.find("\"tid\":0,") == std::string::npos) continue;
    try {
      const Json event = Json::parse(line);
      if (event.at("ph") != "X") continue;
      const Json& args = event.at("args");
      const double begin = event.at("ts").get<double>() / kMicrosecondsPerMillisecond;
      const double took = event.at("dur").get<double>() / kMicrosecondsPerMillisecond;
      events[static_cast<int>(whole_number(event.at("pid")))][whole_number(args, "step", -1)]
          .push_back({.category = event.at("cat").get<std::string>(),
                      .begin = begin,
                      .end = begin + took,
                      .micro_batch = static_cast<int>(whole_number(args, "microBatch", -1))});
    } catch (const Json::exception&) {
      return Error{ErrorCode::kInvalidData, trace_file.string() + ": no trace of a run"};
    }
  }
  return events;
}

/// The newest step that every rank has as a whole; -1: none.
int64_t newest_step(const Events& events) {
  int64_t newest = events.empty() ? -1 : std::numeric_limits<int64_t>::max();
  for (const auto& [rank, steps] : events) {
    int64_t of_rank = -1;
    for (const auto& [step, spans] : steps) {
      const bool whole = std::any_of(spans.begin(), spans.end(),
                                     [](const Event& e) { return e.category == "step"; });
      if (whole) of_rank = std::max(of_rank, step);
    }
    newest = std::min(newest, of_rank);
  }
  return newest;
}

/// Passes of a step without the waits in them, in order.
std::vector<TimelinePiece> passes_of(std::vector<Event> spans) {
  std::sort(spans.begin(), spans.end(), [](const Event& a, const Event& b) {
    return std::pair(a.begin, -a.end) < std::pair(b.begin, -b.end);
  });
  std::vector<TimelinePiece> pieces;
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto style = std::find_if(kPassStyles.begin(), kPassStyles.end(), [&](const auto& s) {
      return trace::name_of(s.measured) == spans[i].category;
    });
    if (style == kPassStyles.end()) continue;
    TimelinePiece piece{.style = static_cast<size_t>(style - kPassStyles.begin()),
                        .micro_batch = spans[i].micro_batch,
                        .begin = spans[i].begin,
                        .end = spans[i].end};
    for (size_t k = i + 1; k < spans.size() && spans[k].end <= spans[i].end; ++k) {
      if (!spans[k].category.ends_with("_wait")) continue;
      pieces.push_back(piece);
      pieces.back().end = spans[k].begin;
      piece.begin = spans[k].end;
    }
    pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace

Result<Timeline> measured_step(const std::filesystem::path& trace_file) {
  TRAINYARD_ASSIGN(const Events events, read_events(trace_file));
  const int64_t step = newest_step(events);
  std::map<int, std::vector<TimelinePiece>> passes;
  double begin = std::numeric_limits<double>::infinity();
  double end = 0;
  for (const auto& [rank, steps] : events) {
    const auto found = steps.find(step);
    if (step < 0 || found == steps.end() || passes.size() == kMeasuredRowsMax) continue;
    std::vector<TimelinePiece>& of_rank = passes[rank] = passes_of(found->second);
    if (of_rank.empty()) continue;
    begin = std::min(begin, of_rank.front().begin);
    end = std::max(end, of_rank.back().end);
  }
  if (!(end > begin)) {
    return Error{
        ErrorCode::kNotFound,
        trace_file.string() + ": found no step that every rank traced completely, wanted one"};
  }
  Timeline timeline{.title = fmt::format("Step {}", grouped(step + 1)),
                    .unit = "ms",
                    .rows = {},
                    .end = end - begin};
  for (auto& [rank, of_rank] : passes) {
    RowBuilder row(kGap * timeline.end);
    for (TimelinePiece& piece : of_rank) {
      piece.begin -= begin;
      piece.end -= begin;
      row.add(piece);
    }
    timeline.rows.push_back({.label = fmt::format("rank {}", rank), .pieces = row.take()});
  }
  return timeline;
}

}  // namespace trainyard::cli
