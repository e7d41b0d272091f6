#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "operator/cluster/views.h"
#include "operator/render/names.h"
#include "tests/unit/operator/render/jobs.h"

namespace trainyard::render {
namespace {

using nlohmann::json;
using testing::Contains;

TEST(RenderPodTest, KeepsWhatTheTemplateSays) {
  const json pod = rendered(job_of(kForeign), 1);
  EXPECT_EQ(pod["metadata"]["labels"]["team"], "a");
  EXPECT_EQ(pod["metadata"]["annotations"]["note"], "x");
  EXPECT_EQ(pod["spec"]["nodeSelector"]["gpu"], "yes");
  EXPECT_EQ(pod["spec"]["containers"][0], (json{{"name", "sidecar"}, {"image", "log:1"}}));
  EXPECT_EQ(trainer_of(pod)["image"], "train:1");
  EXPECT_EQ(trainer_of(pod)["resources"]["limits"]["nvidia.com/gpu"], 1);
}

TEST(RenderPodTest, RanksOfAnEngineOnGpusGetOneEach) {
  PodDefaults defaults{"worker:9", "control:9443"};
  defaults.worker_gpu_image = "worker-gpu:9";
  defaults.gpu_runtime_class = "nvidia";
  const auto pod_with = [&](const std::string& device, const std::string& trainer,
                            const std::string& of_pod = "") {
    json spec = json::parse(kEngine);
    spec["engine"]["device"] = device;
    const bool has_part = trainer.find("nvidia.com/mig-") != std::string::npos;
    if (has_part) spec["numProcPerNode"] = 1;
    if (!trainer.empty()) {
      spec["template"] = json::parse(R"({"spec":{)" + of_pod +
                                     R"("containers":[{"name":"trainer")" + trainer + "}]}}");
    }
    const api::TrainingJob job = job_of(spec.dump());
    return render_pod(job.metadata, job.spec, pod_of(job, 0), defaults);
  };
  const auto expect = [](const json& pod, const json& resources, const json& image,
                         const json& runtime_class) {
    EXPECT_EQ(trainer_of(pod).value("resources", json()), resources);
    EXPECT_EQ(trainer_of(pod)["image"], image);
    EXPECT_EQ(pod["spec"].value("runtimeClassName", json()), runtime_class);
  };
  const json four = {{"limits", {{"nvidia.com/gpu", 4}}}};
  const std::string own = R"(,"resources":{"limits":{"nvidia.com/gpu":4}})";
  expect(pod_with("Cuda", ""), four, "worker-gpu:9", "nvidia");
  expect(pod_with("Cuda", own), four, "worker-gpu:9", "nvidia");
  expect(pod_with("Auto", own), four, "worker-gpu:9", "nvidia");
  expect(pod_with("Auto", ""), nullptr, "worker:9", nullptr);
  expect(pod_with("Cpu", ""), nullptr, "worker:9", nullptr);
  const std::string image = R"(,"image":"mine:1")";
  expect(pod_with("Cuda", image, R"("runtimeClassName":"kata",)"), four, "mine:1", "kata");
  const std::string parts = R"({"limits":{"nvidia.com/mig-1g.10gb":1}})";
  expect(pod_with("Cuda", R"(,"resources":)" + parts), json::parse(parts), "worker-gpu:9",
         "nvidia");
  const std::string claims = R"({"claims":[{"name":"gpus"}]})";
  expect(pod_with("Cuda", R"(,"resources":)" + claims), json::parse(claims), "worker-gpu:9",
         "nvidia");
  defaults.worker_gpu_image.clear();
  defaults.gpu_runtime_class.clear();
  expect(pod_with("Cuda", ""), four, "worker:9", nullptr);
}

TEST(RenderPodTest, AutoIsARankForEachGpuOfTheTrainer) {
  const auto ranks_with = [](const std::string& resources) {
    const json pod = rendered(job_of(R"({"numProcPerNode":"auto","template":{"spec":{"containers":[
        {"name":"log","image":"l","resources":{"limits":{"nvidia.com/gpu":7}}},
        {"name":"trainer","image":"t","command":["x"],"resources":)" +
                                     resources + "}]}}}"),
                              0);
    for (const json& variable : trainer_of(pod)["env"]) {
      if (variable["name"] == "PET_NPROC_PER_NODE") return variable["value"].get<std::string>();
    }
    return std::string("none");
  };
  EXPECT_EQ(ranks_with(R"({"limits":{"nvidia.com/gpu":4}})"), "4");
  EXPECT_EQ(ranks_with(R"({"limits":{"nvidia.com/gpu":"8"}})"), "8");
  EXPECT_EQ(ranks_with(R"({"limits":{"nvidia.com/mig-1g.10gb":4,"amd.com/gpu":4}})"), "1");
  EXPECT_EQ(ranks_with("{}"), "1");
}

TEST(RenderPodTest, SaysWhoThePodIsAndWhoseItIs) {
  const api::TrainingJob job = job_of(kForeign);
  const json pod = rendered(job, 1);
  EXPECT_EQ(pod["metadata"]["name"], control::pod_name("bert", "uid-1", 1, 2));
  EXPECT_EQ(pod["metadata"]["namespace"], "team-a");
  EXPECT_EQ(pod["spec"]["hostname"], "bert-1");
  EXPECT_EQ(pod["spec"]["subdomain"], "bert");
  const json& labels = pod["metadata"]["labels"];
  EXPECT_EQ(labels["trainyard.dev/job-name"], "bert");
  EXPECT_EQ(labels["trainyard.dev/job-uid"], "uid-1");
  EXPECT_EQ(labels["trainyard.dev/node-index"], "1");
  EXPECT_EQ(labels["trainyard.dev/role"], "trainer");
  EXPECT_EQ(labels["trainyard.dev/created-generation"], "2");
  EXPECT_EQ(labels["trainyard.dev/member"], "true");
  EXPECT_EQ(labels["training.kubeflow.org/job-name"], "bert");
  EXPECT_EQ(labels["training.kubeflow.org/replica-index"], "1");
  EXPECT_EQ(labels["batch.kubernetes.io/job-completion-index"], "1");
  EXPECT_FALSE(labels.contains("training.kubeflow.org/job-role"));
  EXPECT_EQ(rendered(job, 0)["metadata"]["labels"]["training.kubeflow.org/job-role"], "master");
  ASSERT_EQ(pod["metadata"]["ownerReferences"].size(), 1u);
  const json& owner = pod["metadata"]["ownerReferences"][0];
  EXPECT_EQ(owner["kind"], "TrainingJob");
  EXPECT_EQ(owner["uid"], "uid-1");
  EXPECT_EQ(owner["controller"], true);
  EXPECT_EQ(owner["blockOwnerDeletion"], true);
}

TEST(RenderPodTest, IsReadBackAsTheBrainMeantIt) {
  const api::TrainingJob job = job_of(kForeign);
  json pod = rendered(job, 2, 5);
  pod["metadata"]["uid"] = "pod-uid";
  pod["metadata"]["resourceVersion"] = "1";
  const auto view = cluster::view_of_pod(pod);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->job_uid, "uid-1");
  EXPECT_EQ(view->job_name, "bert");
  EXPECT_EQ(view->seen.node_index, 2);
  EXPECT_EQ(view->seen.created_generation, 5);
  EXPECT_TRUE(view->seen.member);
}

TEST(RenderPodTest, ItsOnlyContainerDecidesWhateverAdmissionPutsBeforeIt) {
  const api::TrainingJob job = job_of(R"({"numNodes":1,"agent":"None","template":{"spec":{
      "containers":[{"name":"main","image":"i","command":["c"]}]}}})");
  json pod = rendered(job, 0);
  pod["metadata"]["uid"] = "pod-uid";
  pod["metadata"]["resourceVersion"] = "1";
  json& containers = pod["spec"]["containers"];
  containers.insert(containers.begin(), {{"name", "proxy"}});
  const auto ended = [](const char* name, int code) -> json {
    return {{"name", name}, {"state", {{"terminated", {{"exitCode", code}}}}}};
  };
  pod["status"] = {{"phase", "Running"},
                   {"containerStatuses", json::array({ended("proxy", 0), ended("main", 7)})}};
  const auto view = cluster::view_of_pod(pod);
  ASSERT_TRUE(view.has_value());
  ASSERT_TRUE(view->seen.exit.has_value());
  EXPECT_EQ(view->seen.exit->container, "main");
  EXPECT_EQ(view->seen.exit->exit_code, 7);
}

