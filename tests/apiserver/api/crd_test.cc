#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/api/decode.h"
#include "tests/apiserver/api/bad_manifests.h"
#include "tests/support/control_plane.h"
#include "tests/support/paths.h"

namespace trainyard::apiserver {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing_support::CommandResult;

class CrdTest : public testing_support::ApiServerTest {
 protected:
  std::string engine_job() const { return std::string(good_manifest(Base::kEngine)); }
  std::string template_job() const { return std::string(good_manifest(Base::kTemplate)); }
};

TEST_F(CrdTest, IsAcceptedWithoutAWarningAndKeptAsItIs) {
  const CommandResult again = kubectl({"apply", "--server-side", "--force-conflicts",
                                       "--dry-run=server", "--validate=strict", "-o", "json", "-f",
                                       testing_support::source_path("manifests/crd.yaml")});
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_EQ(again.errors, "");
  const Json crd = get({"crd", "trainingjobs.trainyard.dev"});
  EXPECT_EQ(Json::parse(again.output)["spec"], crd["spec"]);
  for (const Json& condition : crd["status"]["conditions"]) {
    // NonStructuralSchema would be another type; both of these are True where all is well.
    EXPECT_EQ(condition["status"], "True") << condition.dump();
  }
  EXPECT_EQ(crd["status"]["acceptedNames"]["shortNames"], Json::array({"tj"}));
}

TEST_F(CrdTest, EveryDefaultOfTheServerIsTheDefaultOfTheStructs) {
  for (const std::string& manifest : {engine_job(), template_job()}) {
    must_with({"apply"}, manifest);
    Result<api::TrainingJob> stored =
        api::decode_training_job(must({"get", "tj", "job", "-o", "json"}));
    Result<api::TrainingJob> written = api::decode_training_job(manifest);
    ASSERT_TRUE(stored.has_value()) << stored.error().message;
    ASSERT_TRUE(written.has_value()) << written.error().message;
    if (stored->spec.pod_template && written->spec.pod_template) {
      // The server writes keys in its own order.
      std::string& text = stored->spec.pod_template->json;
      EXPECT_EQ(Json::parse(text), Json::parse(written->spec.pod_template->json));
      text = written->spec.pod_template->json;
    }
    EXPECT_TRUE(stored->spec == written->spec) << must({"get", "tj", "job", "-o", "yaml"});
    must({"delete", "tj", "job"});
  }
}

TEST_F(CrdTest, AManifestWithEveryFieldIsAccepted) {
  Json job =
      Json::parse(must({"create", "--namespace=research", "--dry-run=client", "-o", "json", "-f",
                        testing_support::source_path("tests/unit/common/api/fixtures/full.yaml")}));
  for (const char* key : {"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp",
                          "generation", "namespace", "finalizers", "managedFields"}) {
    job["metadata"].erase(key);
  }
  must_with({"create"}, job.dump());
  // A create leaves status out; the subresource takes it.
  const Json status = job["status"];
  Json stored = get({"tj", "gpt2-small"});
  EXPECT_FALSE(stored.contains("status"));
  stored["status"] = status;
  must_with({"replace", "--subresource=status"}, stored.dump());
  EXPECT_EQ(get({"tj", "gpt2-small"})["status"], status);
}

TEST_F(CrdTest, ServerSideApplyMergesByKeyAndNamesConflicts) {
  must_with({"apply", "--server-side", "--field-manager=one"}, template_job());
  Json more = Json::parse(template_job());
  more["spec"] = {{"failurePolicy", {{"budgets", {{{"class", "Hang"}, {"maxRestarts", 1}}}}}}};
  must_with({"apply", "--server-side", "--field-manager=two"}, more.dump());
  more["spec"] = {
      {"failurePolicy", {{"budgets", {{{"class", "Application"}, {"maxRestarts", 2}}}}}}};
  must_with({"apply", "--server-side", "--field-manager=three"}, more.dump());
  const Json job = get({"tj", "job"});
  EXPECT_EQ(job["spec"]["failurePolicy"]["budgets"].size(), 2U);
  EXPECT_EQ(job["spec"]["template"]["spec"]["containers"].size(), 1U);
  more["spec"] = {{"failurePolicy", {{"budgets", {{{"class", "Hang"}, {"maxRestarts", 9}}}}}}};
  const CommandResult conflict =
      kubectl_with({"apply", "--server-side", "--field-manager=four"}, more.dump());
  EXPECT_NE(conflict.exit_code, 0);
  EXPECT_THAT(conflict.errors,
              HasSubstr(".spec.failurePolicy.budgets[class=\"Hang\"].maxRestarts"));
}

TEST_F(CrdTest, ADryRunIsJudgedAndLeavesNothing) {
  must_with({"apply", "--dry-run=server"}, engine_job());
  EXPECT_THAT(kubectl({"get", "tj"}).errors, HasSubstr("No resources found"));
  Json bad = Json::parse(engine_job());
  bad["spec"]["numNodes"] = 0;
  const CommandResult refused = kubectl_with({"apply", "--dry-run=server"}, bad.dump());
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.errors, HasSubstr("spec.numNodes"));
}

