#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "agent/agent_options.h"
#include "agent/bundle.h"
#include "common/api/decode.h"
#include "common/api/validate.h"
#include "control/membership.h"
#include "operator/cluster/views.h"
#include "operator/render/companions.h"
#include "operator/render/environment.h"
#include "operator/render/names.h"
#include "operator/render/pod.h"

namespace trainyard::render {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::ElementsAre;
using testing::Not;

/// A job as it comes back from the API server.
api::TrainingJob job_of(const std::string& spec) {
  auto job =
      api::decode_training_job(R"({"apiVersion":"trainyard.dev/v1alpha1","kind":"TrainingJob",
    "metadata":{"name":"bert","namespace":"team-a","uid":"uid-1"},"spec":)" +
                               spec + "}");
  EXPECT_TRUE(job.has_value()) << (job ? "" : job.error().message);
  return job ? *std::move(job) : api::TrainingJob();
}

constexpr char kForeign[] = R"({"numNodes":3,"agent":"None","rendezvous":{"port":1234},
  "template":{"metadata":{"labels":{"team":"a"},"annotations":{"note":"x"}},"spec":{
    "nodeSelector":{"gpu":"yes"},
    "containers":[{"name":"sidecar","image":"log:1"},
                  {"name":"trainer","image":"train:1","command":["python","t.py"],
                   "env":[{"name":"HF_HOME","value":"/hf"}],
                   "resources":{"limits":{"nvidia.com/gpu":1}}}]}}})";

constexpr char kEngine[] = R"({"numNodes":2,"numProcPerNode":4,
  "engine":{"task":"CausalLM","model":{"preset":"gpt2-124m"},
            "data":{"tokens":["/data/a.tok"],"sequenceLength":128},
            "batch":{"globalSequences":8,"microSequences":1},"steps":10},
  "checkpointPolicy":{"storage":{"persistentVolumeClaim":{"claimName":"ckpt"}},"path":"runs/1"}})";

/// Two processes of a program of its own in each pod.
constexpr char kInjected[] = R"({"numNodes":2,"numProcPerNode":2,
  "checkpointPolicy":{"preemptionCheckpointSeconds":45},
  "template":{"spec":{
    "initContainers":[{"name":"fetch","image":"fetch:1"}],
    "containers":[{"name":"trainer","image":"train:1","command":["python","-u","t.py"],
                   "args":["--fast"]}]}}})";

control::PodSpec pod_of(const api::TrainingJob& job, int index, int64_t generation = 2) {
  return control::make_pod_spec(job.metadata, job.spec, index, generation, job.spec.num_nodes);
}

json rendered(const api::TrainingJob& job, int index, int64_t generation = 2) {
  return render_pod(job.metadata, job.spec, pod_of(job, index, generation),
                    {"worker:9", "control:9443"});
}

const json& trainer_of(const json& pod) {
  return pod["spec"]["containers"][trainer_index(pod["spec"])];
}

std::map<std::string, std::string> environment(const json& pod) {
  std::map<std::string, std::string> variables;
  for (const json& entry : trainer_of(pod)["env"])
    variables[entry["name"]] = entry.value("value", "");
  return variables;
}