TEST(RenderPodTest, SetsTheDefaultsOfAPodThatEndsOnce) {
  const json pod = rendered(job_of(kForeign), 0);
  const json& spec = pod["spec"];
  EXPECT_EQ(spec["restartPolicy"], "Never");
  EXPECT_EQ(spec["terminationGracePeriodSeconds"], 90);
  EXPECT_EQ(spec["automountServiceAccountToken"], false);
  EXPECT_EQ(spec["enableServiceLinks"], false);
  EXPECT_EQ(trainer_of(pod)["terminationMessagePolicy"], "FallbackToLogsOnError");
  EXPECT_FALSE(spec.contains("securityContext")) << "nothing is known of a foreign image";
}

TEST(RenderPodTest, LeavesTheTemplatesOwnChoiceOfADefault) {
  const json pod = rendered(job_of(R"({"agent":"None","template":{"spec":{
      "automountServiceAccountToken":true,
      "containers":[{"name":"trainer","image":"t","command":["x"],
                     "terminationMessagePolicy":"File"}]}}})"),
                            0);
  EXPECT_EQ(pod["spec"]["automountServiceAccountToken"], true);
  EXPECT_EQ(trainer_of(pod)["terminationMessagePolicy"], "File");
}

TEST(RenderPodTest, ATemplateThatNamesAnAccountGetsItsToken) {
  const auto automount = [](const std::string& account) {
    const json pod =
        rendered(job_of(R"({"agent":"None","template":{"spec":{"serviceAccountName":")" + account +
                        R"(","containers":[{"name":"trainer","image":"t",
                                         "command":["x"]}]}}})"),
                 0);
    return pod["spec"].value("automountServiceAccountToken", json());
  };
  EXPECT_EQ(automount("reader"), json()) << "Kubernetes' own default: it is mounted";
  EXPECT_EQ(automount(""), false);
}

