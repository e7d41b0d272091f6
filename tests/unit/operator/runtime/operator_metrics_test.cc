#include "operator/runtime/operator_metrics.h"

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/queue/work_queue.h"

namespace trainyard::operator_runtime {
namespace {

using control::ReconcileReport;
using testing::HasSubstr;

class OperatorMetricsTest : public testing::Test {
 protected:
  std::string text(bool leader = false) {
    const OperatorFacts facts{queue_.stats(), {3, 24, 5, 1, 2},     8,
                              leader,         "trainyard-operator", {7, 9, 2}};
    return OperatorMetrics(counters_).text(facts, {});
  }

  SystemClock clock_;
  control::WorkQueue queue_{clock_};
  OperatorCounters counters_{"10.0.0.1:443"};
};

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
        "trainyard_control_stream_reviews_total{result=\"refused\"} 2"}) {
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
  std::ifstream file(std::string(TRAINYARD_SOURCE_DIR) + "/docs/reference/metrics.md");
  for (std::string line; std::getline(file, line);) {
    std::vector<std::string> cells;
    for (size_t at = 0; (at = line.find("| ", at)) != std::string::npos; at += 2)
      cells.push_back(line.substr(at + 2, line.find(" |", at + 1) - at - 2));
    if (cells.size() != 5 || cells[3] != "operator") continue;
    families.insert(cells[0].substr(1, cells[0].size() - 2) + " " + cells[1] + " " + cells[4]);
  }
  return families;
}

TEST_F(OperatorMetricsTest, TheReferenceListsEverySeriesAndNoOther) {
  EXPECT_GT(documented().size(), 10u);
  EXPECT_EQ(shown(text()), documented());
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