TEST_F(CrdTest, ExplainDescribesFields) {
  EXPECT_THAT(must({"explain", "tj.spec.numProcPerNode"}),
              HasSubstr("in resources.limits, at least 1. From 1 to 1024, or auto."));
  const std::string policy = must({"explain", "trainingjob.spec.failurePolicy", "--recursive"});
  EXPECT_THAT(policy, ContainsRegex("maxRestarts\t<integer>"));
  EXPECT_THAT(policy, HasSubstr("enum: RecreateAll, ReplacePod"));
  EXPECT_THAT(must({"explain", "tj.status.restarts.classes.recent"}), HasSubstr("oldest first"));
}

/// What is planned within a schema: its sentences, by the path of the object whose field it is.
void find_planned(const nlohmann::json& schema, const std::string& path,
                  std::map<std::string, std::vector<std::string>>& found) {
  if (schema.contains("items")) find_planned(schema["items"], path, found);
  if (!schema.contains("properties")) return;
  for (const auto& [name, property] : schema["properties"].items()) {
    const std::string description = property.value("description", "");
    const size_t at = description.find("Planned");
    if (at != std::string::npos) found[path].push_back(description.substr(at));
    find_planned(property, path + "." + name, found);
  }
}

TEST_F(CrdTest, ExplainNamesAllThatIsPlanned) {
  std::map<std::string, std::vector<std::string>> planned;
  find_planned(
      get({"crd",
           "trainingjobs.trainyard.dev"})["spec"]["versions"][0]["schema"]["openAPIV3Schema"],
      "tj", planned);
  size_t count = 0;
  for (const auto& [path, sentences] : planned) {
    std::istringstream words(must({"explain", path}));  // which breaks and indents lines
    std::string text;
    for (std::string word; words >> word;)
      text += word + " ";
    for (const std::string& sentence : sentences)
      EXPECT_THAT(text, HasSubstr(sentence)) << path;
    count += sentences.size();
  }
  EXPECT_THAT(planned, testing::Contains(testing::Key("tj.spec.engine.parallelism")));
  EXPECT_GE(count, 12U);
}

TEST_F(CrdTest, TheExamplesAreAccepted) {
  const CommandResult tried = kubectl({"apply", "--dry-run=server", "--validate=strict", "-f",
                                       testing_support::source_path("manifests/examples")});
  EXPECT_EQ(tried.exit_code, 0) << tried.errors;
  EXPECT_EQ(tried.errors, "");
}

TEST_F(CrdTest, NamesColumnsAndCategory) {
  must_with({"apply"}, template_job());
  EXPECT_THAT(must({"get", "tj"}),
              ContainsRegex("NAME +PHASE +REASON +READY +NODES +STEP +RESTARTS +AGE\njob +2 "));
  const std::string wide = must({"get", "trainingjobs", "-o", "wide"});
  EXPECT_THAT(wide, ContainsRegex("AGE +LOSS +TOKENS/S +GOODPUT +GENERATION +SUSPENDED +MESSAGE"));
  EXPECT_THAT(wide, ContainsRegex("false *\n$"));
  EXPECT_THAT(must({"get", "trainyard"}), HasSubstr("job"));
  EXPECT_THAT(must({"get", "all"}), Not(HasSubstr("trainingjob")));
}