TEST(RenderPodTest, KeepsWhatTheTemplateSays) {
  const json pod = rendered(job_of(kForeign), 1);
  EXPECT_EQ(pod["metadata"]["labels"]["team"], "a");
  EXPECT_EQ(pod["metadata"]["annotations"]["note"], "x");
  EXPECT_EQ(pod["spec"]["nodeSelector"]["gpu"], "yes");
  EXPECT_EQ(pod["spec"]["containers"][0], (json{{"name", "sidecar"}, {"image", "log:1"}}));
  EXPECT_EQ(trainer_of(pod)["image"], "train:1");
  EXPECT_EQ(trainer_of(pod)["resources"]["limits"]["nvidia.com/gpu"], 1);
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

// ---- Environment -------------------------------------------------------------------------------

TEST(EnvironmentTest, NamesTorchrunsWorldOfAForeignImage) {
  const auto variables = environment(rendered(job_of(kForeign), 2));
  EXPECT_EQ(variables.at("PET_NNODES"), "3");
  EXPECT_EQ(variables.at("PET_NODE_RANK"), "2");
  EXPECT_EQ(variables.at("PET_NPROC_PER_NODE"), "1");
  EXPECT_EQ(variables.at("PET_MASTER_ADDR"), "bert-0.bert.team-a.svc");
  EXPECT_EQ(variables.at("PET_MASTER_PORT"), "1234");
  EXPECT_EQ(variables.at("MASTER_ADDR"), "bert-0.bert.team-a.svc");
  EXPECT_EQ(variables.at("MASTER_PORT"), "1234");
  EXPECT_EQ(variables.at("PET_RDZV_ENDPOINT"), "bert-0.bert.team-a.svc:1234");
  EXPECT_EQ(variables.at("PET_MAX_RESTARTS"), "0");
  EXPECT_EQ(variables.at("HF_HOME"), "/hf");
}

TEST(EnvironmentTest, CountsRanksOnlyWhereAPodIsOne) {
  const auto single = environment(rendered(job_of(kForeign), 2));
  EXPECT_EQ(single.at("RANK"), "2");
  EXPECT_EQ(single.at("WORLD_SIZE"), "3");
  EXPECT_EQ(single.at("LOCAL_RANK"), "0");
  EXPECT_EQ(single.at("LOCAL_WORLD_SIZE"), "1");
  EXPECT_EQ(single.at("TORCHELASTIC_RESTART_COUNT"), "1") << "generation 2";
  const auto many = environment(
      rendered(job_of(R"({"numNodes":3,"numProcPerNode":8,"agent":"None","template":{"spec":{
          "containers":[{"name":"trainer","image":"t","command":["torchrun","t.py"]}]}}})"),
               2));
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
    EXPECT_FALSE(many.contains(name)) << name;
  EXPECT_EQ(many.at("PET_NPROC_PER_NODE"), "8");
}

TEST(AgentTest, APodOfAnEngineKnowsItsCoordinatorAndIsKnownByIt) {
  const api::TrainingJob job = job_of(kEngine);
  const json pod = rendered(job, 1);
  const auto variables = environment(pod);
  EXPECT_EQ(variables.at("TRAINYARD_CONTROL_ADDRESS"), "control:9443");
  EXPECT_EQ(variables.at("TRAINYARD_CONTROL_TOKEN"), "/var/run/trainyard/control/token");
  EXPECT_EQ(variables.at("TRAINYARD_CONTROL_AUTHORITIES"), "/var/run/trainyard/control/ca.crt");
  EXPECT_EQ(variables.at("TRAINYARD_TERMINATION_LOG"), trainer_of(pod)["terminationMessagePath"]);
  json sources;
  for (const json& volume : pod["spec"]["volumes"]) {
    if (volume["name"] == "trainyard-control") sources = volume["projected"]["sources"];
  }
  ASSERT_EQ(sources.size(), 2U);
  EXPECT_EQ(sources[0]["serviceAccountToken"]["audience"], kControlAudience);
  EXPECT_EQ(sources[1]["configMap"]["name"], control_config_name(job.metadata));
  EXPECT_EQ(pod["spec"]["automountServiceAccountToken"], false);
}

TEST(AgentTest, AProgramOfItsOwnGetsNeitherTokenNorAddress) {
  const json pod = rendered(job_of(kForeign), 1);
  EXPECT_FALSE(environment(pod).contains("TRAINYARD_CONTROL_ADDRESS"));
  for (const json& volume : pod["spec"]["volumes"])
    EXPECT_NE(volume["name"], "trainyard-control");
}

TEST(InjectedAgentTest, StartsTheContainersCommand) {
  const json pod = rendered(job_of(kInjected), 0);
  EXPECT_EQ(trainer_of(pod)["image"], "train:1");
  EXPECT_EQ(trainer_of(pod)["command"],
            json({std::string(kAgentFolder) + "/" + agent::kBundleStarter, "--", "python", "-u",
                  "t.py"}));
  EXPECT_EQ(trainer_of(pod)["args"], json({"--fast"})) << "they follow the command";
}

