#include "cli/top/scrape.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>

#include "common/http/fetch.h"
#include "control/telemetry/rank_metrics.h"

namespace trainyard::cli {
namespace {

/// Beyond the ranks that have series of their own, with room for other versions.
constexpr size_t kMaxRanks = 4096;

/// One line of the text format.
struct Sample {
  std::string_view name;
  std::map<std::string, std::string, std::less<>> labels;
  double value = 0;

  const std::string& label(std::string_view key) const {
    static const std::string nothing;
    const auto it = labels.find(key);
    return it == labels.end() ? nothing : it->second;
  }
};

/// Reads `name="value",` pairs from `at` up to the closing brace; false when they are malformed.
bool read_labels(std::string_view line, size_t& at, Sample& sample) {
  while (at < line.size() && line[at] != '}') {
    const size_t equals = line.find("=\"", at);
    if (equals == std::string_view::npos) return false;
    const std::string key(line.substr(at, equals - at));
    std::string value;
    for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
      if (line[at] == '\\' && at + 1 < line.size()) ++at;
      value += line[at];
    }
    if (at >= line.size()) return false;
    sample.labels[key] = std::move(value);
    ++at;
    if (at < line.size() && line[at] == ',') ++at;
  }
  return at < line.size();
}

std::optional<Sample> read_sample(std::string_view line) {
  Sample sample;
  size_t at = line.find_first_of("{ ");
  if (at == std::string_view::npos) return std::nullopt;
  sample.name = line.substr(0, at);
  if (line[at] == '{') {
    ++at;
    if (!read_labels(line, at, sample)) return std::nullopt;
    ++at;
  }
  const size_t begin = line.find_first_not_of(' ', at);
  if (begin == std::string_view::npos) return std::nullopt;
  const std::string_view number = line.substr(begin, line.find(' ', begin) - begin);
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), sample.value);
  if (error != std::errc()) return std::nullopt;
  return sample;
}

/// Beyond what any run comes to, below what arithmetic suffers by.
constexpr double kLimit = 1e15;

int64_t whole(double value) {
  return std::isfinite(value) && std::abs(value) < kLimit ? std::llround(value) : 0;
}

/// A sum of series, however many somebody sends.
void add(int64_t& sum, double value) {
  constexpr int64_t kMost = int64_t{1} << 60;
  sum = std::clamp(sum + whole(value), -kMost, kMost);
}

std::optional<double> known(double value) {
  const bool sane = std::isfinite(value) && std::abs(value) < kLimit;
  return sane ? std::optional(value) : std::nullopt;
}

void apply_rank(const Sample& sample, control::RankReading& rank) {
  const std::string_view name = sample.name;
  contract::RankCountersReading& counters = rank.counters;
  if (name == "trainyard_rank_step") rank.step = whole(sample.value);
  if (name == "trainyard_rank_generation") rank.generation = whole(sample.value);
  if (name == "trainyard_rank_instruction")
    rank.instruction_id = static_cast<uint32_t>(whole(sample.value));
  if (name == "trainyard_rank_smoothed_step_seconds") {
    rank.step_seconds = known(sample.value).value_or(0);
  }
  if (name == "trainyard_rank_steps_total") counters.step.buckets[0] = whole(sample.value);
  if (name == "trainyard_rank_tokens_total") counters.tokens_trained = whole(sample.value);
  if (name == "trainyard_rank_resident_memory_bytes") counters.resident_bytes = whole(sample.value);
  if (name == "trainyard_rank_gpu_memory_bytes") {
    rank.gpu_memory_bytes = known(sample.value).value_or(0);
  }
  if (name == "trainyard_rank_memory_bytes") add(counters.memory_bytes[0], sample.value);
  if (name == "trainyard_rank_phase" && sample.value == 1) {
    rank.phase = contract::phase_named(sample.label("phase")).value_or(rank.phase);
  }
  if (name == "trainyard_rank_stage_seconds_total") {
    for (size_t i = 0; i < contract::kStages; ++i) {
      if (contract::name_of(static_cast<contract::Stage>(i)) != sample.label("stage")) continue;
      constexpr double kMostSeconds = 1e9;
      counters.stages[i].nanoseconds =
          std::llround(std::clamp(known(sample.value).value_or(0), 0.0, kMostSeconds) * 1e9);
    }
  }
}

void apply_job(const Sample& sample, LiveState& state) {
  const std::string_view name = sample.name;
  const double value = sample.value;
  if (name == "trainyard_step") state.step = whole(value);
  if (name == "trainyard_step_target") state.total_steps = whole(value);
  contract::visit_figures(
      [&](const contract::Figure& figure, std::optional<double>& shown) {
        if (name == figure.family && (!figure.zero_is_unknown || value > 0)) shown = known(value);
      },
      state);
  if (name == "trainyard_job_phase" && value == 1) state.activity = sample.label("phase");
  if (name == "trainyard_job_generation") state.generation = whole(value);
  if (name == "trainyard_job_layout_info") state.layout = sample.label("layout");
  if (name == "trainyard_job_pipeline_stages") state.pipeline_stages = whole(value);
  if (name == "trainyard_job_expected_ranks") state.expected_ranks = whole(value);
  if (name == "trainyard_restarts_total") add(state.restarts, value);
  if (name == "trainyard_lost_steps_total") state.lost_steps = whole(value);
  if (name == "trainyard_wall_seconds_total") state.wall_s = known(value).value_or(0);
  if (name == "trainyard_goodput_ratio" && value > 0) state.goodput = known(value);
  if (name == "trainyard_slowest_rank" && value >= 0) state.slowest_rank = whole(value);
  if (name == "trainyard_checkpoint_step") state.checkpoint_step = whole(value);
  if (name == "trainyard_agent_info") state.activity = "agent " + sample.label("version");
}

/// The smoothed step time of the lowest rank, times what is left.
void estimate_end(LiveState& state) {
  if (state.ranks.empty() || !(state.ranks.front().step_seconds > 0)) return;
  const int64_t left = state.total_steps - state.step;
  if (left > 0) state.eta_s = static_cast<double>(left) * state.ranks.front().step_seconds;
}

}  // namespace

Result<LiveState> live_from_metrics(const std::string& text, Time at) {
  LiveState state;
  state.at = at;
  std::map<int64_t, control::RankReading> ranks;
  bool ours = false;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    if (!line.starts_with("trainyard_")) continue;
    const std::optional<Sample> sample = read_sample(line);
    if (!sample) continue;
    ours = true;
    state.job_name = sample->label("trainer_job");
    const std::string& number = sample->label("rank");
    int64_t rank = -1;
    std::from_chars(number.data(), number.data() + number.size(), rank);
    if (rank < 0) {
      apply_job(*sample, state);
    } else if (ranks.contains(rank) || ranks.size() < kMaxRanks) {
      ranks[rank].rank = static_cast<int>(rank);
      apply_rank(*sample, ranks[rank]);
    }
  }
  if (!ours) {
    return Error{ErrorCode::kInvalidData,
                 "found no series of Trainyard, wanted the /metrics of `trainyard run` or of an "
                 "agent"};
  }
  for (auto& [number, rank] : ranks) {
    contract::bound(rank.counters);
    state.generation = std::max(state.generation, rank.generation);
    state.ranks.push_back(rank);
  }
  estimate_end(state);
  return state;
}

Result<LiveState> scrape(const std::string& address, Time at) {
  TRAINYARD_ASSIGN(const std::string text, http::fetch(address, "/metrics"));
  auto state = live_from_metrics(text, at);
  if (!state) return state.error().with_context("http://" + address + "/metrics");
  return state;
}

}  // namespace trainyard::cli
