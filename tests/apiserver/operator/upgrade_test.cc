// A definition of TrainingJobs that learns new fields while jobs are stored and run.
#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apiserver/operator/upheaval.h"
#include "tests/support/audit_log.h"
#include "tests/support/paths.h"

namespace trainyard::apiserver {
namespace {

constexpr char kDefinition[] = "trainingjobs.trainyard.dev";

class UpgradeTest : public UpheavalTest {
 protected:
  void TearDown() override {
    apply_newest_definition();
    UpheavalTest::TearDown();
  }
  void apply_newest_definition() const {
    must({"apply", "--server-side", "--force-conflicts", "-f",
          testing_support::source_path("manifests/crd.yaml")});
  }

  static void drop_elastic_rules(Json& schema) {
    Json kept = Json::array();
    for (const Json& rule : schema["x-kubernetes-validations"]) {
      if (rule["rule"].get<std::string>().find("elasticPolicy") == std::string::npos)
        kept.push_back(rule);
    }
    schema["x-kubernetes-validations"] = kept;
  }
  /// The definition as it might have been before: without some fields of spec and status, and
  /// without the rules about them.
  void apply_older_definition() const {
    Json definition = get({"crd", kDefinition});
    definition["metadata"] = {{"name", kDefinition}, {"labels", definition["metadata"]["labels"]}};
    definition.erase("status");
    Json& schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    Json& properties = schema["properties"];
    Json& spec = properties["spec"];
    for (const char* field : {"elasticPolicy", "keepFailedPods", "ttlSecondsAfterFinished"})
      spec["properties"].erase(field);
    for (const char* field : {"goodput", "roles"})
      properties["status"]["properties"].erase(field);
    drop_elastic_rules(spec);
    drop_elastic_rules(schema);
    must_with({"replace"}, definition.dump());
    ASSERT_TRUE(wait_until([&] { return !takes_elastic_jobs(); }));
  }
  bool takes_elastic_jobs() const {
    Json job = job_manifest("tried", 2);
    job["spec"]["elasticPolicy"] = {{"minNodes", 1}};
    return kubectl_with({"create", "--dry-run=server", "--validate=strict"}, job.dump())
               .exit_code == 0;
  }
  /// How often the operator has written the job's status.
  int64_t status_writes(const std::string& job) const {
    const auto events = testing_support::read_audit_log(plane().audit_log());
    return std::count_if(events.begin(), events.end(), [&](const auto& event) {
      return event.name_space == name_space() && event.name == job &&
             event.resource == "trainingjobs/status" && event.verb == "update";
    });
  }
  /// Whether the operator comes to write the job's status no more; counts follow up to a second
  /// later.
  bool status_comes_to_rest(const std::string& job) const {
    for (int look = 0; look < 10; ++look) {
      const int64_t writes = status_writes(job);
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      if (status_writes(job) == writes) return true;
    }
    return false;
  }
};

TEST_F(UpgradeTest, StoredJobsGoOnAndHaveTheNewFields) {
  leave_ledgers_unjudged();
  apply_older_definition();
  apply(job_manifest("train", 2));
  ASSERT_TRUE(runs("train", 2, 0));
  ASSERT_TRUE(reaches("train", "Running"));
  EXPECT_FALSE(job_status("train").contains("goodput"));
  // What the server drops of a status is not written again and again.
  ASSERT_TRUE(status_comes_to_rest("train"));
  const int64_t writes = status_writes("train");
  apply(job_manifest("other", 1));
  ASSERT_TRUE(reaches("other", "Running"));
  EXPECT_EQ(status_writes("train"), writes);

  const std::set<std::string> before = names_of_pods("train");
  apply_newest_definition();
  ASSERT_TRUE(wait_until([&] { return takes_elastic_jobs(); }));
  apply(job_manifest("later", 1));
  ASSERT_TRUE(reaches("later", "Running"));
  EXPECT_EQ(names_of_pods("train"), before);
  EXPECT_TRUE(runs("train", 2, 0));
  EXPECT_EQ(job_status("train")["membership"]["generation"], 1);

  patch("train", {{"suspend", true}});
  ASSERT_TRUE(reaches("train", "Suspended"));
  patch("train",
        {{"suspend", false}, {"elasticPolicy", {{"minNodes", 1}, {"scaleUpSnoozeSeconds", 0}}}});
  ASSERT_TRUE(runs("train", 2, 0));
  must({"scale", "tj/train", "--replicas=3"});
  ASSERT_TRUE(runs("train", 3, 0));
  EXPECT_TRUE(job_status("train").contains("goodput"));
}

}  // namespace
}  // namespace trainyard::apiserver
