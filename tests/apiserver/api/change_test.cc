#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apiserver/api/bad_manifests.h"
#include "tests/support/control_plane.h"

namespace trainyard::apiserver {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::CommandResult;

/// When a change of a job is allowed.
enum class When { kAlways, kSuspended, kSuspendedWithoutPods, kBeforeItBegins, kNever };

struct Change {
  Base base;
  std::string_view patch;
  std::string_view field;  ///< named when it is refused
  When when;
};

constexpr Base T = Base::kTemplate;
constexpr Base E = Base::kEngine;

// clang-format off
constexpr Change kChanges[] = {
    {T, R"({"spec": {"activeDeadlineSeconds": 60}})", "", When::kAlways},
    {T, R"({"spec": {"ttlSecondsAfterFinished": 60}})", "", When::kAlways},
    {T, R"({"spec": {"keepFailedPods": 3}})", "", When::kAlways},
    {T, R"({"spec": {"progressPolicy": {"stallFactor": 20}}})", "", When::kAlways},
    {T, R"({"spec": {"failurePolicy": {"budgets": [{"class": "Hang", "maxRestarts": 1}]}}})", "", When::kAlways},
    {T, R"({"spec": {"failurePolicy": {"joinTimeoutSeconds": 20}}})", "", When::kAlways},
    {T, R"({"spec": {"checkpointPolicy": {"everySteps": 7, "keepLast": 2}}})", "", When::kAlways},
    {E, R"({"spec": {"engine": {"runtime": {"threads": 2}}}})", "", When::kAlways},
    {T, R"({"metadata": {"labels": {"team": "a"}}})", "", When::kAlways},

    {T, R"({"spec": {"numNodes": 3}})", "spec.numNodes", When::kSuspended},
    {T, R"({"spec": {"elasticPolicy": {"minNodes": 1}}})", "spec.elasticPolicy", When::kSuspended},
    {T, R"({"spec": {"failurePolicy": {"restartStrategy": "ReplacePod"}}})", "spec.failurePolicy.restartStrategy", When::kSuspended},
    {T, R"({"spec": {"failurePolicy": {"backoff": {"maxSeconds": 100}}}})", "spec.failurePolicy.backoff", When::kSuspended},
    {T, R"({"spec": {"failurePolicy": {"rules": [{"name": "a", "action": "FailJob", "onExitCodes": {"values": [1]}}]}}})", "spec.failurePolicy.rules", When::kSuspended},
    {T, R"({"spec": {"checkpointPolicy": {"maxAgeSeconds": 60}}})", "spec.checkpointPolicy.maxAgeSeconds", When::kSuspended},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededCount": 1}]}}})", "spec.successPolicy", When::kSuspended},
    {T, R"({"spec": {"rendezvous": {"port": 29501}}})", "spec.rendezvous", When::kSuspended},
    {E, R"({"spec": {"spares": {"count": 1}, "failurePolicy": {"restartStrategy": "InPlace"}}})", "spec.spares", When::kSuspended},

    {T, R"({"spec": {"template": {"spec": {"containers": [{"name": "trainer", "image": "registry.example/trainer:2", "command": ["train"]}]}}}})", "spec.template", When::kSuspendedWithoutPods},
    {T, R"({"spec": {"template": {"spec": {"priorityClassName": "high"}}}})", "spec.template", When::kSuspendedWithoutPods},
    {T, R"({"spec": {"template": {"spec": {"nodeSelector": {"zone": "b"}}}}})", "spec.template", When::kSuspendedWithoutPods},
    {T, R"({"spec": {"numProcPerNode": 2}})", "spec.numProcPerNode", When::kSuspendedWithoutPods},
    {T, R"({"spec": {"numProcPerNode": "auto"}})", "spec.numProcPerNode", When::kSuspendedWithoutPods},
    {T, R"({"spec": {"agent": "None"}})", "spec.agent", When::kSuspendedWithoutPods},
    {T, R"({"spec": {"scheduling": {"priorityClassName": "high"}}})", "spec.scheduling", When::kSuspendedWithoutPods},
    {E, R"({"spec": {"engine": {"steps": 200}}})", "spec.engine.steps", When::kSuspendedWithoutPods},
    {E, R"({"spec": {"engine": {"data": {"tokens": ["train", "more"]}}}})", "spec.engine.data", When::kSuspendedWithoutPods},
    {E, R"({"spec": {"engine": {"optimizer": {"learningRate": 0.001}}}})", "spec.engine.optimizer", When::kSuspendedWithoutPods},
    {E, R"({"spec": {"engine": {"parallelism": {"ringOrder": [1, 0]}}}})", "spec.engine.parallelism", When::kSuspendedWithoutPods},
    {E, R"({"spec": {"template": {"spec": {"containers": [{"name": "trainer"}]}}}})", "spec.template", When::kSuspendedWithoutPods},

