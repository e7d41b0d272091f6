// What the binaries serve to Prometheus against docs/reference/metrics.md, and promtool's opinion.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/agent_metrics.h"
#include "cli/run/run_metrics.h"
#include "common/proto/coordination.pb.h"
#include "control/coordinator/rank_counters_proto.h"
#include "control/telemetry/rank_metrics.h"
#include "tests/support/child_process.h"
#include "tests/support/manual_clock.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

using testing::ContainerEq;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Time kNow{std::chrono::seconds(1'700'000'100)};

struct Shown {
  std::string type;
  std::set<std::string> labels;
  std::string help;

  bool operator==(const Shown&) const = default;
};
void PrintTo(const Shown& shown, std::ostream* out) {
  *out << shown.type;
  for (const std::string& label : shown.labels)
    *out << " " << label;
  *out << " " << shown.help;
}
using Families = std::map<std::string, Shown>;

/// The family that a series line belongs to: histograms have suffixes.
std::string family_of(const std::string& series, const Families& families) {
  for (const char* suffix : {"_bucket", "_count", "_sum"}) {
    const std::string end = suffix;
    if (!series.ends_with(end)) continue;
    const std::string base = series.substr(0, series.size() - end.size());
    if (const auto it = families.find(base); it != families.end() && it->second.type == "histogram")
      return base;
  }
  return series;
}

/// Names, types and label names of an exposition; `le`, `trainer_job` and `trainer_namespace` are
/// understood.
Families families_of(const std::string& exposition) {
  Families families;
  std::istringstream lines(exposition);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, kind, name, type;
    words >> hash >> kind >> name >> type;
    if (hash == "#" && kind == "TYPE") families[name].type = type;
    if (hash == "#" && kind == "HELP") {
      families[name].help = line.substr(line.find(name) + name.size() + 1);
    }
    if (line.empty() || line[0] == '#') continue;
    const size_t open = line.find('{');
    const std::string series = line.substr(0, std::min(open, line.find(' ')));
    EXPECT_THAT(line, HasSubstr("{trainer_job=\"tiny\"")) << "who is it?";
    Shown& shown = families[family_of(series, families)];
    for (size_t at = open; at != std::string::npos && line[at] != '}';) {
      const size_t equals = line.find('=', at);
      const std::string label = line.substr(at + 1, equals - at - 1);
      if (label != "le" && !label.starts_with("trainer_")) shown.labels.insert(label);
      at = line.find('"', line.find('"', equals) + 1) + 1;
    }
  }
  return families;
}

std::string trimmed(const std::string& cell) {
  const size_t begin = cell.find_first_not_of(' ');
  return begin == std::string::npos ? ""
                                    : cell.substr(begin, cell.find_last_not_of(' ') - begin + 1);
}

/// The rows of the reference whose `served by` cell names `binary`:
/// | `name` | type | labels | served by | meaning |
Families documented(const std::string& binary) {
  Families families;
  std::ifstream file(testing_support::source_path("docs/reference/metrics.md"));
  EXPECT_TRUE(file.good());
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `trainyard_")) continue;
    std::vector<std::string> cells;
    std::istringstream row(line.substr(1));
    for (std::string cell; std::getline(row, cell, '|');)
      cells.push_back(trimmed(cell));
    EXPECT_EQ(cells.size(), 5u) << line;
    if (cells.size() < 5 || cells[3].find(binary) == std::string::npos) continue;
    Shown shown{cells[1], {}, cells[4]};
    std::istringstream labels(cells[2]);
    for (std::string label; std::getline(labels, label, ',');)
      shown.labels.insert(trimmed(label));
    families[cells[0].substr(1, cells[0].size() - 2)] = shown;
  }
  return families;
}

class MetricsReferenceTest : public testing::Test {
 protected:
  MetricsReferenceTest() {
    job_.metadata.name = "tiny";
    job_.spec.num_nodes = 1;
    job_.spec.num_proc_per_node = 2;
    job_.spec.engine.emplace();
    status_.membership.layout = "shard 2, ZeRO-1";
  }

  std::string run_text() const {
    return cli::run_metrics_text({.job = &job_, .status = &status_, .readings = &readings_}, {},
                                 kNow);
  }
  std::string agent_text(const agent::GpuWatch* gpus = nullptr) {
    agent::AgentMetrics metrics("tiny", "team", clock_, gpus);
    metrics.update({.stream_open = true, .ranks_started = true, .ranks = readings_});
    return metrics.text({});
  }

  void add_reading(int rank) {
    control::RankReading reading;
    reading.rank = rank;
    reading.generation = 1;
    reading.phase = contract::Phase::kTraining;
    reading.step = 12;
    reading.restored_step = 0;
    reading.loss = 2.5;
    reading.counters.tokens_trained = 700;
    reading.counters.step.buckets[10] = 12;
    reading.counters.step.nanoseconds = 2'400'000'000;
    reading.counters.stages[1].buckets[9] = 12;
    reading.counters.stages[1].nanoseconds = 800'000'000;
    reading.counters.collectives[1] = {24, 50'000'000, 1000, 2000};
    reading.counters.memory_bytes[0] = 4096;
    reading.checkpoints = {
        .commits = 2, .failures = 1, .bytes = 500, .commit_s = 1.5 + rank, .stall_total_s = 0.25};
    readings_.push_back(reading);
  }

  /// What promtool says of it; empty: nothing to complain of.
  std::string promtool(const std::string& text) {
    const auto file = folder_.path() / "metrics";
    const auto said = folder_.path() / "said";
    std::ofstream(file) << text;
    testing_support::ChildProcess child(
        {.argv = {"/bin/sh", "-c", "promtool check metrics < " + file.string()},
         .output = said,
         .errors = said});
    const auto end = child.wait(std::chrono::seconds(60));
    std::ifstream read(said);
    const std::string complaints(std::istreambuf_iterator<char>(read), {});
    if (!end || end->exit_code != 0 || end->signal != 0) return "promtool failed: " + complaints;
    return complaints;
  }

  api::TrainingJob job_;
  api::TrainingJobStatus status_;
  std::vector<control::RankReading> readings_;
  testing_support::ManualClock clock_;
  testing_support::TemporaryDirectory folder_;
};

TEST_F(MetricsReferenceTest, ListsWhatARunServesFromItsStart) {
  EXPECT_THAT(families_of(run_text()), ContainerEq(documented("run")));
}

TEST_F(MetricsReferenceTest, ListsWhatAnAgentServes) {
  add_reading(0);
  const auto script = folder_.path() / "gpus";
  std::ofstream(script) << "0.name GPU\n0.uuid U\n0.used 1\n0.total 2\n0.utilization 3\n"
                           "0.temperature 4\n0.power 5\n0.power_limit 6\n0.clock 7\n"
                           "0.throttle 0\n0.ecc_corrected 8\n0.ecc_uncorrected 9\nxid 0 13\n";
  ::setenv("TRAINYARD_FAKE_NVML", script.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  const auto gpus = agent::GpuWatch::start(
      std::vector{testing_support::build_path("tests/libtrainyard-fake-nvml.so")});
  ASSERT_TRUE(gpus) << gpus.error().message;
  while ((*gpus)->errors() == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::string text = agent_text(gpus->get());
  EXPECT_THAT(families_of(text), ContainerEq(documented("agent")));
  EXPECT_THAT(promtool(text), IsEmpty());
}

TEST_F(MetricsReferenceTest, SeriesNameTheNamespaceWhereThereIsOne) {
  job_.metadata.namespace_name = "team";
  add_reading(0);
  for (const std::string& text : {run_text(), agent_text()}) {
    EXPECT_THAT(text,
                HasSubstr("trainyard_step{trainer_job=\"tiny\",trainer_namespace=\"team\"} "));
  }
}

TEST_F(MetricsReferenceTest, PromtoolFindsNothingToComplainOf) {
  EXPECT_THAT(promtool(run_text()), IsEmpty());
  EXPECT_THAT(promtool(agent_text()), IsEmpty());
  add_reading(0);
  add_reading(1);
  EXPECT_THAT(promtool(run_text()), IsEmpty());
  EXPECT_THAT(promtool(agent_text()), IsEmpty());
  EXPECT_THAT(promtool("# TYPE x_total gauge\nx_total 1\n"), HasSubstr("x_total"))
      << "it does complain";
}

TEST_F(MetricsReferenceTest, EveryClassOfRestartIsThereBeforeTheFirst) {
  const std::string text = run_text();
  for (const char* name : {"Infrastructure", "Application", "Hang"}) {
    EXPECT_THAT(text, HasSubstr("trainyard_restarts_total{trainer_job=\"tiny\",class=\"" +
                                std::string(name) + "\"} 0\n"));
  }
}

TEST_F(MetricsReferenceTest, ShowsWhatStatusAndRanksSay) {
  add_reading(0);
  add_reading(1);
  status_.phase = api::JobPhase::kRunning;
  status_.checkpoint = {.last_step = 10, .last_time = kNow - std::chrono::seconds(60)};
  status_.restarts.classes.push_back({.failure_class = api::FailureClass::kHang, .total = 3});
  status_.progress.emplace().slowest_rank = 1;
  const std::string text = run_text();
  const auto has = [&](const std::string& series, const std::string& value) {
    const size_t open = series.find('{');
    const std::string name = series.substr(0, open);
    const std::string labels =
        open == std::string::npos ? "" : "," + series.substr(open + 1, series.size() - open - 2);
    EXPECT_THAT(text,
                HasSubstr("\n" + name + "{trainer_job=\"tiny\"" + labels + "} " + value + "\n"));
  };
  has("trainyard_restarts_total{class=\"Hang\"}", "3");
  has("trainyard_slowest_rank", "1");
  has("trainyard_job_phase{phase=\"Running\"}", "1");
  has("trainyard_job_phase{phase=\"Stalled\"}", "0");
  has("trainyard_loss_nats", "2.5");
  has("trainyard_step", "12");
  has("trainyard_rank_tokens_total{rank=\"1\"}", "700");
  has("trainyard_step_duration_seconds_count", "24");
  has("trainyard_step_duration_seconds_sum", "4.8");
  has("trainyard_stage_duration_seconds_bucket{stage=\"forward\",le=\"0.1\"}", "24");
  has("trainyard_rank_stage_seconds_total{rank=\"0\",stage=\"forward\"}", "0.8");
  has("trainyard_rank_collective_seconds_total{rank=\"0\",operation=\"reduce_scatter\"}", "0.05");
  has("trainyard_checkpoint_step", "10");
  has("trainyard_checkpoint_age_seconds", "60");
  has("trainyard_checkpoint_duration_seconds", "2.5");
  has("trainyard_checkpoint_size_bytes", "1000");
  has("trainyard_checkpoints_total{result=\"failed\"}", "1");
  has("trainyard_rank_checkpoint_stall_seconds_total{rank=\"1\"}", "0.25");
  has("trainyard_rank_memory_bytes{rank=\"0\",purpose=\"parameters\"}", "4096");
}

TEST_F(MetricsReferenceTest, RanksBeyondTheLimitCountOnlyInSums) {
  for (int rank = 0; rank < 300; ++rank)
    add_reading(rank);
  const std::string text = run_text();
  EXPECT_THAT(text, HasSubstr("rank=\"255\""));
  EXPECT_THAT(text, testing::Not(HasSubstr("rank=\"256\"")));
  EXPECT_THAT(text,
              HasSubstr("trainyard_step_duration_seconds_count{trainer_job=\"tiny\"} 3600\n"));
}

TEST_F(MetricsReferenceTest, CountersOfAHostileRankAreNoReasonToFail) {
  coordination::RankCounters message;
  message.set_tokens_trained(-5);
  message.mutable_step()->add_buckets(std::numeric_limits<int64_t>::min());
  message.mutable_step()->add_buckets(std::numeric_limits<int64_t>::max());
  message.mutable_step()->set_nanoseconds(std::numeric_limits<int64_t>::max());
  for (int i = 0; i < 100; ++i) {
    message.add_memory_bytes(std::numeric_limits<int64_t>::max());
    message.add_stages()->add_buckets(-1);
    message.add_collectives()->set_nanoseconds(-1);
  }
  for (int rank = 0; rank < 1024; ++rank) {
    add_reading(rank);
    readings_.back().counters = control::load(message);
  }
  EXPECT_THAT(promtool(run_text()), IsEmpty());
  EXPECT_THAT(run_text(),
              HasSubstr("trainyard_rank_tokens_total{trainer_job=\"tiny\",rank=\"0\"} 0\n"));
}

TEST_F(MetricsReferenceTest, AnAgentShowsItsLongestTurn) {
  agent::AgentMetrics metrics("tiny", "", clock_);
  for (const int milliseconds : {3, 250, 10})
    metrics.note_turn(std::chrono::milliseconds(milliseconds));
  EXPECT_THAT(metrics.text({}),
              HasSubstr("trainyard_agent_longest_turn_seconds{trainer_job=\"tiny\"} 0.25\n"));
}

TEST_F(MetricsReferenceTest, AnAgentIsReadyWhenItsRanksRun) {
  agent::AgentMetrics metrics("tiny", "", clock_);
  EXPECT_FALSE(metrics.ready().ok);
  metrics.update({.stream_open = true});
  EXPECT_FALSE(metrics.ready().ok);
  metrics.update({.stream_open = true, .ranks_started = true});
  EXPECT_TRUE(metrics.ready().ok);
  metrics.update({.stream_open = true, .ranks_started = true, .ending = true});
  EXPECT_FALSE(metrics.ready().ok);
}

TEST_F(MetricsReferenceTest, ARunIsReadyWhenItTrains) {
  const auto ready = [&] {
    return cli::run_readiness({.job = &job_, .status = &status_, .readings = &readings_});
  };
  status_.phase = api::JobPhase::kRestarting;
  EXPECT_FALSE(ready().ok);
  EXPECT_EQ(ready().text, "phase Restarting");
  status_.phase = api::JobPhase::kRunning;
  EXPECT_TRUE(ready().ok);
}

}  // namespace
}  // namespace trainyard
