#include <chrono>
#include <cmath>
#include <ostream>
#include <string>
#include <string_view>

#include "cli/run/format.h"
#include "cli/run/run_view.h"
#include "common/text/json_writer.h"

namespace trainyard::cli {
namespace {

constexpr std::chrono::seconds kInterval{1};

/// Members of one object; what is not known or not finite is left out.
class Object {
 public:
  explicit Object(const char* type) {
    json_.begin_object();
    text("type", type);
  }
  void text(std::string_view key, std::string_view value) {
    json_.key(key);
    json_.string(value);
  }
  void integer(const char* key, int64_t value) {
    json_.key(key);
    json_.integer(value);
  }
  void boolean(const char* key, bool value) {
    json_.key(key);
    json_.boolean(value);
  }
  void number(std::string_view key, const std::optional<double>& value) {
    if (!value || !std::isfinite(*value)) return;
    json_.key(key);
    json_.number(*value);
  }
  void list(const char* key, const std::vector<std::string>& values) {
    json_.key(key);
    json_.begin_array();
    for (const std::string& value : values)
      json_.string(value);
    json_.end_array();
  }
  void ranks(const std::vector<control::RankReading>& ranks) {
    json_.key("ranks");
    json_.begin_array();
    for (const control::RankReading& rank : ranks) {
      json_.begin_object();
      integer("rank", rank.rank);
      integer("step", rank.step);
      text("phase", contract::name_of(rank.phase));
      json_.end_object();
    }
    json_.end_array();
  }
  void trace(const std::string& file, const std::vector<TracedRank>& ranks) {
    json_.key("trace");
    json_.begin_object();
    text("file", file);
    json_.key("ranks");
    json_.begin_array();
    for (const TracedRank& rank : ranks) {
      json_.begin_object();
      integer("rank", rank.rank);
      integer("steps", rank.steps);
      number("communicationSeconds", rank.communication_s);
      number("hiddenPercent", 100 * rank.hidden);
      json_.end_object();
    }
    json_.end_array();
    json_.end_object();
  }
  void peak_memory(const contract::PeakMemory& peak) {
    json_.key("peakMemory");
    json_.begin_object();
    integer("rank", peak.rank);
    integer("plannedBytes", peak.planned_bytes);
    integer("measuredBytes", peak.measured_bytes);
    json_.end_object();
  }
  void best(const contract::BestModel& best) {
    json_.key("best");
    json_.begin_object();
    integer("step", best.step);
    number("validationLoss", best.validation_loss);
    text("checkpoint", best.checkpoint);
    json_.end_object();
  }
  void goodput(const api::GoodputStatus& goodput) {
    json_.key("goodput");
    json_.begin_object();
    seconds("wallSeconds", goodput.wall);
    seconds("productiveSeconds", goodput.productive);
    number("ratio", goodput.ratio);
    json_.key("badputSeconds");
    json_.begin_object();
    seconds("queue", goodput.badput.queue);
    seconds("startup", goodput.badput.startup);
    seconds("rendezvous", goodput.badput.rendezvous);
    seconds("restore", goodput.badput.restore);
    seconds("checkpoint", goodput.badput.checkpoint);
    seconds("recompute", goodput.badput.recompute);
    seconds("stall", goodput.badput.stall);
    seconds("infra", goodput.badput.infra);
    json_.end_object();
    seconds("stoppedSeconds", goodput.stopped);
    integer("lostSteps", goodput.lost_steps);
    json_.end_object();
  }
  std::string take() {
    json_.end_object();
    return json_.take() + "\n";
  }

 private:
  void seconds(const char* key, std::chrono::milliseconds time) {
    number(key, static_cast<double>(time.count()) / 1000);
  }

  text::JsonWriter json_;
};

const char* kind_text(Notice::Kind kind) {
  switch (kind) {
    case Notice::Kind::kEvent:
      return "Normal";
    case Notice::Kind::kWarning:
      return "Warning";
    case Notice::Kind::kRankExit:
      return "RankExit";
    case Notice::Kind::kMessage:
      return "Message";
  }
  return "?";
}

const char* outcome_name(Summary::Outcome outcome) {
  switch (outcome) {
    case Summary::Outcome::kComplete:
      return "Complete";
    case Summary::Outcome::kFailed:
      return "Failed";
    case Summary::Outcome::kStopped:
      return "Stopped";
    case Summary::Outcome::kKilled:
      return "Killed";
  }
  return "?";
}

class JsonView final : public RunView {
 public:
  explicit JsonView(std::ostream& out) : out_(out) {}

