// A definition of TrainingJobs that learns new fields while jobs are stored and run: one that is
// cut down, and one that an earlier build had.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apiserver/operator/upheaval.h"
#include "tests/support/audit_log.h"
#include "tests/support/free_port.h"
#include "tests/support/paths.h"
#include "tests/support/tiny_engine.h"

namespace trainyard::apiserver {
namespace {

constexpr char kDefinition[] = "trainingjobs.trainyard.dev";

class UpgradeTest : public UpheavalTest {
 protected:
  void TearDown() override {
    apply_newest_definition();
    UpheavalTest::TearDown();
  }
  /// Between kubectl's read and its write the operator may have written the status.
  void replace(const Json& job) const {
    testing_support::CommandResult result;
    EXPECT_TRUE(wait_until([&] {
      result = kubectl_with({"replace"}, job.dump());
      return result.exit_code == 0 ||
             result.errors.find("the object has been modified") == std::string::npos;
    }));
    EXPECT_EQ(result.exit_code, 0) << result.errors;
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
    Json& status = properties["status"]["properties"];
    for (const char* field : {"goodput", "roles"})
      status.erase(field);
    status["membership"]["properties"].erase("workerImage");
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

/// The next version of the API as docs/reference/api-versions.md promises it: a copy, which no
/// webhook converts.
class NextVersionTest : public UpgradeTest {
 protected:
  void TearDown() override {
    store_as("v1alpha1");
    patch_definition(Json::array({{{"op", "remove"}, {"path", "/spec/versions/1"}}}));
    EXPECT_TRUE(wait_until([&] {
      return must({"get", "--raw", "/apis/trainyard.dev"}).find("v1beta1") == std::string::npos;
    }));
    // kubectl would go on to use what it has learned of the version.
    std::filesystem::remove_all(plane().folder() / "kubectl-cache");
    UpgradeTest::TearDown();
  }
  void patch_definition(const Json& operations) const {
    must({"patch", "crd", kDefinition, "--type=json", "-p", operations.dump()});
  }
  void serve_next_version() const {
    Json next = get({"crd", kDefinition})["spec"]["versions"][0];
    next["name"] = "v1beta1";
    next["storage"] = false;
    patch_definition(Json::array({{{"op", "add"}, {"path", "/spec/versions/1"}, {"value", next}}}));
    testing_support::CommandResult tried;
    ASSERT_TRUE(wait_until([&] {
      tried = kubectl_with({"create", "--dry-run=server"}, of_version("v1beta1", "tried").dump());
      return tried.exit_code == 0;
    })) << tried.errors;
  }
  /// By the commands of that page.
  void store_as(const std::string& version) const {
    Json operations = Json::array();
    for (const int index : {0, 1}) {
      const bool is_next = index == 1;
      operations.push_back({{"op", "replace"},
                            {"path", "/spec/versions/" + std::to_string(index) + "/storage"},
                            {"value", is_next == (version == "v1beta1")}});
    }
    patch_definition(operations);
    EXPECT_TRUE(wait_until([&] {
      const Json all = get({"trainingjobs"});
      return kubectl_with({"replace"}, all.dump()).exit_code == 0;
    }));
    must({"patch", "crd", kDefinition, "--subresource=status", "--type=merge", "-p",
          Json({{"status", {{"storedVersions", {version}}}}}).dump()});
  }
  static Json of_version(const std::string& version, const std::string& name) {
    Json job = job_manifest(name, 1);
    job["apiVersion"] = "trainyard.dev/" + version;
    return job;
  }
};

TEST_F(NextVersionTest, AJobOfEachRuns) {
  ASSERT_NO_FATAL_FAILURE(serve_next_version());
  apply(of_version("v1alpha1", "train"));
  apply(of_version("v1beta1", "other"));
  for (const char* job : {"train", "other"}) {
    ASSERT_TRUE(runs(job, 1, 0));
    EXPECT_EQ(get({"trainingjobs.v1alpha1.trainyard.dev", job})["apiVersion"],
              "trainyard.dev/v1alpha1");
    EXPECT_EQ(get({"trainingjobs.v1beta1.trainyard.dev", job})["apiVersion"],
              "trainyard.dev/v1beta1");
  }
  store_as("v1beta1");
  for (const char* job : {"train", "other"}) {
    patch(job, {{"suspend", true}});
    ASSERT_TRUE(reaches(job, "Suspended"));
    patch(job, {{"suspend", false}});
    ASSERT_TRUE(runs(job, 1, 0));
  }
}

/// As manifests had them before numerics had defaults of their own: none is named.
class EarlierDefinitionTest : public UpgradeTest {
 protected:
  void apply_earlier_definition() const {
    must({"replace", "-f",
          testing_support::source_path("tests/fixtures/formats/crd-02eeba82.yaml")});
    ASSERT_TRUE(wait_until([&] { return refuses_new_numerics(); }));
  }
  /// What the server says of a manifest that names one of the later fields.
  testing_support::CommandResult try_new_numerics() const {
    Json job = engine_manifest("tried");
    job["spec"]["engine"]["numerics"] = {{"keyBlock", 64}};
    return kubectl_with({"create", "--dry-run=server", "--validate=strict"}, job.dump());
  }
  bool takes_new_numerics() const { return try_new_numerics().exit_code == 0; }
  bool refuses_new_numerics() const {
    const testing_support::CommandResult tried = try_new_numerics();
    return tried.exit_code != 0 && tried.errors.find("keyBlock") != std::string::npos;
  }
  static Json engine_manifest(const std::string& name) {
    Json job = job_manifest(name, 2);
    job["spec"]["engine"] = testing_support::tiny_engine("/data/train", 1000);
    job["spec"]["checkpointPolicy"] = {
        {"storage", {{"persistentVolumeClaim", {{"claimName", "ckpt"}}}}}};
    job["spec"]["failurePolicy"] = {{"backoff", {{"initialSeconds", 0}}}};
    job["spec"]["template"] = {{"spec", {{"containers", Json::array({{{"name", "trainer"}}})}}}};
    return job;
  }
  /// `numerics` as the ranks of the job's pods read it.
  Json numerics_of_pods(const std::string& job) const {
    const Json pod = get({"pod", member(job, 0)});
    for (const Json& volume : pod["spec"]["volumes"]) {
      if (!volume.contains("configMap")) continue;
      const Json map = get({"configmap", volume["configMap"]["name"]});
      if (map["data"].contains("engine.json"))
        return Json::parse(map["data"]["engine.json"].get<std::string>())["numerics"];
    }
    ADD_FAILURE() << pod["spec"]["volumes"].dump(1);
    return {};
  }
};

TEST_F(EarlierDefinitionTest, ItsJobsRunOnAndRestartUnderTheNewOne) {
  const std::string port = "127.0.0.1:" + std::to_string(testing_support::free_port());
  const std::vector<std::string> options = {"--control-bind-address", port,
                                            "--control-address",      port,
                                            "--worker-image",         "registry.example/worker:1"};
  make_claim();
  apply_earlier_definition();
  restart_operator({}, options);
  Json paused = engine_manifest("paused");
  paused["spec"]["suspend"] = true;
  for (const Json& job : {engine_manifest("train"), paused})
    apply(job);
  ASSERT_TRUE(runs("train", 2, 0));
  ASSERT_TRUE(reaches("paused", "Suspended"));
  for (const char* job : {"train", "paused"}) {
    EXPECT_EQ(get({"tj", job})["spec"]["engine"]["numerics"]["grainTokens"], 128)
        << "as the server stored what the manifest does not name";
  }
  const std::set<std::string> before = names_of_pods("train");

  apply_newest_definition();
  ASSERT_TRUE(wait_until([&] { return takes_new_numerics(); }));
  // An upgrade restarts the operator.
  restart_operator({}, options);
  for (const Json& job : {engine_manifest("train"), paused}) {
    apply(job);
    replace(job);
    apply(job);
  }
  EXPECT_TRUE(runs("train", 2, 0));
  EXPECT_EQ(names_of_pods("train"), before);
  for (const char* job : {"train", "paused"})
    EXPECT_EQ(get({"tj", job})["spec"]["engine"]["numerics"], Json({{"mode", "Auto"}})) << job;

  must({"delete", "pod", member("train", 1), "--grace-period=0", "--force"});
  ASSERT_TRUE(runs("train", 2, 1));
  patch("paused", {{"suspend", false}});
  ASSERT_TRUE(runs("paused", 2, 0));
  for (const char* job : {"train", "paused"}) {
    SCOPED_TRACE(job);
    EXPECT_EQ(condition(job, "Accepted"), "True");
    EXPECT_EQ(numerics_of_pods(job), Json::parse(R"({"mode": "Auto"})"))
        << "so ranks take those of the checkpoint, of whatever build they are";
  }
}

}  // namespace
}  // namespace trainyard::apiserver