TEST_F(CrdTest, ScaleReadsAndWritesItsFields) {
  Json job = Json::parse(template_job());
  job["spec"]["elasticPolicy"] = {{"minNodes", 1}};
  must_with({"apply"}, job.dump());
  must({"scale", "tj/job", "--replicas=3"});
  EXPECT_EQ(get({"tj", "job"})["spec"]["numNodes"], 3);
  const std::string selector = "trainyard.dev/job-uid=1,trainyard.dev/member=true";
  must({"patch", "tj", "job", "--subresource=status", "--type=merge", "-p",
        R"({"status": {"nodes": {"active": 2}, "selector": ")" + selector + "\"}}"});
  const Json scale = Json::parse(must(
      {"get", "--raw",
       "/apis/trainyard.dev/v1alpha1/namespaces/" + name_space() + "/trainingjobs/job/scale"}));
  EXPECT_EQ(scale["spec"]["replicas"], 3);
  EXPECT_EQ(scale["status"]["replicas"], 2);
  EXPECT_EQ(scale["status"]["selector"], selector);
  EXPECT_NE(kubectl({"scale", "tj/job", "--replicas=0"}).exit_code, 0);
}

TEST_F(CrdTest, StatusAndSpecAreWrittenApart) {
  must_with({"apply"}, template_job());
  must({"patch", "tj", "job", "--subresource=status", "--type=merge", "-p",
        R"({"status": {"phase": "Running"}, "spec": {"suspend": true}})"});
  Json job = get({"tj", "job"});
  EXPECT_EQ(job["status"]["phase"], "Running");
  EXPECT_EQ(job["spec"]["suspend"], false);
  EXPECT_EQ(job["metadata"]["generation"], 1);
  must({"patch", "tj", "job", "--type=merge", "-p",
        R"({"status": {"phase": "Failed"}, "spec": {"suspend": true}})"});
  job = get({"tj", "job"});
  EXPECT_EQ(job["status"]["phase"], "Running");
  EXPECT_EQ(job["metadata"]["generation"], 2);
}

TEST_F(CrdTest, ThePodTemplateKeepsWhatTheSchemaDoesNotKnow) {
  Json job = Json::parse(template_job());
  Json& pod = job["spec"]["template"];
  pod["metadata"]["creationTimestamp"] = nullptr;  // as clients in Go write it
  pod["spec"]["tolerations"] = {{{"key", "gpu"}, {"operator", "Exists"}}};
  pod["spec"]["containers"][0]["resources"] = {{"limits", {{"cpu", 2}}}};
  pod["spec"]["containers"][0]["env"] = {
      {{"name", "SECRET"}, {"valueFrom", {{"secretKeyRef", {{"name", "a"}, {"key", "b"}}}}}}};
  must_with({"apply"}, job.dump());
  const Json stored = get({"tj", "job"})["spec"]["template"]["spec"];
  EXPECT_EQ(stored["tolerations"], pod["spec"]["tolerations"]);
  EXPECT_EQ(stored["containers"], pod["spec"]["containers"]);
}

TEST_F(CrdTest, RightsOnJobsComeWithEditAndView) {
  const auto may = [&](const std::string& role, const std::string& verb,
                       const std::string& part = "") {
    return kubectl({"auth", "can-i", verb, "trainingjobs.trainyard.dev", "--subresource=" + part,
                    "--as=" + role})
               .exit_code == 0;
  };
  for (const char* role : {"edit", "view"}) {
    must({"create", "rolebinding", role, std::string("--clusterrole=") + role,
          std::string("--user=") + role});
  }
  EXPECT_TRUE(wait_until([&] { return may("edit", "create"); }))
      << "the controller of aggregated roles takes a moment";
  EXPECT_TRUE(wait_until([&] { return may("view", "list"); }));
  EXPECT_TRUE(may("edit", "patch", "scale"));
  EXPECT_TRUE(may("edit", "delete"));
  EXPECT_FALSE(may("edit", "update", "status"));
  EXPECT_FALSE(may("view", "create"));
}

}  // namespace
}  // namespace trainyard::apiserver
