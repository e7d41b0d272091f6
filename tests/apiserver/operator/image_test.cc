// Upgrades and rollbacks of the operator while jobs run: all pods of a gang have one worker image,
// and what a newer operator has written into a status harms nothing.
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/free_port.h"
#include "tests/support/operator_process.h"
#include "tests/support/tiny_engine.h"

namespace trainyard::apiserver {
namespace {

using testing::ElementsAre;

class ImageTest : public testing_support::OperatorTest {
 protected:
  void SetUp() override {
    OperatorTest::SetUp();
    make_claim();
    install("old");
  }
  /// Another version of the operator, with its worker image.
  void install(const std::string& tag, const std::string& rollout = "OnRestart") {
    restart_operator(
        {}, {"--control-bind-address", address_, "--control-address", address_, "--worker-image",
             "registry.example/worker:" + tag, "--worker-rollout", rollout});
  }
  static Json engine_manifest(const std::string& strategy) {
    Json job = job_manifest("train", 2);
    job["spec"]["engine"] = testing_support::tiny_engine("/data/train", 1000);
    job["spec"]["checkpointPolicy"] = {
        {"storage", {{"persistentVolumeClaim", {{"claimName", "ckpt"}}}}}};
    job["spec"]["failurePolicy"] = {{"backoff", {{"initialSeconds", 0}}},
                                    {"restartStrategy", strategy}};
    job["spec"]["template"] = {{"spec", {{"containers", Json::array({{{"name", "trainer"}}})}}}};
    return job;
  }
  std::set<std::string> tags() const {
    std::set<std::string> found;
    for (const Json& pod : pods("train")) {
      const std::string image = pod["spec"]["containers"][0]["image"];
      found.insert(image.substr(image.rfind(':') + 1));
    }
    return found;
  }
  /// The pod is lost, and the gang whole again with so many restarts.
  void lose_pod(int index, int restarts) {
    must({"delete", "pod", member("train", index), "--grace-period=0", "--force"});
    EXPECT_TRUE(wait_until([&] {
      return job_status("train")["restarts"]["total"] == restarts &&
             names_of_pods("train").size() == 2;
    })) << job_status("train").dump(1);
    EXPECT_TRUE(reaches("train", "Scheduled"));
  }
  void suspend_and_resume() {
    patch("train", {{"suspend", true}});
    ASSERT_TRUE(reaches("train", "Suspended"));
    patch("train", {{"suspend", false}});
    ASSERT_TRUE(runs("train", 2, 1));
  }
  void patch_status(const Json& status) {
    must({"patch", "tj", "train", "--subresource=status", "--type=merge", "-p",
          Json({{"status", status}}).dump()});
  }

  const std::string address_ = "127.0.0.1:" + std::to_string(testing_support::free_port());
};

TEST_F(ImageTest, APodThatIsReplacedAloneGetsThatOfItsGang) {
  apply(engine_manifest("ReplacePod"));
  ASSERT_TRUE(runs("train", 2, 0));
  const std::string kept = member("train", 0);
  EXPECT_EQ(job_status("train")["membership"]["workerImage"], "registry.example/worker:old");

  // As an operator of before has left it: the pods tell.
  EXPECT_EQ(running_operator().stop(), 0);
  patch_status({{"membership", {{"workerImage", nullptr}}}});
  install("new");
  lose_pod(1, 1);
  EXPECT_EQ(member("train", 0), kept);
  EXPECT_THAT(tags(), ElementsAre("old"));
  suspend_and_resume();
  EXPECT_THAT(tags(), ElementsAre("new"));
}

TEST_F(ImageTest, ARestartOfAllPodsTakesTheNewOneUnlessThatIsForResumptions) {
  apply(engine_manifest("RecreateAll"));
  ASSERT_TRUE(runs("train", 2, 0));
  install("newer", "OnResume");
  lose_pod(1, 1);
  EXPECT_THAT(tags(), ElementsAre("old"));
  install("newest");
  lose_pod(1, 2);
  EXPECT_THAT(tags(), ElementsAre("newest"));
}

/// After a rollback: none of it is a fault, nothing restarts for it, and it is kept.
TEST_F(ImageTest, WordsOfANewerStatusAreKept) {
  apply(engine_manifest("RecreateAll"));
  ASSERT_TRUE(runs("train", 2, 0));
  const std::set<std::string> before = names_of_pods("train");
  Json status = job_status("train");
  const Json condition_of_others = {
      {"type", "QuotaReserved"}, {"status", "True"},
      {"reason", "ByAnother"},   {"message", "why"},
      {"observedGeneration", 1}, {"lastTransitionTime", "2026-01-02T03:04:05Z"}};
  status["conditions"].push_back(condition_of_others);
  status["phase"] = "Checking";
  status["restarts"]["classes"] = Json::array({{{"class", "Quota"}, {"total", 3}}});
  Json attempt = status["attempts"][0];
  attempt["generation"] = 0;
  attempt["class"] = "Quota";
  attempt["reason"] = "NoRoom";
  attempt["endTime"] = attempt["startTime"];
  status["attempts"].push_back(attempt);
  patch_status({{"conditions", status["conditions"]},
                {"phase", status["phase"]},
                {"restarts", status["restarts"]},
                {"attempts", status["attempts"]}});
  install("old");
  ASSERT_TRUE(wait_until([&] { return job_status("train")["phase"] != "Checking"; }));
  // Once the new operator serves the control stream.
  EXPECT_TRUE(reaches("train", "Accepted")) << job_status("train").dump(1);
  EXPECT_EQ(names_of_pods("train"), before);
  lose_pod(1, 1);
  const Json after = job_status("train");
  EXPECT_EQ(condition("train", "QuotaReserved"), "True");
  bool is_kept = false;
  for (const Json& entry : after["restarts"]["classes"])
    is_kept |= entry["class"] == "Quota" && entry["total"] == 3;
  EXPECT_TRUE(is_kept) << after.dump(1);
  EXPECT_NE(after["attempts"].dump().find("\"Quota\""), std::string::npos) << after.dump(1);
}

}  // namespace
}  // namespace trainyard::apiserver
