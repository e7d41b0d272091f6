#include "cli/top/live_state.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fcntl.h>
#include <span>
#include <string_view>
#include <unistd.h>

#include "cli/run/rank_figures.h"
#include "common/contract/rank_counters.h"
#include "common/io/file.h"
#include "common/text/document.h"
#include "common/text/json_writer.h"
#include "common/text/rfc3339.h"

namespace trainyard::cli {
namespace {

/// A thousand ranks take about a megabyte.
constexpr int64_t kMaxLiveBytes = 16 << 20;
constexpr text::Limits kLimits{.bytes = kMaxLiveBytes, .depth = 8, .nodes = 1'000'000};

class Writer {
 public:
  void integer(std::string_view key, int64_t value) {
    json.key(key);
    json.integer(value);
  }
  void number(std::string_view key, const std::optional<double>& value) {
    if (!value || !std::isfinite(*value)) return;
    json.key(key);
    json.number(*value);
  }
  void string(std::string_view key, std::string_view value) {
    json.key(key);
    json.string(value);
  }

  text::JsonWriter json;
};

void write_rank(Writer& out, const control::RankReading& rank) {
  const contract::RankCountersReading& counters = rank.counters;
  out.json.begin_object();
  out.integer("rank", rank.rank);
  out.integer("node", rank.node_index);
  out.integer("generation", rank.generation);
  out.string("phase", contract::name_of(rank.phase));
  out.integer("step", rank.step);
  out.integer("instruction", rank.instruction_id);
  out.number("stepSeconds", rank.step_seconds);
  out.integer("stepsDone", counters.step.count());
  out.integer("tokensTrained", counters.tokens_trained);
  out.integer("residentBytes", counters.resident_bytes);
  if (const int64_t bytes = gpu_bytes(rank); bytes > 0) out.integer("gpuMemoryBytes", bytes);
  int64_t planned = 0;
  for (const int64_t bytes : counters.memory_bytes)
    planned += bytes;
  out.integer("plannedBytes", planned);
  out.json.key("stageNanoseconds");
  out.json.begin_object();
  for (size_t i = 0; i < contract::kStages; ++i) {
    out.integer(contract::name_of(static_cast<contract::Stage>(i)), counters.stages[i].nanoseconds);
  }
  out.json.end_object();
  out.json.end_object();
}

/// Numbers beyond what any run comes to are somebody's joke, and arithmetic must not suffer by it.
constexpr int64_t kMaxInteger = int64_t{1} << 60;
constexpr double kMaxNumber = 1e15;

int64_t integer_of(const text::Node& node, std::string_view key, int64_t otherwise) {
  const text::Node* found = node.find(key);
  if (found == nullptr || found->kind != text::Kind::kInteger) return otherwise;
  return std::clamp(found->integer, -kMaxInteger, kMaxInteger);
}

/// For what is multiplied by a hundred: percentages.
int64_t count_of(const text::Node& node, std::string_view key) {
  return std::clamp<int64_t>(integer_of(node, key, 0), 0, int64_t{1} << 50);
}

std::optional<double> number_of(const text::Node& node, std::string_view key) {
  const text::Node* found = node.find(key);
  const bool is_number = found != nullptr && (found->kind == text::Kind::kInteger ||
                                              found->kind == text::Kind::kNumber);
  if (!is_number || std::abs(found->number) > kMaxNumber) return std::nullopt;
  return found->number;
}

std::string string_of(const text::Node& node, std::string_view key) {
  const text::Node* found = node.find(key);
  return found != nullptr && found->kind == text::Kind::kString ? found->string : "";
}

control::RankReading rank_of(const text::Node& node) {
  control::RankReading rank;
  rank.rank = static_cast<int>(integer_of(node, "rank", -1));
  rank.node_index = static_cast<int>(integer_of(node, "node", 0));
  rank.generation = integer_of(node, "generation", 0);
  rank.phase = contract::phase_named(string_of(node, "phase")).value_or(contract::Phase::kStarting);
  rank.step = integer_of(node, "step", 0);
  rank.instruction_id = static_cast<uint32_t>(integer_of(node, "instruction", 0));
  rank.step_seconds = number_of(node, "stepSeconds").value_or(0);
  rank.counters.step.buckets[0] = integer_of(node, "stepsDone", 0);
  rank.counters.tokens_trained = integer_of(node, "tokensTrained", 0);
  rank.counters.resident_bytes = integer_of(node, "residentBytes", 0);
  rank.gpu_memory_bytes = static_cast<double>(integer_of(node, "gpuMemoryBytes", 0));
  rank.counters.memory_bytes[0] = integer_of(node, "plannedBytes", 0);
  if (const text::Node* stages = node.find("stageNanoseconds"); stages != nullptr) {
    for (size_t i = 0; i < contract::kStages; ++i) {
      rank.counters.stages[i].nanoseconds =
          integer_of(*stages, contract::name_of(static_cast<contract::Stage>(i)), 0);
    }
  }
  contract::bound(rank.counters);
  return rank;
}

}  // namespace

std::string encode_live(const LiveState& state) {
  Writer out;
  out.json.begin_object();
  out.string("time", text::format_time(state.at));
  out.integer("pid", state.pid);
  out.json.key("over");
  out.json.boolean(state.over);
  out.string("job", state.job_name);
  out.string("activity", state.activity);
  out.integer("generation", state.generation);
  out.string("layout", state.layout);
  out.integer("pipelineStages", state.pipeline_stages);
  out.integer("step", state.step);
  out.integer("totalSteps", state.total_steps);
  out.integer("expectedRanks", state.expected_ranks);
  contract::visit_figures(
      [&](const contract::Figure& figure, const std::optional<double>& value) {
        out.number(figure.key, value);
      },
      state);
  out.number("etaSeconds", state.eta_s);
  out.number("goodput", state.goodput);
  out.number("wallSeconds", state.wall_s);
  out.integer("checkpointStep", state.checkpoint_step);
  out.integer("restarts", state.restarts);
  out.integer("lostSteps", state.lost_steps);
  if (state.slowest_rank) out.integer("slowestRank", *state.slowest_rank);
  out.json.key("ranks");
  out.json.begin_array();
  for (const control::RankReading& rank : state.ranks)
    write_rank(out, rank);
  out.json.end_array();
  out.json.end_object();
  return out.json.take() + "\n";
}

Result<LiveState> decode_live(const std::string& text) {
  const text::Document document = text::parse_json(text, kLimits);
  const text::Node* ranks = document.root.find("ranks");
  const std::optional<Time> at = text::parse_time(string_of(document.root, "time"));
  if (!document.problems.empty() || ranks == nullptr || !at) {
    return Error{ErrorCode::kInvalidData,
                 "found no live state, wanted what `trainyard run` writes: an object with time and "
                 "ranks"};
  }
  const text::Node& root = document.root;
  LiveState state;
  state.at = *at;
  state.pid = integer_of(root, "pid", 0);
  const text::Node* over = root.find("over");
  state.over = over != nullptr && over->kind == text::Kind::kBool && over->boolean;
  state.job_name = string_of(root, "job");
  state.activity = string_of(root, "activity");
  state.generation = integer_of(root, "generation", 0);
  state.layout = string_of(root, "layout");
  state.pipeline_stages = integer_of(root, "pipelineStages", 1);
  state.step = count_of(root, "step");
  state.total_steps = count_of(root, "totalSteps");
  state.expected_ranks = integer_of(root, "expectedRanks", 0);
  contract::visit_figures(
      [&](const contract::Figure& figure, std::optional<double>& value) {
        value = number_of(root, figure.key);
      },
      state);
  state.eta_s = number_of(root, "etaSeconds");
  state.goodput = number_of(root, "goodput");
  state.wall_s = number_of(root, "wallSeconds").value_or(0);
  state.checkpoint_step = integer_of(root, "checkpointStep", -1);
  state.restarts = integer_of(root, "restarts", 0);
  state.lost_steps = integer_of(root, "lostSteps", 0);
  if (root.find("slowestRank") != nullptr) {
    state.slowest_rank = integer_of(root, "slowestRank", -1);
  }
  for (const text::Node& rank : ranks->items)
    state.ranks.push_back(rank_of(rank));
  return state;
}

Status write_live(const std::filesystem::path& run_dir, const LiveState& state) {
  const std::filesystem::path path = run_dir / kLiveFile;
  const std::string temporary = path.string() + ".tmp";
  const std::string text = encode_live(state);
  {
    const UniqueFd fd(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!fd.valid()) return io_error("open " + temporary, errno);
    TRAINYARD_TRY(write_all(fd.get(), std::as_bytes(std::span(text)), temporary));
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    return io_error("rename to " + path.string(), errno);
  }
  return {};
}

Result<LiveState> read_live(const std::filesystem::path& run_dir) {
  const std::filesystem::path path = run_dir / kLiveFile;
  TRAINYARD_ASSIGN(const std::string text, read_file(path, kMaxLiveBytes));
  auto state = decode_live(text);
  if (!state) return state.error().with_context(path.string());
  return state;
}

}  // namespace trainyard::cli