  void begin(const RunHeader& header) override {
    Object object("start");
    object.text("job", header.job_name);
    object.text("runDir", header.run_dir);
    object.integer("nodes", header.nodes);
    object.integer("ranks", header.ranks);
    object.integer("threadsPerRank", header.threads_per_rank);
    object.boolean("resumed", header.resumed);
    object.integer("generation", header.generation);
    object.integer("step", header.step);
    print(object);
  }

  void update(const Snapshot& snapshot) override {
    const auto now = std::chrono::steady_clock::now();
    const bool moved = snapshot.step != step_ || snapshot.generation != generation_;
    const bool due = now >= next_ && moved;
    if (!due && snapshot.activity == activity_) return;
    next_ = now + kInterval;
    step_ = snapshot.step;
    generation_ = snapshot.generation;
    activity_ = snapshot.activity;
    Object object("progress");
    object.text("activity", snapshot.activity);
    object.integer("generation", snapshot.generation);
    object.integer("step", snapshot.step);
    object.integer("totalSteps", snapshot.total_steps);
    contract::visit_figures(
        [&](const contract::Figure& figure, const std::optional<double>& value) {
          object.number(figure.key, value);
        },
        snapshot);
    object.number("etaSeconds", snapshot.eta_s);
    object.integer("checkpointStep", snapshot.checkpoint_step);
    object.integer("checkpointFailures", snapshot.checkpoint_failures);
    object.integer("restarts", snapshot.restarts);
    object.ranks(snapshot.ranks);
    print(object);
  }

  void notice(const Notice& notice) override {
    Object object("event");
    object.text("kind", kind_text(notice.kind));
    object.text("reason", notice.reason);
    object.text("message", notice.message);
    if (!notice.details.empty()) object.list("details", notice.details);
    print(object);
  }

  void end(const Summary& summary) override {
    Object object("summary");
    object.text("job", summary.job_name);
    object.text("outcome", outcome_name(summary.outcome));
    object.integer("exitCode", summary.exit_code);
    if (!summary.reason.empty()) object.text("reason", summary.reason);
    if (!summary.layout.empty()) object.text("layout", summary.layout);
    object.integer("step", summary.step);
    object.integer("totalSteps", summary.total_steps);
    object.integer("skippedSteps", summary.skipped_steps);
    object.number("finalLoss", summary.final_loss);
    object.number("validationLoss", summary.validation_loss);
    object.number("validationBitsPerByte", summary.validation_bits_per_byte);
    object.number("tokensPerSecond", summary.tokens_per_second);
    object.number("modelFlopsUtilization", summary.model_flops_utilization);
    object.number("wallSeconds", summary.wall_s);
    if (summary.checkpoint_step) object.integer("checkpointStep", *summary.checkpoint_step);
    object.integer("restarts", summary.restarts);
    object.integer("lostSteps", summary.lost_steps);
    if (summary.goodput) object.goodput(*summary.goodput);
    if (summary.peak_memory) object.peak_memory(*summary.peak_memory);
    if (const int64_t bytes = most_gpu_memory(summary); bytes > 0)
      object.integer("mostGpuMemoryBytes", bytes);
    if (summary.best) object.best(*summary.best);
    if (summary.stopped_early) object.boolean("stoppedEarly", true);
    object.text("checkpointDir", summary.checkpoint_dir);
    if (!summary.export_dir.empty()) object.text("exportDir", summary.export_dir);
    if (!summary.state_hash.empty()) object.text("stateHash", summary.state_hash);
    if (!summary.warnings.empty()) object.list("warnings", summary.warnings);
    if (!summary.trace_file.empty()) object.trace(summary.trace_file, summary.traced_ranks);
    print(object);
  }

 private:
  void print(Object& object) { out_ << object.take() << std::flush; }

  std::ostream& out_;
  std::chrono::steady_clock::time_point next_;
  int64_t step_ = -1;
  int64_t generation_ = -1;
  std::string activity_;
};

}  // namespace

std::unique_ptr<RunView> make_json_view(std::ostream& out) {
  return std::make_unique<JsonView>(out);
}

}  // namespace trainyard::cli