    {T, R"({"spec": {"managedBy": "example.com/other"}})", "spec.managedBy", When::kNever},
    {T, R"({"spec": {"checkpointPolicy": {"path": "elsewhere"}}})", "spec.checkpointPolicy.path", When::kBeforeItBegins},
    {T, R"({"spec": {"checkpointPolicy": {"storage": {"persistentVolumeClaim": {"claimName": "other"}}}}})", "spec.checkpointPolicy.storage", When::kBeforeItBegins},
    {T, R"({"spec": {"checkpointPolicy": {"storage": null}}})", "spec.checkpointPolicy.storage", When::kBeforeItBegins},
    {E, R"({"spec": {"engine": {"model": {"preset": "gpt2-355m"}}}})", "spec.engine.model", When::kBeforeItBegins},
    {E, R"({"spec": {"engine": {"model": {"layers": 6}}}})", "spec.engine.model", When::kBeforeItBegins},
    {E, R"({"spec": {"engine": {"seed": 1}}})", "spec.engine.seed", When::kBeforeItBegins},
    {E, R"({"spec": {"engine": {"numerics": {"grainTokens": 64}}}})", "spec.engine.numerics", When::kBeforeItBegins},
    {E, R"({"spec": {"engine": {"startFrom": {"checkpoint": "/first/g1-step-0000000060"}}}})", "spec.engine.startFrom", When::kBeforeItBegins},
    {E, R"({"spec": {"engine": null, "template": {"spec": {"containers": [{"name": "a", "image": "a"}]}}}})", "spec.engine", When::kBeforeItBegins},
};
// clang-format on

class ChangeTest : public testing_support::ApiServerTest {
 protected:
  /// A job that nobody has looked at yet.
  void make_new(Base base, bool suspended) {
    Json job = Json::parse(good_manifest(base));
    job["spec"]["suspend"] = suspended;
    if (base == Base::kTemplate) {
      job["spec"]["template"]["spec"]["nodeSelector"] = {{"zone", "a"}};
      job["spec"]["checkpointPolicy"]["storage"]["persistentVolumeClaim"]["claimName"] = "ckpt";
    }
    must_with({"create"}, job.dump());
  }
  void set_status(const Json& status) {
    must({"patch", "tj", "job", "--subresource=status", "--type=merge", "-p",
          Json({{"status", status}}).dump()});
  }
  /// A job in the state that a running or suspended one is in, as the operator's status tells it.
  void make(Base base, bool suspended, int active) {
    make_new(base, suspended);
    set_status(
        {{"nodes", {{"active", active}}},
         {"membership", {{"generation", 1}}},
         {"conditions", {{{"type", "Suspended"}, {"status", active == 0 ? "True" : "False"}}}}});
  }
  void remove() { must({"delete", "tj", "job"}); }