TEST(InjectedAgentTest, IsBroughtByTheWorkersImageBeforeAllElse) {
  const json pod = rendered(job_of(kInjected), 0);
  const json& spec = pod["spec"];
  ASSERT_EQ(spec["initContainers"].size(), 2U);
  EXPECT_EQ(spec["initContainers"][1]["name"], "fetch");
  const json& bringer = spec["initContainers"][0];
  EXPECT_EQ(bringer["image"], "worker:9");
  EXPECT_EQ(bringer["args"], json({"install", kAgentFolder}));
  EXPECT_THAT(spec["volumes"],
              Contains(json{{"name", "trainyard-agent"}, {"emptyDir", json::object()}}));
  EXPECT_THAT(bringer["volumeMounts"],
              ElementsAre(json{{"name", "trainyard-agent"}, {"mountPath", kAgentFolder}}));
  EXPECT_THAT(
      trainer_of(pod)["volumeMounts"],
      Contains(json{{"name", "trainyard-agent"}, {"mountPath", kAgentFolder}, {"readOnly", true}}));
}

/// Whatever namespace the job is in, its own containers are what may be refused.
TEST(InjectedAgentTest, ItsBringerMeetsTheRestrictedStandardAndEveryQuota) {
  const json pod = rendered(job_of(kInjected), 0);
  const json& bringer = pod["spec"]["initContainers"][0];
  const json& security = bringer["securityContext"];
  EXPECT_EQ(security["runAsNonRoot"], true);
  EXPECT_EQ(security["allowPrivilegeEscalation"], false);
  EXPECT_EQ(security["capabilities"]["drop"], json({"ALL"}));
  EXPECT_EQ(security["seccompProfile"]["type"], "RuntimeDefault");
  EXPECT_TRUE(bringer["resources"]["requests"].contains("memory"));
  EXPECT_EQ(bringer["resources"]["requests"], bringer["resources"]["limits"])
      << "a pod that is Guaranteed stays so";
  EXPECT_FALSE(pod["spec"].contains("securityContext")) << "nothing is known of the other image";
}

TEST(InjectedAgentTest, KnowsItsCoordinatorAndLeavesRanksToTheAgent) {
  const json pod = rendered(job_of(kInjected), 1);
  const auto variables = environment(pod);
  EXPECT_EQ(variables.at("TRAINYARD_CONTROL_ADDRESS"), "control:9443");
  EXPECT_EQ(variables.at("TRAINYARD_TERMINATION_LOG"), trainer_of(pod)["terminationMessagePath"]);
  EXPECT_EQ(variables.at("TRAINYARD_STOP_GRACE_SECONDS"), "45");
  EXPECT_EQ(variables.at("MASTER_ADDR"), "bert-0.bert.team-a.svc");
  EXPECT_EQ(variables.at("PET_NPROC_PER_NODE"), "2");
  // A pod's number in place of a rank's would be wrong.
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "JAX_NUM_PROCESSES",
                           "JAX_PROCESS_ID", "TRAINYARD_ENGINE_CONFIG"})
    EXPECT_FALSE(variables.contains(name)) << name;
}

/// The starter keeps them from the agent; here they may be referred to by others.
TEST(InjectedAgentTest, LeavesVariablesOfTheLoaderAsTheyAre) {
  const auto variables = environment(rendered(job_of(R"({"numProcPerNode":2,"template":{"spec":{
      "containers":[{"name":"trainer","image":"t","command":["python"],
        "env":[{"name":"LD_PRELOAD","value":"libtcmalloc.so.4"}]}]}}})"),
                                              0));
  EXPECT_EQ(variables.at("LD_PRELOAD"), "libtcmalloc.so.4");
}

