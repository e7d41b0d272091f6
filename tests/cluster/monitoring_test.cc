// A Prometheus in the cluster finds the operator and the pods of a job, and has what every panel of
// the dashboards and every rule of the chart asks for.
#include <chrono>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/saving_job_test.h"

namespace trainyard::cluster {
namespace {

using testing::IsEmpty;
using testing_support::ChildProcess;
using testing_support::CommandResult;
using testing_support::http_get;

constexpr char kPrometheus[] =
    "/api/v1/namespaces/trainyard-monitoring/services/prometheus:9090/proxy";

std::string words_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string percent_encoded(const std::string& text) {
  static const char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char byte : text) {
    const auto value = static_cast<unsigned char>(byte);
    encoded += {'%', kDigits[value / 16], kDigits[value % 16]};
  }
  return encoded;
}

class MonitoringTest : public testing_support::SavingJobTest {
 protected:
  void SetUp() override {
    const testing_support::TemporaryDirectory scratch;
    const CommandResult lacking =
        testing_support::run_command({.argv = {kSource + "/tests/cluster/prometheus", "lacking"},
                                      .output = scratch.path() / "out",
                                      .errors = scratch.path() / "err"},
                                     kActs);
    if (!lacking.output.empty()) GTEST_SKIP() << lacking.output;
    SavingJobTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    prometheus("up");
    // Through the API server, as nothing of the pods' network reaches this machine.
    proxy_ = std::make_unique<ChildProcess>(
        ChildProcess::Spec{.argv = {plane().folder() / "kubectl", "--kubeconfig",
                                    plane().kubeconfig(), "proxy", "--port=0", "--accept-hosts=.*"},
                           .output = folder() / "proxy",
                           .errors = folder() / "proxy.err"});
    ASSERT_TRUE(wait_until([&] { return words_of(folder() / "proxy").ends_with('\n'); }))
        << words_of(folder() / "proxy.err");
    const std::string said = words_of(folder() / "proxy");
    address_ = said.substr(said.rfind(' ') + 1);
    address_.pop_back();
  }

  void TearDown() override {
    if (IsSkipped()) return;
    proxy_.reset();
    prometheus("down");
    SavingJobTest::TearDown();
  }

  /// tests/cluster/prometheus, which must succeed.
  void prometheus(const std::string& action) const {
    const CommandResult done =
        run({kSource + "/tests/cluster/prometheus", action, plane().folder()});
    ASSERT_EQ(done.exit_code, 0) << done.output << done.errors;
  }

  /// Two pods with two ranks each, which evaluate as well.
  Json evaluating_job() const {
    Json job = saving_job(2, 2);
    Json& engine = job["spec"]["engine"];
    engine["data"]["validation"] = engine["data"]["tokens"];
    engine["evaluation"] = {{"everySteps", 40}, {"sequences", 12}};
    return job;
  }

  /// Step of the newest checkpoint, as status has it; -1 while there is none.
  int64_t saved() const {
    return job_status(kJob).value("checkpoint", Json::object()).value("lastStep", int64_t{-1});
  }

  CommandResult run(const std::vector<std::string>& argv) const {
    return testing_support::run_command(
        {.argv = argv, .output = folder() / "run.out", .errors = folder() / "run.err"}, kActs);
  }

  /// What a path of the API server answers.
  std::string page(const std::string& path) const {
    const auto answer = http_get(address_, path);
    EXPECT_EQ(answer.status, 200) << path << "\n" << answer.body;
    return answer.body;
  }

  /// The one value that a query comes to; nullopt when it comes to none or several.
  std::optional<double> value(const std::string& query) const {
    const auto answer = http_get(
        address_, std::string(kPrometheus) + "/api/v1/query?query=" + percent_encoded(query));
    const Json body = Json::parse(answer.body, nullptr, false);
    if (body.is_discarded() || body.value("status", "") != "success") return std::nullopt;
    const Json& result = body["data"]["result"];
    if (result.size() != 1) return std::nullopt;
    return std::stod(result[0]["value"][1].get<std::string>());
  }
  ::testing::AssertionResult becomes(const std::string& query, double wanted) const {
    if (wait_until([&] { return value(query) == wanted; })) return ::testing::AssertionSuccess();
    const auto found = value(query);
    return ::testing::AssertionFailure()
           << query << " is " << (found ? std::to_string(*found) : "nothing") << ", wanted "
           << wanted << "\n"
           << page(std::string(kPrometheus) + "/api/v1/targets");
  }

  /// "name{labels}" of this test's job, with `more` labels.
  std::string of_job(const std::string& name, const std::string& more = "") const {
    return name + "{trainer_namespace=\"" + name_space() + "\",trainer_job=\"" + kJob + "\"" +
           (more.empty() ? "" : "," + more) + "}";
  }

