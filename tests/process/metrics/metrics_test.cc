// A real Prometheus scrapes a real `trainyard run` and its agent, whose ranks train nothing
// (tests/support/fake_rank.cc); what it has collected is compared with what the run says of itself.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/http_client.h"
#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing_support::ChildProcess;
using testing_support::connect_to;
using testing_support::content_of;
using testing_support::http_get;
using testing_support::HttpAnswer;
using testing_support::RunFixture;

std::string first_line(const std::filesystem::path& path) {
  const std::string text = content_of(path);
  const size_t end = text.find('\n');
  return end == std::string::npos ? "" : text.substr(0, end);
}

std::string percent_encoded(const std::string& text) {
  static const char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char byte : text) {
    const auto value = static_cast<unsigned char>(byte);
    encoded += '%';
    encoded += kDigits[value / 16];
    encoded += kDigits[value % 16];
  }
  return encoded;
}

class MetricsTest : public RunFixture {
 protected:
  std::unique_ptr<ChildProcess> start_run(Environment environment,
                                          const std::string& address = "127.0.0.1:0") {
    return start(std::move(environment), {"--metrics-address", address});
  }

  /// Where the run serves, once it does.
  std::string run_address() const { return first_line(run_dir() / "metrics-address"); }
  /// Where the agent of the newest pod serves.
  std::string agent_address() const {
    std::string newest;
    std::error_code none;
    for (const auto& pod : std::filesystem::directory_iterator(run_dir() / "pods", none)) {
      const bool ended = std::filesystem::exists(pod.path() / "exit.json");
      const std::string address = first_line(pod.path() / "metrics-address");
      if (!ended && !address.empty()) newest = address;
    }
    return newest;
  }

  /// The value of the first sample with that name and labels in an exposition.
  static std::optional<double> sample(const std::string& text, const std::string& series) {
    const size_t at = text.find("\n" + series + " ");
    if (at == std::string::npos) return std::nullopt;
    return std::stod(text.substr(at + series.size() + 2));
  }
};

/// A Prometheus with its data in a folder, on a port of its own choice.
class Prometheus {
 public:
  Prometheus(const std::filesystem::path& folder, const std::vector<std::string>& targets)
      : log_(folder / "prometheus.log") {
    json scrapes = json::array();
    for (const std::string& target : targets)
      scrapes.push_back(
          {{"job_name", "to-" + target}, {"static_configs", {{{"targets", {target}}}}}});
    // JSON is YAML.
    std::ofstream(folder / "prometheus.yml") << json{
        {"global", {{"scrape_interval", "1s"}, {"scrape_timeout", "1s"}}},
        {"scrape_configs", scrapes}}.dump();
    process_ = std::make_unique<ChildProcess>(ChildProcess::Spec{
        .argv = {"/usr/bin/prometheus", "--config.file=" + (folder / "prometheus.yml").string(),
                 "--storage.tsdb.path=" + (folder / "tsdb").string(),
                 "--web.listen-address=127.0.0.1:0"},
        .output = log_,
        .errors = log_});
  }

  std::string log() const { return content_of(log_); }

  /// Where its API is; empty before it listens.
  std::string address() const {
    const std::string text = content_of(log_);
    const std::string mark = "msg=\"Listening on\" address=";
    const size_t at = text.find(mark);
    if (at == std::string::npos) return "";
    const size_t begin = at + mark.size();
    return text.substr(begin, text.find_first_of(" \n", begin) - begin);
  }

  /// The one value that a query comes to; nullopt when it comes to none or several.
  std::optional<double> query(const std::string& text) const {
    const std::string where = address();
    if (where.empty()) return std::nullopt;
    const HttpAnswer answer = http_get(where, "/api/v1/query?query=" + percent_encoded(text));
    // The API answers in chunks only where it is long.
    const json body = json::parse(answer.body, nullptr, false);
    if (body.is_discarded() || body.value("status", "") != "success") return std::nullopt;
    const json& result = body["data"]["result"];
    if (result.size() != 1) return std::nullopt;
    return std::stod(result[0]["value"][1].get<std::string>());
  }