TEST(InjectedAgentTest, AutoMeansAnAgentOnlyWhereAPodIsMoreThanOneRank) {
  const auto injected = [](const std::string& sizes) {
    const json pod = rendered(job_of("{" + sizes + R"("template":{"spec":{"containers":[
        {"name":"trainer","image":"t","command":["x"]}]}}})"),
                              0);
    EXPECT_EQ(pod["spec"].contains("initContainers"), trainer_of(pod)["command"].size() > 1);
    return pod["spec"].contains("initContainers");
  };
  EXPECT_TRUE(injected(R"("numProcPerNode":2,)"));
  EXPECT_TRUE(injected(R"("numProcPerNode":"auto",)"));
  EXPECT_FALSE(injected(R"("numProcPerNode":1,)"));
  EXPECT_FALSE(injected(R"("numProcPerNode":2,"agent":"None",)"));
}

TEST(EnvironmentTest, NamesJaxsProcesses) {
  const auto variables = environment(rendered(job_of(kForeign), 2));
  EXPECT_EQ(variables.at("JAX_COORDINATOR_ADDRESS"), "bert-0.bert.team-a.svc:1234");
  EXPECT_EQ(variables.at("JAX_NUM_PROCESSES"), "3");
  EXPECT_EQ(variables.at("JAX_PROCESS_ID"), "2");
}

TEST(EnvironmentTest, SetsNothingButReservedNames) {
  for (const char* spec : {kForeign, kEngine, kInjected}) {
    const api::TrainingJob job = job_of(spec);
    for (const json& entry :
         environment_of(job.metadata, job.spec, pod_of(job, 1), {"worker:9", "control:1"}))
      EXPECT_TRUE(api::is_reserved_env(entry["name"].get<std::string>())) << entry;
  }
}

TEST(EnvironmentTest, SetsEachNameOnce) {
  for (const char* spec : {kForeign, kEngine, kInjected}) {
    std::map<std::string, int> times;
    const json pod = rendered(job_of(spec), 1);
    for (const json& entry : trainer_of(pod)["env"])
      ++times[entry["name"]];
    for (const auto& [name, count] : times)
      EXPECT_EQ(count, 1) << name;
  }
}