  /// Judges every change of `base` as a dry run on the job that make() made.
  void judge(Base base, std::initializer_list<When> allowed) {
    for (const Change& change : kChanges) {
      if (change.base != base) continue;
      const auto result =
          api().merge_patch(kube::kTrainingJobs, {name_space(), "job"}, Json::parse(change.patch),
                            {}, {.dry_run = kube::DryRun::kServer});
      if (std::find(allowed.begin(), allowed.end(), change.when) != allowed.end()) {
        EXPECT_TRUE(result.has_value()) << change.patch << "\n" << result.error().message;
      } else {
        ASSERT_FALSE(result.has_value()) << change.patch << "\nwas taken";
        EXPECT_THAT(result.error().message, HasSubstr(change.field)) << change.patch;
      }
    }
  }
};

TEST_F(ChangeTest, OfAJobThatHasNotBegunAreMost) {
  for (const Base base : {T, E}) {
    for (const bool refused : {false, true}) {
      make_new(base, false);
      if (refused) set_status({{"conditions", {{{"type", "Accepted"}, {"status", "False"}}}}});
      judge(base,
            {When::kAlways, When::kSuspended, When::kSuspendedWithoutPods, When::kBeforeItBegins});
      remove();
    }
  }
}

TEST_F(ChangeTest, OfARunningJobAreFew) {
  for (const Base base : {T, E}) {
    make(base, false, 2);
    judge(base, {When::kAlways});
    remove();
  }
}

TEST_F(ChangeTest, OfASuspendedJobWaitForItsPods) {
  for (const Base base : {T, E}) {
    make(base, true, 2);
    judge(base, {When::kAlways, When::kSuspended});
    remove();
  }
}

TEST_F(ChangeTest, OfASuspendedJobWithoutPodsAreMany) {
  for (const Base base : {T, E}) {
    make(base, true, 0);
    judge(base, {When::kAlways, When::kSuspended, When::kSuspendedWithoutPods});
    remove();
  }
}

TEST_F(ChangeTest, OfACompleteJobNeverReachItsSteps) {
  for (const bool suspended : {false, true}) {
    make(E, suspended, 0);
    Json status = get({"tj", "job"})["status"];
    status["conditions"].push_back({{"type", "Complete"}, {"status", "True"}});
    set_status(status);
    for (const char* steps : {"50", "200"}) {
      const CommandResult refused =
          kubectl({"patch", "tj", "job", "--type=merge", "-p",
                   R"({"spec": {"engine": {"steps": )" + std::string(steps) + "}}}"});
      EXPECT_NE(refused.exit_code, 0) << steps;
      EXPECT_THAT(refused.errors,
                  AllOf(HasSubstr("spec.engine.steps"),
                        HasSubstr("never changes once the job is complete; to train its model "
                                  "further, create another job with engine.startFrom")));
    }
    must({"patch", "tj", "job", "--type=merge", "-p",
          R"({"spec": {"ttlSecondsAfterFinished": 900}})"});
    remove();
  }
}

TEST_F(ChangeTest, WhereAJobStartsFromStays) {
  Json job = Json::parse(good_manifest(E));
  job["spec"]["engine"]["startFrom"] = {{"checkpoint", "/first/g1-step-0000000060"}};
  must_with({"create"}, job.dump());
  EXPECT_EQ(get({"tj", "job"})["spec"]["engine"]["startFrom"]["what"], "State") << "the default";
  set_status({{"nodes", {{"active", 0}}}, {"membership", {{"generation", 1}}}});
  for (const char* change :
       {"null", R"({"what": "Weights"})", R"({"checkpoint": "/first/g1-step-0000000040"})"}) {
    const CommandResult refused =
        kubectl({"patch", "tj", "job", "--type=merge", "-p",
                 R"({"spec": {"engine": {"startFrom": )" + std::string(change) + "}}}"});
    EXPECT_NE(refused.exit_code, 0) << change;
    EXPECT_THAT(refused.errors, HasSubstr("spec.engine.startFrom"));
  }
}