 private:
  std::filesystem::path log_;
  std::unique_ptr<ChildProcess> process_;
};

TEST_F(MetricsTest, APrometheusSeesWhatTheRunSays) {
  const auto run = start_run({{"FAKE_RANK_STEPS", "100000"},
                              {"FAKE_RANK_STEP_MS", "20"},
                              {"FAKE_RANK_FAULT", "1:40:kill"},
                              {"TRAINYARD_METRICS_ADDRESS", "127.0.0.1:0"}});
  // After the restart: the agent of the first generation is gone.
  ASSERT_TRUE(wait_until([&] {
    return status().value("/restarts/total"_json_pointer, 0) == 1 && !agent_address().empty() &&
           http_get(run_address(), "/readyz").status == 200;
  })) << content_of(folder() / "out")
      << errors();
  const Prometheus prometheus(folder(), {run_address(), agent_address()});
  ASSERT_TRUE(wait_until([&] { return prometheus.query("sum(up)") == 2; })) << prometheus.log();

  const std::string by_run = "{job=\"to-" + run_address() + "\"}";
  const std::string by_agent = "{job=\"to-" + agent_address() + "\"}";
  const int64_t step_before = step_shown();
  std::optional<double> step;
  ASSERT_TRUE(wait_until([&] {
    step = prometheus.query("trainyard_step" + by_run);
    return step && *step > static_cast<double>(step_before) + 10;
  })) << prometheus.log();
  // The agent is scraped at other moments than the run.
  std::optional<double> of_agent;
  ASSERT_TRUE(wait_until([&] {
    of_agent =
        prometheus.query("trainyard_rank_step{rank=\"1\",job=\"to-" + agent_address() + "\"}");
    return of_agent && *of_agent > static_cast<double>(step_before);
  })) << prometheus.log();
  ASSERT_TRUE(wait_until([&] { return static_cast<double>(step_shown()) >= *step; }))
      << "Prometheus has seen a step that the run has not";

  // A scrape that takes longer than its second leaves a gap until the next one.
  const auto becomes = [&](const std::string& query, const std::function<bool(double)>& right) {
    if (HasFailure()) return;
    std::optional<double> found;
    EXPECT_TRUE(wait_until([&] {
      found = prometheus.query(query);
      return found && right(*found);
    })) << query
        << ": " << found.value_or(-1) << "\n"
        << prometheus.log();
  };
  const auto is = [](double wanted) { return [=](double found) { return found == wanted; }; };
  becomes("sum(trainyard_restarts_total" + by_run + ")", is(1));
  EXPECT_EQ(status()["restarts"].value("total", -1), 1);
  becomes("trainyard_job_generation" + by_run, is(2));
  becomes("sum(trainyard_job_phase" + by_run + ")", is(1));
  becomes("count(trainyard_rank_step" + by_run + ")", is(2));
  becomes("trainyard_agent_running_ranks" + by_agent, is(2));
  becomes("count(count by (trainer_job) (trainyard_step))", is(1));
  // Each step of a fake rank is a quarter forward, 100 tokens, one all_reduce.
  becomes("trainyard_rank_tokens_total{rank=\"0\",job=\"to-" + run_address() +
              "\"} / ignoring(rank) trainyard_rank_steps_total{rank=\"0\",job=\"to-" +
              run_address() + "\"}",
          is(100));
  becomes(
      "sum(trainyard_rank_stage_seconds_total{stage=\"forward\",job="
      "\"to-" +
          run_address() + "\"}) / sum(trainyard_rank_stage_seconds_total" + by_run + ")",
      [](double share) { return std::abs(share - 0.25) <= 1e-9; });
  becomes(
      "histogram_quantile(0.5, sum by (le) (trainyard_step_duration_seconds_bucket" + by_run + "))",
      [](double p50) { return 0.01 <= p50 && p50 <= 0.02; });

  run->signal(SIGINT);
  expect_end(*run, 75);
  EXPECT_FALSE(std::filesystem::exists(run_dir() / "metrics-address"));
  EXPECT_TRUE(wait_until([&] { return prometheus.query("sum(up)") == 0; })) << prometheus.log();
  expect_nothing_left();
}

