#include "operator/runtime/options.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::operator_runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Read {
  std::variant<OperatorOptions, SubmitOptions, EndsAtOnce> result;
  std::string out;
  std::string err;
};

Read read(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  auto result = read_options(arguments, out, err);
  return {std::move(result), out.str(), err.str()};
}

TEST(OptionsTest, DefaultsAreThoseOfTheReference) {
  const auto options = std::get<OperatorOptions>(read({}).result);
  EXPECT_THAT(options.namespaces, IsEmpty());
  EXPECT_FALSE(options.leader_elect);
  EXPECT_EQ(options.leader_elect_resource_name, "trainyard-operator");
  EXPECT_EQ(options.metrics_address, ":8080");
  EXPECT_EQ(options.probe_address, ":8081");
  EXPECT_EQ(options.workers, 8);
  EXPECT_TRUE(options.restarts_renew_image);
  EXPECT_EQ(options.log_format, LogFormat::kJson);
}

TEST(OptionsTest, TakesTheFlagsThatControllersHave) {
  const auto options = std::get<OperatorOptions>(
      read({"--kubeconfig", "/k", "--namespaces=a,b", "--leader-elect",
            "--leader-elect-resource-name=other.operator", "--metrics-bind-address=0",
            "--health-probe-bind-address", "127.0.0.1:0", "--kube-api-qps=50",
            "--kube-api-burst=100", "--max-concurrent-reconciles=3", "--log-format=text",
            "--log-level=debug"})
          .result);
  EXPECT_EQ(options.kubeconfig, "/k");
  EXPECT_THAT(options.namespaces, ElementsAre("a", "b"));
  EXPECT_TRUE(options.leader_elect);
  EXPECT_EQ(options.leader_elect_resource_name, "other.operator");
  EXPECT_TRUE(is_off(options.metrics_address));
  EXPECT_FALSE(is_off(options.probe_address));
  EXPECT_EQ(options.api_qps, 50);
  EXPECT_EQ(options.api_burst, 100);
  EXPECT_EQ(options.workers, 3);
  EXPECT_EQ(options.log_format, LogFormat::kText);
  EXPECT_EQ(options.log_level, LogLevel::kDebug);
  EXPECT_FALSE(std::get<OperatorOptions>(read({"--leader-elect=false"}).result).leader_elect);
  for (const auto& [word, renews] : {std::pair("OnRestart", true), std::pair("OnResume", false)}) {
    const Read rollout = read({"--worker-rollout", word});
    EXPECT_EQ(std::get<OperatorOptions>(rollout.result).restarts_renew_image, renews) << word;
  }
}

TEST(OptionsTest, WrongUsageEndsWith64AndNamesTheFlag) {
  for (const auto& [arguments, named] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--no-such-flag"}, "no-such-flag"},
           {{"--max-concurrent-reconciles=0"}, "max-concurrent-reconciles"},
           {{"--kube-api-qps=-1"}, "kube-api-qps"},
           {{"--namespaces=A_B"}, "A_B"},
           {{"--leader-elect-resource-name=a/b"}, "a/b"},
           {{"--worker-rollout=Never"}, "worker-rollout"},
           {{"--log-format=xml"}, "log-format"}}) {
    const Read wrong = read(arguments);
    ASSERT_TRUE(std::holds_alternative<EndsAtOnce>(wrong.result)) << named;
    EXPECT_EQ(std::get<EndsAtOnce>(wrong.result).exit_code, 64) << named;
    EXPECT_THAT(wrong.err, HasSubstr(named));
  }
}

/// The chart's extraArgs come after its own.
TEST(OptionsTest, TheLastOfTwoCounts) {
  const auto options = std::get<OperatorOptions>(
      read({"--kube-api-qps=1000", "--log-level=info", "--leader-elect=true",
            "--control-address=a:1", "--namespaces=a,b", "--kube-api-qps=5", "--log-level=debug",
            "--control-address=b:2"})
          .result);
  EXPECT_EQ(options.api_qps, 5);
  EXPECT_EQ(options.log_level, LogLevel::kDebug);
  EXPECT_EQ(options.control_address, "b:2");
  EXPECT_TRUE(options.leader_elect);
  EXPECT_THAT(options.namespaces, ElementsAre("a", "b")) << "all of one";
}

TEST(OptionsTest, SubmitIsACommandOfItsOwn) {
  const auto options = std::get<SubmitOptions>(
      read({"submit", "/job.yaml", "--replace", "--timeout=60", "--context", "here"}).result);
  EXPECT_EQ(options.file, "/job.yaml");
  EXPECT_EQ(options.timeout, std::chrono::seconds(60));
  EXPECT_EQ(options.context, "here");
  EXPECT_TRUE(options.replace);
  EXPECT_FALSE(options.keep);
  EXPECT_EQ(std::get<SubmitOptions>(read({"submit", "/job.yaml"}).result).timeout,
            std::chrono::seconds(300));
  const Read without_file = read({"submit"});
  EXPECT_EQ(std::get<EndsAtOnce>(without_file.result).exit_code, 64);
  EXPECT_THAT(without_file.err, HasSubstr("file"));
}

TEST(OptionsTest, HelpIsAskedForAndNoError) {
  const Read help = read({"--help"});
  EXPECT_EQ(std::get<EndsAtOnce>(help.result).exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--max-concurrent-reconciles"));
  EXPECT_THAT(help.out, HasSubstr("Exit codes"));
}

}  // namespace
}  // namespace trainyard::operator_runtime
