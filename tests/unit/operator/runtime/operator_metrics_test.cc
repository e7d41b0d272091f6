#include "operator/runtime/operator_metrics.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/queue/work_queue.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::operator_runtime {
namespace {

using control::ReconcileReport;
using testing::HasSubstr;

class OperatorMetricsTest : public testing::Test {
 protected:
  std::string text(bool leader = false) {
    const OperatorFacts facts{queue_.stats(),
                              {3, 24, 5, 1, 2},
                              8,
                              leader,
                              "trainyard-operator",
                              {7, 9, 2},
                              {{12, 3, 7, 4096}, 20, 8, 0},
                              jobs_,
                              now_,
                              memory_};
    return OperatorMetrics(counters_).text(facts, {});
  }

  /// A job that the cache holds from now on.
  api::TrainingJob& add_job(const std::string& ns, const std::string& name, api::JobPhase phase) {
    auto job = std::make_shared<api::TrainingJob>();
    job->metadata.namespace_name = ns;
    job->metadata.name = name;
    job->status.phase = phase;
    jobs_.push_back(job);
    return *job;
  }

  std::vector<std::shared_ptr<const api::TrainingJob>> jobs_;
  Time now_;
  GroupLimits memory_;
  SystemClock clock_;
  control::WorkQueue queue_{clock_};
  OperatorCounters counters_{"10.0.0.1:443"};
};

TEST_F(OperatorMetricsTest, MemoryIsToldWhereItIsLimited) {
  EXPECT_THAT(text(), testing::Not(HasSubstr("trainyard_operator_memory_bytes{")));
  memory_ = {.cpus = std::nullopt, .memory_bytes = 1000, .memory_room_bytes = 300};
  EXPECT_THAT(text(), HasSubstr("trainyard_operator_memory_bytes{kind=\"limit\"} 1000"));
  EXPECT_THAT(text(), HasSubstr("trainyard_operator_memory_bytes{kind=\"used\"} 700"));
}

TEST_F(OperatorMetricsTest, TheSeriesThatDashboardsKnowAreThereFromTheStart) {
  const std::string page = text();
  for (const char* line :
       {"controller_runtime_reconcile_total{controller=\"trainingjob\",result=\"success\"} 0",
        "controller_runtime_reconcile_total{controller=\"trainingjob\",result=\"error\"} 0",
        "controller_runtime_reconcile_total{controller=\"trainingjob\",result=\"requeue_after\"} 0",
        "controller_runtime_reconcile_errors_total{controller=\"trainingjob\"} 0",
        "controller_runtime_reconcile_time_seconds_count{controller=\"trainingjob\"} 0",
        "controller_runtime_active_workers{controller=\"trainingjob\"} 0",
        "controller_runtime_max_concurrent_reconciles{controller=\"trainingjob\"} 8",
        "workqueue_depth{controller=\"trainingjob\",name=\"trainingjob\"} 0",
        "workqueue_adds_total{controller=\"trainingjob\",name=\"trainingjob\"} 0",
        "workqueue_retries_total{controller=\"trainingjob\",name=\"trainingjob\"} 0",
        "workqueue_queue_duration_seconds_count{controller=\"trainingjob\",name=\"trainingjob\"} 0",
        "workqueue_work_duration_seconds_count{controller=\"trainingjob\",name=\"trainingjob\"} 0",
        "workqueue_unfinished_work_seconds{controller=\"trainingjob\",name=\"trainingjob\"} 0",
        "workqueue_longest_running_processor_seconds{controller=\"trainingjob\","
        "name=\"trainingjob\"} 0",
        "leader_election_master_status{name=\"trainyard-operator\"} 0",
        "# TYPE rest_client_requests_total counter",
        "trainyard_cache_objects{kind=\"Pod\"} 24",
        "trainyard_control_streams 7",
        "trainyard_control_stream_reviews_total{result=\"admitted\"} 9",
        "trainyard_control_stream_reviews_total{result=\"refused\"} 2",
        "trainyard_control_connections{state=\"admitted\"} 7",
        "trainyard_control_connections{state=\"read\"} 2",
        "trainyard_control_connections{state=\"waiting\"} 3",
        "trainyard_control_unadmitted_bytes 4096",
        "trainyard_control_connections_accepted_total 20",
        "trainyard_control_connections_cut_total 8"}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
  EXPECT_THAT(text(true),
              HasSubstr("leader_election_master_status{name=\"trainyard-operator\"} 1"));
}

/// "name type help" of every family of the operator's own on the page.
std::set<std::string> shown(const std::string& page) {
  std::map<std::string, std::string> helps;
  std::set<std::string> families;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, kind, name;
    words >> hash >> kind >> name;
    if (hash != "#" || name.starts_with("trainyard_http_")) continue;
    const std::string rest = line.substr(line.find(name) + name.size() + 1);
    if (kind == "HELP") helps[name] = rest;
    if (kind == "TYPE") families.insert(name + " " + rest + " " + helps[name]);
  }
  return families;
}

/// The same of docs/reference/metrics.md: | `name` | type | labels | served by | meaning |
std::set<std::string> documented() {
  std::set<std::string> families;
  std::ifstream file(testing_support::source_path("docs/reference/metrics.md"));
  for (std::string line; std::getline(file, line);) {
    std::vector<std::string> cells;
    for (size_t at = 0; (at = line.find("| ", at)) != std::string::npos; at += 2)
      cells.push_back(line.substr(at + 2, line.find(" |", at + 1) - at - 2));
    if (cells.size() != 5 || cells[3].find("operator") == std::string::npos) continue;
    families.insert(cells[0].substr(1, cells[0].size() - 2) + " " + cells[1] + " " + cells[4]);
  }
  return families;
}

TEST_F(OperatorMetricsTest, TheReferenceListsEverySeriesAndNoOther) {
  EXPECT_GT(documented().size(), 10u);
  EXPECT_EQ(shown(text()), documented());
}

TEST_F(OperatorMetricsTest, TellsOfEachJobWhatItsStatusSays) {
  api::TrainingJob& job = add_job("team", "big", api::JobPhase::kStalled);
  job.spec.num_nodes = 4;
  job.spec.num_proc_per_node = 8;
  job.status.nodes = {.target = 4, .active = 3, .ready = 2};
  job.status.membership.generation = 5;
  job.status.membership.layout = "dp 4 x shard 8, ZeRO-2";
  job.status.conditions.push_back(
      {.type = api::ConditionType::kCheckpointStale, .status = api::ConditionStatus::kTrue});
  job.status.conditions.push_back(
      {.type = api::ConditionType::kRunning, .status = api::ConditionStatus::kFalse});
  job.status.restarts.classes.push_back({.failure_class = api::FailureClass::kHang, .total = 3});
  job.status.goodput.emplace();
  job.status.goodput->wall = std::chrono::milliseconds(2000);
  job.status.goodput->badput.stall = std::chrono::milliseconds(500);
  job.status.goodput->lost_steps = 17;
  job.status.progress.emplace().slowest_rank = 31;
  add_job("other", "big", api::JobPhase::kComplete);
  const std::string page = text(true);
  const std::string who = "{trainer_job=\"big\",trainer_namespace=\"team\"";
  for (const std::string& line : {
           "trainyard_job_phase" + who + ",phase=\"Stalled\"} 1",
           "trainyard_job_phase" + who + ",phase=\"Running\"} 0",
           "trainyard_job_condition" + who + ",condition=\"CheckpointStale\"} 1",
           "trainyard_job_condition" + who + ",condition=\"Running\"} 0",
           "trainyard_job_generation" + who + "} 5",
           "trainyard_job_layout_info" + who + ",layout=\"dp 4 x shard 8, ZeRO-2\"} 1",
           "trainyard_job_expected_ranks" + who + "} 32",
           "trainyard_job_nodes" + who + ",state=\"target\"} 4",
           "trainyard_job_nodes" + who + ",state=\"ready\"} 2",
           "trainyard_restarts_total" + who + ",class=\"Hang\"} 3",
           "trainyard_restarts_total" + who + ",class=\"Application\"} 0",
           "trainyard_lost_steps_total" + who + "} 17",
           "trainyard_wall_seconds_total" + who + "} 2",
           "trainyard_goodput_seconds_total" + who + ",category=\"stall\"} 0.5",
           "trainyard_slowest_rank" + who + "} 31",
           std::string("trainyard_jobs{trainer_namespace=\"team\",phase=\"Stalled\"} 1"),
           std::string("trainyard_jobs{trainer_namespace=\"other\",phase=\"Complete\"} 1"),
           std::string("trainyard_jobs{trainer_namespace=\"other\",phase=\"Failed\"} 0"),
       }) {
    EXPECT_THAT(page, HasSubstr("\n" + line + "\n"));
  }
  EXPECT_THAT(page, HasSubstr("\ntrainyard_control_streams 7\n")) << "about no job";
  EXPECT_THAT(page, HasSubstr("\ntrainyard_http_responses_total{code=\"200\"} 0\n"));
}

TEST_F(OperatorMetricsTest, TheLedgerOfAProgramOfOnesOwnGoesOnBetweenWrites) {
  api::TrainingJob& job = add_job("team", "torch", api::JobPhase::kRunning);
  for (const auto type : {api::ConditionType::kScheduled, api::ConditionType::kRunning})
    job.status.conditions.push_back({.type = type, .status = api::ConditionStatus::kTrue});
  job.status.goodput.emplace();
  job.status.goodput->counted.time = Time(std::chrono::seconds(1000));
  job.status.goodput->wall = std::chrono::seconds(20);
  job.status.goodput->badput.startup = std::chrono::seconds(20);
  now_ = Time(std::chrono::seconds(1120));  // what is a minute old is certain
  const std::string who = "{trainer_job=\"torch\",trainer_namespace=\"team\"";
  const std::string productive =
      "\ntrainyard_goodput_seconds_total" + who + ",category=\"productive\"} ";
  EXPECT_THAT(text(true), HasSubstr(productive + "60\n"));
  EXPECT_THAT(text(true), HasSubstr("\ntrainyard_wall_seconds_total" + who + "} 80\n"));
  EXPECT_THAT(text(true), HasSubstr("\ntrainyard_goodput_ratio" + who + "} 0.75\n"));
  job.status.nodes.failed = 1;
  EXPECT_THAT(text(true), HasSubstr(productive + "60\n")) << "it is kept for its log";
  job.status.conditions[1].status = api::ConditionStatus::kFalse;
  EXPECT_THAT(text(true), HasSubstr(productive + "0\n")) << "a member has failed";
  job.status.conditions[1].status = api::ConditionStatus::kTrue;
  job.status.nodes.failed = 0;
  job.status.nodes.succeeded = 1;
  EXPECT_THAT(text(true), HasSubstr(productive + "0\n")) << "its last minutes may not have been";
  job.status.nodes.succeeded = 0;
  job.status.phase = api::JobPhase::kComplete;
  EXPECT_THAT(text(true), HasSubstr(productive + "0\n")) << "what is over is counted";
  job.status.phase = api::JobPhase::kRunning;
  job.spec.engine.emplace();
  EXPECT_THAT(text(true), HasSubstr(productive + "0\n")) << "its ranks tell how far they are";
}

TEST_F(OperatorMetricsTest, PromtoolFindsNothingToComplainOf) {
  const testing_support::TemporaryDirectory folder;
  const auto promtool = [&](const std::string& page) {
    const std::string file = folder.path() / "page";
    std::ofstream(file) << page;
    const int code =
        std::system(("promtool check metrics <" + file + " >" + file + ".said 2>&1").c_str());
    std::ifstream said(file + ".said");
    return std::to_string(code) + std::string(std::istreambuf_iterator<char>(said), {});
  };
  add_job("team", "big", api::JobPhase::kRunning);
  counters_.note(kube::CallReport{kube::Method::kGet, 0, {}});
  EXPECT_EQ(promtool(text(true)), "0");
  EXPECT_NE(promtool("# TYPE x_total gauge\nx_total 1\n"), "0") << "it does complain";
}

TEST_F(OperatorMetricsTest, OfTooManyJobsThoseThatAreNotOverHaveSeries) {
  for (size_t i = 0; i < kMaxJobSeries; ++i)
    add_job("team", "over-" + std::to_string(i), api::JobPhase::kComplete);
  add_job("team", "alive", api::JobPhase::kRunning);
  const std::string page = text(true);
  EXPECT_THAT(page, HasSubstr("trainer_job=\"alive\""));
  EXPECT_THAT(page, HasSubstr("trainer_job=\"over-998\""));
  EXPECT_THAT(page, testing::Not(HasSubstr("trainer_job=\"over-999\"")));
  EXPECT_THAT(page,
              HasSubstr("trainyard_jobs{trainer_namespace=\"team\",phase=\"Complete\"} 1000"));
}

TEST_F(OperatorMetricsTest, WhatIsInAStatusCannotEndTheOperator) {
  api::TrainingJob& job = add_job("team", "odd", api::JobPhase::kRunning);
  job.status.restarts.classes.push_back({.failure_class = api::FailureClass::kHang, .total = -3});
  job.status.goodput.emplace();
  job.status.goodput->wall = std::chrono::milliseconds(-2000);
  job.status.goodput->lost_steps = -1;
  EXPECT_THAT(text(true), HasSubstr("class=\"Hang\"} 0\n"));
}

TEST_F(OperatorMetricsTest, CountsReconcilesAndRequests) {
  ReconcileReport report;
  report.took = std::chrono::milliseconds(30);
  counters_.note(report);
  report.result = ReconcileReport::Result::kError;
  counters_.note(report);
  counters_.note(kube::CallReport{kube::Method::kPost, 201, {}});
  counters_.note(kube::CallReport{kube::Method::kPost, 201, {}});
  counters_.note(kube::CallReport{kube::Method::kGet, 0, {}});
  const std::string page = text();
  EXPECT_THAT(page, HasSubstr("result=\"success\"} 1"));
  EXPECT_THAT(page, HasSubstr("controller_runtime_reconcile_errors_total"
                              "{controller=\"trainingjob\"} 1"));
  EXPECT_THAT(page, HasSubstr("controller_runtime_reconcile_time_seconds_bucket"
                              "{controller=\"trainingjob\",le=\"0.05\"} 2"));
  EXPECT_THAT(page, HasSubstr("rest_client_requests_total"
                              "{code=\"201\",host=\"10.0.0.1:443\",method=\"POST\"} 2"));
  EXPECT_THAT(page, HasSubstr("code=\"<error>\""));
}

}  // namespace
}  // namespace trainyard::operator_runtime