TEST_F(MetricsTest, HostileClientsDisturbNeitherScrapesNorTraining) {
  const auto run = start_run({{"FAKE_RANK_STEPS", "100000"}, {"FAKE_RANK_STEP_MS", "10"}});
  ASSERT_TRUE(wait_until([&] {
    return !run_address().empty() && http_get(run_address(), "/readyz").status == 200;
  })) << errors();
  const int64_t before = step_shown();
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 300; ++i) {
    idle.push_back(connect_to(run_address()));
    testing_support::send_text(idle.back().get(), i % 2 == 0 ? "GET /me" : std::string(9000, 'x'));
  }
  for (int i = 0; i < 5; ++i) {
    const HttpAnswer answer = http_get(run_address(), "/metrics");
    EXPECT_EQ(answer.status, 200);
    EXPECT_THAT(answer.body, HasSubstr("trainyard_step{trainer_job=\"tiny\"} "));
  }
  const std::string text = http_get(run_address(), "/metrics").body;
  EXPECT_GT(sample(text,
                   "trainyard_http_closed_connections_total{trainer_job=\"tiny\","
                   "reason=\"evicted\"}")
                .value_or(0),
            50)
      << "half of them were answered, 64 may stay";
  EXPECT_TRUE(wait_until([&] { return step_shown() > before + 20; }));
  EXPECT_EQ(status()["restarts"].value("total", 0), 0);
  run->signal(SIGINT);
  expect_end(*run, 75);
}

TEST_F(MetricsTest, AnAddressThatCannotBeHadLeavesNothingBehind) {
  for (const std::string address : {"nonsense", "203.0.113.1:0"}) {
    const auto run = start_run({}, address);
    expect_end(*run, 64);
    EXPECT_THAT(errors(), HasSubstr("--metrics-address"));
    EXPECT_THAT(errors(), HasSubstr(address));
    EXPECT_FALSE(std::filesystem::exists(run_dir()));
  }
}

TEST_F(MetricsTest, AGpuThatFailsIsNamedAndIsNoFaultOfTheProgram) {
  const auto libraries = folder() / "lib";
  std::filesystem::create_directory(libraries);
  std::filesystem::create_symlink(testing_support::build_path("tests/libtrainyard-fake-nvml.so"),
                                  libraries / "libnvidia-ml.so.1");
  write("gpus", "0.name NVIDIA H200\n0.uuid GPU-a\n0.total 2000\n0.used 1000\n");
  const auto run = start({{"FAKE_RANK_STEPS", "100000"},
                          {"FAKE_RANK_STEP_MS", "10"},
                          {"LD_LIBRARY_PATH", libraries},
                          {"TRAINYARD_FAKE_NVML", folder() / "gpus"},
                          {"TRAINYARD_METRICS_ADDRESS", "127.0.0.1:0"}});
  ASSERT_TRUE(wait_until([&] { return step_shown() > 5 && !agent_address().empty(); })) << errors();
  EXPECT_THAT(http_get(agent_address(), "/metrics").body,
              HasSubstr("trainyard_gpu_memory_used_bytes{trainer_job=\"tiny\",gpu=\"0\"} 1000\n"));
  std::ofstream(folder() / "gpus", std::ios::app) << "xid 0 79\n";
  const std::string counted = "xid_errors_total{trainer_job=\"tiny\",gpu=\"0\",xid=\"79\"} 1\n";
  const auto is_counted = [&] {
    const std::string address = agent_address();
    return !address.empty() &&
           http_get(address, "/metrics").body.find(counted) != std::string::npos;
  };
  ASSERT_TRUE(wait_until(is_counted));
  write("gpus", "0.name NVIDIA H200\n0.uuid GPU-a\n");
  const std::vector<pid_t> ranks = running("trainyard-fake-rank");
  ASSERT_FALSE(ranks.empty());
  ::kill(ranks[0], SIGSEGV);
  ASSERT_TRUE(wait_until([&] { return status().value("/restarts/total"_json_pointer, 0) == 1; }));
  const json attempt = status()["attempts"][0];
  run->signal(SIGINT);
  expect_end(*run, 75);
  EXPECT_EQ(attempt.value("class", ""), "Infrastructure") << attempt.dump();
  EXPECT_THAT(
      attempt.value("message", ""),
      HasSubstr("GPU 0 (NVIDIA H200, GPU-a) reported Xid 79: the GPU has fallen off the bus"))
      << attempt.dump();
}