TEST(RenderPodTest, MountsSharedMemoryUnlessTheTemplateDoes) {
  const json pod = rendered(job_of(kForeign), 0);
  EXPECT_THAT(pod["spec"]["volumes"],
              Contains(json{{"name", "trainyard-shm"}, {"emptyDir", {{"medium", "Memory"}}}}));
  EXPECT_THAT(trainer_of(pod)["volumeMounts"],
              Contains(json{{"name", "trainyard-shm"}, {"mountPath", "/dev/shm"}}));
  const json own = rendered(job_of(R"({"agent":"None","template":{"spec":{
      "volumes":[{"name":"big","emptyDir":{"medium":"Memory","sizeLimit":"8Gi"}}],
      "containers":[{"name":"trainer","image":"t","command":["x"],
                     "volumeMounts":[{"name":"big","mountPath":"/dev/shm"}]}]}}})"),
                            0);
  EXPECT_EQ(own["spec"]["volumes"].size(), 1u);
  EXPECT_EQ(trainer_of(own)["volumeMounts"].size(), 1u);
}

TEST(RenderPodTest, AMountIsKnownHoweverItsPathIsWritten) {
  for (const char* path : {"/dev/shm/", "/dev//shm", "/dev/./shm", "/dev/x/../shm"}) {
    const json pod = rendered(job_of(std::string(R"({"agent":"None","template":{"spec":{
        "volumes":[{"name":"big","emptyDir":{}}],
        "containers":[{"name":"trainer","image":"t","command":["x"],
                       "volumeMounts":[{"name":"big","mountPath":")") +
                                     path + R"("}]}]}}})"),
                              0);
    EXPECT_EQ(trainer_of(pod)["volumeMounts"].size(), 1u) << path;
  }
}

TEST(RenderPodTest, StripsWhatATemplateMayNotSay) {
  api::TrainingJob job = job_of(kForeign);
  job.spec.pod_template->json = R"({"metadata":{"ownerReferences":[{"uid":"evil"}],
      "finalizers":["evil"],"labels":{"trainyard.dev/member":"false"}},
      "spec":{"nodeName":"n1","restartPolicy":"Always","hostname":"evil",
              "containers":[{"name":"trainer","image":"t","env":[{"name":"RANK","value":"9"},
                                                                 {"name":"A","value":"b"}]}]}})";
  const json pod = rendered(job, 0);
  EXPECT_FALSE(pod["metadata"].contains("finalizers"));
  EXPECT_EQ(pod["metadata"]["ownerReferences"].size(), 1u);
  EXPECT_EQ(pod["metadata"]["labels"]["trainyard.dev/member"], "true");
  EXPECT_FALSE(pod["spec"].contains("nodeName"));
  EXPECT_EQ(pod["spec"]["hostname"], "bert-0");
  EXPECT_EQ(environment(pod)["A"], "b");
  EXPECT_EQ(environment(pod)["RANK"], "0");
}

/// The path of each value below `value`.
void collect(const json& value, const json::json_pointer& path,
             std::vector<json::json_pointer>& paths) {
  if (!path.empty()) paths.push_back(path);
  if (value.is_object()) {
    for (const auto& [key, member] : value.items())
      collect(member, path / key, paths);
  }
  for (size_t i = 0; value.is_array() && i < value.size(); ++i)
    collect(value[i], path / i, paths);
}