/// The other side of the contract: what reads these variables in the pod.
TEST(EnvironmentTest, IsWhatThePodsSupervisorReads) {
  auto variables = environment(rendered(job_of(kEngine), 1, 3));
  variables["TRAINYARD_POD_UID"] = "pod-uid";               // of the downward API
  variables["TRAINYARD_CONTROL_ADDRESS"] = "control:7000";  // of whoever serves the stream
  const auto options = agent::read_agent_options(
      {},
      [&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      "/usr/bin/trainyard-agent");
  ASSERT_TRUE(options.has_value()) << options.error().message;
  EXPECT_EQ(options->job_name, "bert");
  EXPECT_EQ(options->job_uid, "uid-1");
  EXPECT_EQ(options->node_index, 1);
  EXPECT_EQ(options->generation, 3);
  EXPECT_EQ(options->pod_name, control::pod_name("bert", "uid-1", 1, 3));
  EXPECT_EQ(options->stop_grace, std::chrono::seconds(60));
}

// ---- The engine's pods -------------------------------------------------------------------------

TEST(RenderEngineTest, MakesAWorkerPodWhereThereIsNoTemplate) {
  const api::TrainingJob job = job_of(kEngine);
  const json pod = rendered(job, 0);
  EXPECT_EQ(trainer_of(pod)["name"], "trainer");
  EXPECT_EQ(trainer_of(pod)["image"], "worker:9");
  EXPECT_EQ(pod["spec"]["securityContext"]["runAsNonRoot"], true);
  EXPECT_EQ(trainer_of(pod)["securityContext"]["allowPrivilegeEscalation"], false);
  EXPECT_THAT(trainer_of(pod)["securityContext"]["capabilities"]["drop"], ElementsAre("ALL"));
  const auto variables = environment(pod);
  EXPECT_EQ(variables.at("TRAINYARD_ENGINE_CONFIG"), "/etc/trainyard/engine.json");
  EXPECT_EQ(variables.at("TRAINYARD_CHECKPOINT_POLICY"), "/etc/trainyard/checkpoint-policy.json");
  EXPECT_EQ(variables.at("TRAINYARD_CHECKPOINT_DIR"), "/var/lib/trainyard/checkpoints/runs/1");
  EXPECT_FALSE(variables.contains("RANK")) << "the agent starts the ranks";
  const std::string config = engine_config_name(job.metadata, job.spec);
  EXPECT_THAT(pod["spec"]["volumes"],
              Contains(json{{"name", "trainyard-engine"}, {"configMap", {{"name", config}}}}));
  EXPECT_THAT(pod["spec"]["volumes"],
              Contains(json{{"name", "trainyard-checkpoints"},
                            {"persistentVolumeClaim", {{"claimName", "ckpt"}}}}));
}

TEST(RenderEngineTest, AClaimWithDataAndCheckpointsIsOneVolume) {
  api::TrainingJob job = job_of(kEngine);
  job.spec.pod_template.emplace();
  job.spec.pod_template->json = R"({"spec":{
      "containers":[{"name":"trainer","volumeMounts":[
          {"name":"data","mountPath":"/data","subPath":"data","readOnly":true}]}],
      "volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"ckpt"}}]}})";
  const json pod = rendered(job, 0);
  int volumes = 0;
  for (const json& volume : pod["spec"]["volumes"])
    volumes += volume.contains("persistentVolumeClaim") ? 1 : 0;
  EXPECT_EQ(volumes, 1) << "a kubelet waits for the second one of a claim for ever";
  EXPECT_THAT(trainer_of(pod)["volumeMounts"],
              Contains(json{{"name", "data"}, {"mountPath", "/var/lib/trainyard/checkpoints"}}));
}

TEST(RenderEngineTest, TheConfigMapHoldsWhatTheWorkerReads) {
  const api::TrainingJob job = job_of(kEngine);
  const json config = render_engine_config(job.metadata, job.spec);
  EXPECT_EQ(config["immutable"], true);
  EXPECT_EQ(config["metadata"]["name"], engine_config_name(job.metadata, job.spec));
  const auto engine = api::decode_engine(config["data"]["engine.json"].get<std::string>());
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  EXPECT_EQ(*engine, *job.spec.engine);
  const auto policy =
      api::decode_checkpoint_policy(config["data"]["checkpoint-policy.json"].get<std::string>());
  ASSERT_TRUE(policy.has_value()) << policy.error().message;
  EXPECT_EQ(*policy, job.spec.checkpoint_policy);
}

TEST(RenderEngineTest, AChangedEngineIsAnotherConfigMap) {
  api::TrainingJob job = job_of(kEngine);
  const std::string before = engine_config_name(job.metadata, job.spec);
  EXPECT_EQ(before, engine_config_name(job.metadata, job.spec));
  EXPECT_TRUE(before.starts_with("bert-engine-")) << before;
  job.spec.engine->steps = 11;
  EXPECT_NE(engine_config_name(job.metadata, job.spec), before);
  job.spec.engine->steps = 10;
  job.spec.checkpoint_policy.keep_last = 9;
  EXPECT_NE(engine_config_name(job.metadata, job.spec), before);
}

// ---- Companions --------------------------------------------------------------------------------

TEST(CompanionsTest, TheServiceResolvesMembersBeforeTheyAreReady) {
  const api::TrainingJob job = job_of(kForeign);
  const json service = render_service(job.metadata, job.spec);
  EXPECT_EQ(service["metadata"]["name"], "bert");
  EXPECT_EQ(service["spec"]["clusterIP"], "None");
  EXPECT_EQ(service["spec"]["publishNotReadyAddresses"], true);
  const json selector = service["spec"]["selector"];
  EXPECT_EQ(selector, (json{{"trainyard.dev/job-uid", "uid-1"}, {"trainyard.dev/member", "true"}}));
  for (const auto& [key, value] : selector.items())
    EXPECT_EQ(rendered(job, 0)["metadata"]["labels"][key], value);
}

TEST(CompanionsTest, TheBudgetLetsOnePodBeEvicted) {
  const api::TrainingJob job = job_of(kForeign);
  const json budget = render_disruption_budget(job.metadata, 3);
  EXPECT_EQ(budget["spec"]["minAvailable"], 2);
  EXPECT_EQ(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
  EXPECT_EQ(budget["metadata"]["ownerReferences"][0]["uid"], "uid-1");
}

}  // namespace
}  // namespace trainyard::render