  /// Draws a dashboard from what the Prometheus has; every query must have data.
  void expect_drawn(const std::string& dashboard, std::chrono::seconds since) const {
    const CommandResult drawn = run(
        {kSource + "/tools/dashboards/render", "http://" + address_ + kPrometheus,
         testing_support::build_path("dashboards/" + dashboard) + ".html", "--dashboard", dashboard,
         "--variable", "namespace=" + name_space(), "--variable", std::string("job=") + kJob,
         "--since", std::to_string(since.count()), "--scrape-interval", "2", "--need-data",
         "--may-lack", "trainyard_gpu_", "--may-lack", "trainyard_model_flops_"});
    EXPECT_EQ(drawn.exit_code, 0) << drawn.output << drawn.errors;
  }

  /// promtool's opinion of what a pod serves.
  void expect_clean(const std::string& ns, const std::string& pod, int port) const {
    const std::string text = page("/api/v1/namespaces/" + ns + "/pods/" + pod + ":" +
                                  std::to_string(port) + "/proxy/metrics");
    EXPECT_FALSE(text.empty());
    std::ofstream(folder() / "page") << text;
    const CommandResult said =
        run({"/bin/sh", "-c", "promtool check metrics <" + (folder() / "page").string()});
    EXPECT_EQ(said.exit_code, 0) << said.output << said.errors;
    EXPECT_THAT(said.output + said.errors, IsEmpty());
  }

  static constexpr std::chrono::minutes kActs{3};
  const std::string kSource = testing_support::source_folder();

  std::string address_;  ///< of kubectl proxy

 private:
  std::unique_ptr<ChildProcess> proxy_;
};

TEST_F(MonitoringTest, EveryPanelAndEveryRuleHasItsData) {
  const auto begin = std::chrono::steady_clock::now();
  apply(evaluating_job());
  ASSERT_TRUE(runs(kJob, 2, 0)) << operator_log();
  ASSERT_TRUE(wait_until([&] { return saved() > 0; })) << job_status(kJob).dump(2);
  EXPECT_TRUE(becomes("sum(up{job=\"trainyard-operator\"})", 1));
  EXPECT_TRUE(becomes("sum(up{job=\"trainyard-jobs\",namespace=\"" + name_space() + "\"})", 2));
  EXPECT_TRUE(becomes("count(" + of_job("trainyard_rank_step") + ")", 4));
  EXPECT_TRUE(becomes(of_job("trainyard_job_nodes", "state=\"ready\""), 2));
  EXPECT_TRUE(becomes(of_job("trainyard_job_phase", "phase=\"Running\""), 1));

  const int64_t before = saved();
  const std::string pod = member(kJob, 1);
  on_node(node_of(pod), {"kill", "-KILL", process_of(pod, 2)});
  ASSERT_TRUE(runs(kJob, 2, 1));
  ASSERT_TRUE(wait_until([&] { return saved() > before; })) << job_status(kJob).dump(2);
  EXPECT_TRUE(becomes(of_job("trainyard_restarts_total", "class=\"Infrastructure\""), 1));
  EXPECT_TRUE(becomes(of_job("trainyard_job_generation"), 2));
  EXPECT_TRUE(becomes(of_job("trainyard_lost_steps_total"),
                      job_status(kJob)["goodput"]["lostSteps"].get<double>()));
  // Until there are rates of the new pods.
  EXPECT_TRUE(becomes("count(rate(" + of_job("trainyard_rank_steps_total") + "[20s]) > 0)", 4));
  EXPECT_TRUE(becomes("max(" + of_job("trainyard_validation_loss_nats") + ") < bool 10", 1));

  const auto since =
      std::chrono::ceil<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
  expect_drawn("job", since);
  expect_drawn("fleet", since);
  const CommandResult asked = run({kSource + "/tests/cluster/rules_have_data",
                                   "http://" + std::string(address_) + kPrometheus});
  EXPECT_EQ(asked.exit_code, 0) << asked.output << asked.errors;
  EXPECT_THAT(Json::parse(asked.output, nullptr, false).value("firing", Json()), IsEmpty())
      << asked.output;

  expect_clean(name_space(), member(kJob, 0), 9400);
  const Json operators = get({"pods", "--namespace", "trainyard-system", "--selector",
                              "app.kubernetes.io/component=operator"});
  ASSERT_EQ(operators["items"].size(), 1U);
  expect_clean("trainyard-system", operators["items"][0]["metadata"]["name"], 8080);
}

}  // namespace
}  // namespace trainyard::cluster