/// The definition leaves most of a template open: `name: 1` is a number wherever YAML is written.
TEST(RenderPodTest, MakesAPodOfEveryKindOfValueInATemplate) {
  const json whole = json::parse(R"({"metadata":{"labels":{"a":"b"},"annotations":{"c":"d"}},
      "spec":{"hostNetwork":true,"securityContext":{"fsGroup":1},
        "volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"ckpt"}}],
        "initContainers":[{"name":"fetch","image":"f"}],
        "containers":[{"name":"trainer","image":"","command":["c"],
          "securityContext":{"runAsUser":2},"ports":[{"name":"web","containerPort":80}],
          "env":[{"name":"A","value":"b"}],
          "volumeMounts":[{"name":"data","mountPath":"/data"}]}]}})");
  std::vector<json::json_pointer> paths;
  collect(whole, json::json_pointer(), paths);
  ASSERT_GT(paths.size(), 30U);
  const std::vector<json> values = {
      nullptr, true, 7, "x", json::array(), json::object(), json::array({7}), {{"name", 7}}};
  for (const char* spec : {kEngine, kInjected}) {
    api::TrainingJob job = job_of(spec);
    if (!job.spec.pod_template) job.spec.pod_template.emplace();
    for (const json::json_pointer& path : paths) {
      for (const json& value : values) {
        json changed = whole;
        changed[path] = value;
        job.spec.pod_template->json = changed.dump();
        EXPECT_NO_THROW(rendered(job, 0)) << path.to_string() << " is " << value.dump();
      }
    }
  }
}

TEST(RenderPodTest, UsesTheSchedulerAndPriorityOfTheJob) {
  const json pod = rendered(
      job_of(R"({"agent":"None","scheduling":{"schedulerName":"fast","priorityClassName":"high"},
                 "template":{"spec":{"containers":[{"name":"trainer","image":"t",
                                                    "command":["x"]}]}}})"),
      0);
  EXPECT_EQ(pod["spec"]["schedulerName"], "fast");
  EXPECT_EQ(pod["spec"]["priorityClassName"], "high");
}

TEST(RenderPodTest, PrefersOtherNodesThanThoseToAvoid) {
  const api::TrainingJob job = job_of(
      R"({"agent":"None","template":{"spec":{
            "affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":
              {"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Exists"}]}]}}},
            "containers":[{"name":"trainer","image":"t","command":["x"]}]}}})");
  control::PodSpec spec = control::make_pod_spec(job.metadata, job.spec, 0, 1, 1);
  spec.avoid_nodes = {"n1", "n2"};
  const json pod = render_pod(job.metadata, job.spec, spec, {});
  const json& affinity = pod["spec"]["affinity"]["nodeAffinity"];
  EXPECT_TRUE(affinity.contains("requiredDuringSchedulingIgnoredDuringExecution"));
  const json& wishes = affinity["preferredDuringSchedulingIgnoredDuringExecution"];
  ASSERT_EQ(wishes.size(), 1u);
  EXPECT_EQ(wishes[0]["weight"], 100);
  EXPECT_EQ(wishes[0]["preference"]["matchFields"],
            json::parse(R"([{"key":"metadata.name","operator":"NotIn","values":["n1"]},
                            {"key":"metadata.name","operator":"NotIn","values":["n2"]}])"));
}

TEST(RenderPodTest, ASpareHasNoIndexUntilItIsPromoted) {
  const api::TrainingJob job = job_of(kForeign);
  json pod = render_pod(job.metadata, job.spec,
                        control::make_spare_spec(job.metadata, job.spec, 4, 2, 3), {});
  EXPECT_EQ(pod["metadata"]["name"], control::spare_name("bert", "uid-1", 4));
  EXPECT_EQ(pod["spec"]["hostname"], "bert-spare");
  const json& labels = pod["metadata"]["labels"];
  EXPECT_EQ(labels["trainyard.dev/spare"], "4");
  EXPECT_EQ(labels["trainyard.dev/role"], "spare");
  for (const char* label : {"trainyard.dev/member", "trainyard.dev/node-index",
                            "batch.kubernetes.io/job-completion-index"})
    EXPECT_FALSE(labels.contains(label)) << label;
  pod["metadata"]["uid"] = "pod-uid";
  pod["metadata"]["resourceVersion"] = "1";
  auto view = cluster::view_of_pod(pod);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->seen.spare, 4);
  EXPECT_EQ(view->seen.node_index, -1);
  EXPECT_FALSE(view->seen.member);
  pod["metadata"]["labels"].update(member_labels(0));
  view = cluster::view_of_pod(pod);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->seen.node_index, 0);
  EXPECT_TRUE(view->seen.member);
  EXPECT_EQ(pod["metadata"]["labels"]["trainyard.dev/role"], "trainer");
  pod["metadata"]["labels"]["trainyard.dev/spare"] = "5";
  view = cluster::view_of_pod(pod);
  ASSERT_TRUE(view.has_value());
  EXPECT_FALSE(view->seen.member) << "its name is that of another";
}

// ---- Environment -------------------------------------------------------------------------------

}  // namespace
}  // namespace trainyard::render