TEST_F(MetricsTest, AnAgentThatCannotListenTrainsAllTheSame) {
  const auto run = start_run({{"FAKE_RANK_STEPS", "20"},
                              {"FAKE_RANK_STEP_MS", "5"},
                              {"TRAINYARD_METRICS_ADDRESS", "203.0.113.1:9100"}});
  expect_end(*run, 0);
  std::string logs;
  for (const auto& pod : std::filesystem::directory_iterator(run_dir() / "pods"))
    logs += content_of(pod.path() / "log");
  EXPECT_THAT(logs, HasSubstr("no metrics are served"));
}

TEST_F(MetricsTest, TopShowsARunningAndAFinishedRun) {
  const auto run = start_run({{"FAKE_RANK_STEPS", "100000"}, {"FAKE_RANK_STEP_MS", "10"}});
  ASSERT_TRUE(wait_until([&] { return step_shown() > 5; })) << errors();
  const auto top = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"top", run_dir().string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(trainyard(arguments, "top.").exit_code, 0) << content_of(folder() / "top.err");
    return content_of(folder() / "top.out");
  };
  const std::string shown = top({"--once"});
  EXPECT_THAT(shown, HasSubstr("tiny  training"));
  EXPECT_THAT(shown, HasSubstr("   1 "));
  EXPECT_THAT(shown, HasSubstr(" 25%  75% "));
  EXPECT_THAT(shown, testing::Not(HasSubstr("\x1b")));
  const json object = json::parse(top({"--once", "-o", "json"}));
  EXPECT_EQ(object["live"], true);
  EXPECT_EQ(object["rates"].size(), 2u);
  run->signal(SIGINT);
  expect_end(*run, 75);
  EXPECT_THAT(top({}), HasSubstr("tiny  stopped")) << "it ends by itself";
  EXPECT_EQ(status()["restarts"].value("total", 0), 0);
}

TEST_F(MetricsTest, TopOnATerminalEndsWithQAndLeavesTheScreen) {
  std::filesystem::create_directory(run_dir());
  // A run that has been silent for long, and whose process is there.
  std::ofstream(run_dir() / "live.json")
      << R"({"time":"2026-01-02T03:04:05Z","pid":1,"job":"tiny","activity":"training","ranks":[]})";
  const std::string top = testing_support::program_path("trainyard") + " top " + run_dir().string();
  // script(1) makes the terminal, and types what comes from its standard input.
  ChildProcess child(
      {.argv = {"/bin/sh", "-c", "printf q | TERM=xterm script -qec '" + top + "' /dev/null"},
       .output = folder() / "screen",
       .errors = folder() / "screen.err"});
  const auto end = child.wait(kDeadline);
  ASSERT_TRUE(end) << "q did not end it";
  EXPECT_EQ(end->exit_code, 0);
  const std::string screen = content_of(folder() / "screen");
  const size_t entered = screen.find("\x1b[?1049h");
  const size_t left = screen.find("\x1b[?1049l");
  ASSERT_NE(entered, std::string::npos) << screen;
  ASSERT_NE(left, std::string::npos) << screen;
  EXPECT_LT(entered, left);
  EXPECT_LT(screen.find("\x1b[?25l"), screen.rfind("\x1b[?25h")) << "the cursor is back";
  EXPECT_NE(screen.find("tiny  training", left), std::string::npos) << "the last state stays";
}

}  // namespace
}  // namespace trainyard