TEST_F(ChangeTest, TheDefaultsThatAnEarlierServerWroteAreNoChange) {
  const auto is_taken = [&](const std::string& numerics) {
    return kubectl({"patch", "tj", "job", "--type=merge", "-p",
                    R"({"spec": {"engine": {"numerics": )" + numerics + "}}}"})
               .exit_code == 0;
  };
  for (const char* again : {"grainTokens 0", "the manifest"}) {
    SCOPED_TRACE(again);
    const std::string manifest(good_manifest(E));
    Json written = Json::parse(manifest);
    written["spec"]["engine"]["numerics"]["grainTokens"] = 128;
    written["spec"]["engine"]["parallelism"]["contextMode"] = "Ring";
    must_with({"create"}, written.dump());
    set_status({{"nodes", {{"active", 2}}}, {"membership", {{"generation", 1}}}});
    EXPECT_FALSE(is_taken(R"({"grainTokens": 64})"));
    if (again == std::string("the manifest")) {
      must_with({"replace"}, manifest);
    } else {
      EXPECT_TRUE(is_taken(R"({"grainTokens": 0})"));
    }
    EXPECT_TRUE(is_taken(R"({"grainTokens": null, "keyBlock": 0})"));
    EXPECT_FALSE(is_taken(R"({"grainTokens": 128})"));
    EXPECT_FALSE(is_taken(R"({"keyBlock": 64})"));
    remove();
  }
}

TEST_F(ChangeTest, HowContextRanksMeetStaysWhileTheyRun) {
  Json job = Json::parse(good_manifest(E));
  job["spec"]["engine"]["parallelism"]["context"] = 2;
  must_with({"create"}, job.dump());
  set_status({{"nodes", {{"active", 2}}}, {"membership", {{"generation", 1}}}});
  const auto changed_to = [&](const std::string& mode) {
    return kubectl({"patch", "tj", "job", "--type=merge", "-p",
                    R"({"spec": {"engine": {"parallelism": {"contextMode": )" + mode + "}}}}"});
  };
  EXPECT_EQ(changed_to("\"Ulysses\"").exit_code, 0) << "the default";
  const CommandResult refused = changed_to("\"Ring\"");
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.errors, HasSubstr("spec.engine.parallelism"));
  EXPECT_EQ(changed_to("null").exit_code, 0);
}

TEST_F(ChangeTest, AnElasticJobScalesWhileItRuns) {
  Json job = Json::parse(good_manifest(T));
  job["spec"]["elasticPolicy"] = {{"minNodes", 1}};
  must_with({"create"}, job.dump());
  set_status({{"membership", {{"generation", 1}}}});
  must({"scale", "tj/job", "--replicas=4"});
  must({"patch", "tj", "job", "--type=merge", "-p",
        R"({"spec": {"elasticPolicy": {"minNodes": 2}}})"});
  const CommandResult below = kubectl({"scale", "tj/job", "--replicas=1"});
  EXPECT_NE(below.exit_code, 0);
  EXPECT_THAT(below.errors, HasSubstr("elasticPolicy.minNodes"));
  EXPECT_NE(
      kubectl({"patch", "tj", "job", "--type=merge", "-p", R"({"spec": {"elasticPolicy": null}})"})
          .exit_code,
      0);
}

TEST_F(ChangeTest, AJobThatWasSuspendedFromTheStartIsFree) {
  Json job = Json::parse(good_manifest(T));
  job["spec"]["suspend"] = true;
  must_with({"create"}, job.dump());
  // As queue controllers do: place the pods and let the job go in one write.
  must({"patch", "tj", "job", "--type=merge", "-p",
        R"({"spec": {"suspend": false, "template": {"spec": {"nodeSelector": {"zone": "a"}}}}})"});
  set_status({{"membership", {{"generation", 1}}}});
  EXPECT_NE(kubectl({"patch", "tj", "job", "--type=merge", "-p",
                     R"({"spec": {"template": {"spec": {"nodeSelector": {"zone": "b"}}}}})"})
                .exit_code,
            0);
}

}  // namespace
}  // namespace trainyard::apiserver
