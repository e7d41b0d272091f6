#include "operator/cluster/views.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "control/exit_json.h"
#include "control/pod_spec.h"

namespace trainyard::cluster {
namespace {

using control::PodPhase;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json pod_of(const std::string& status, const std::string& more_metadata = "") {
  return json::parse(R"({"metadata":{"name":")" + control::pod_name("bert", "job-1", 1, 4) +
                     R"(","namespace":"ns","uid":"pod-1",
      "resourceVersion":"7","creationTimestamp":"2026-01-02T03:04:05Z",
      "labels":{"trainyard.dev/job-name":"bert","trainyard.dev/node-index":"1",
                "trainyard.dev/created-generation":"4","trainyard.dev/member":"true"},
      "ownerReferences":[{"apiVersion":"trainyard.dev/v1alpha1","kind":"TrainingJob","name":"bert",
                          "uid":"job-1","controller":true}])" +
                     more_metadata + R"(},"spec":{"nodeName":"n1","containers":[
      {"name":"istio"},{"name":"trainer"}]},"status":)" +
                     status + "}");
}

PodView view(const json& pod) {
  auto made = view_of_pod(pod);
  EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().message);
  return made ? *std::move(made) : PodView();
}

TEST(PodViewTest, KnowsItsWorkerImage) {
  json pod = pod_of(R"({"phase":"Running"})");
  EXPECT_EQ(view(pod).seen.worker_image, "");
  pod["spec"]["containers"][0]["image"] = "istio:1";
  pod["spec"]["containers"][1]["image"] = "train:1";
  EXPECT_EQ(view(pod).seen.worker_image, "train:1") << "of the trainer";
  pod["spec"]["initContainers"] = {{{"name", "fetch"}, {"image", "fetch:1"}},
                                   {{"name", "trainyard-agent"}, {"image", "worker:9"}}};
  EXPECT_EQ(view(pod).seen.worker_image, "worker:9") << "that brings the agent";
}

TEST(PodViewTest, TellsWhyAContainerDoesNotStart) {
  const auto waiting = [](const std::string& list, const std::string& reason) {
    return pod_of(R"({"phase":"Pending","startTime":"2026-01-02T03:04:05Z",")" + list +
                  R"(":[{"name":"c","state":{"waiting":{"reason":")" + reason +
                  R"(","message":"why"}}}]})");
  };
  for (const char* list : {"containerStatuses", "initContainerStatuses"}) {
    const auto found = view(waiting(list, "ErrImagePull")).seen.waiting;
    ASSERT_TRUE(found) << list;
    EXPECT_EQ(found->container, "c");
    EXPECT_EQ(found->reason, "ErrImagePull");
    EXPECT_EQ(found->message, "why");
    EXPECT_TRUE(found->since);
    for (const char* normal : {"ContainerCreating", "PodInitializing", "CrashLoopBackOff"})
      EXPECT_FALSE(view(waiting(list, normal)).seen.waiting) << normal;
  }
  const PodView pulls = view(waiting("containerStatuses", "ErrImagePull"));
  EXPECT_TRUE(same_to_plan(pulls, view(waiting("containerStatuses", "ImagePullBackOff"))));
  EXPECT_FALSE(same_to_plan(pulls, view(waiting("containerStatuses", "CreateContainerError"))));
  EXPECT_FALSE(same_to_plan(pulls, view(waiting("containerStatuses", "ContainerCreating"))));
  EXPECT_FALSE(same_to_plan(pulls, view(waiting("containerStatuses", "InvalidImageName"))));
}

TEST(PodViewTest, ReadsARunningPod) {
  const PodView pod = view(pod_of(
      R"({"phase":"Running","conditions":[{"type":"Ready","status":"True","reason":"x"}]})"));
  EXPECT_EQ(pod.job_uid, "job-1");
  EXPECT_EQ(pod.job_name, "bert");
  EXPECT_EQ(pod.seen.name, control::pod_name("bert", "job-1", 1, 4));
  EXPECT_EQ(pod.seen.uid, "pod-1");
  EXPECT_EQ(pod.seen.node, "n1");
  EXPECT_EQ(pod.seen.node_index, 1);
  EXPECT_EQ(pod.seen.created_generation, 4);
  EXPECT_TRUE(pod.seen.member);
  EXPECT_TRUE(pod.seen.ready);
  EXPECT_FALSE(pod.seen.terminating);
  EXPECT_EQ(pod.seen.phase, PodPhase::kRunning);
  EXPECT_TRUE(pod.seen.created_at.has_value());
  EXPECT_FALSE(pod.seen.exit.has_value());
}

TEST(PodViewTest, ReadsHowTheTrainerEnded) {
  const PodView pod = view(pod_of(R"({"phase":"Failed","containerStatuses":[
      {"name":"istio","state":{"terminated":{"exitCode":0}}},
      {"name":"trainer","state":{"terminated":{"exitCode":137,"reason":"OOMKilled",
        "message":"last words","finishedAt":"2026-01-02T03:04:05Z"}}}]})"));
  ASSERT_TRUE(pod.seen.exit.has_value());
  EXPECT_EQ(pod.seen.exit->container, "trainer");
  EXPECT_EQ(pod.seen.exit->exit_code, 137);
  EXPECT_EQ(pod.seen.exit->signal, 9) << "128 + 9";
  EXPECT_EQ(pod.seen.exit->reason, "OOMKilled");
  EXPECT_EQ(pod.seen.exit->message, "last words");
  EXPECT_TRUE(pod.seen.exit->finished_at.has_value());
  EXPECT_EQ(pod.seen.phase, PodPhase::kFailed);
}

/// What a kubelet keeps of an agent's last words.
TEST(PodViewTest, ReadsAllThatAnAgentSaidOfItsEnd) {
  control::ContainerExit told;
  told.exit_code = 143;
  told.rank = 3;
  told.last_step = 7;
  told.reason = "Error";
  told.message = "rank 3 was asked to end";
  for (const std::optional<bool> asked : {std::optional<bool>(), {true}, {false}}) {
    told.asked = asked;
    json status = json::parse(R"({"phase":"Failed","containerStatuses":[
        {"name":"trainer","state":{"terminated":{"exitCode":143,"reason":"Error"}}}]})");
    status["containerStatuses"][0]["state"]["terminated"]["message"] = control::to_line(told, 4096);
    const auto exit = view(pod_of(status.dump())).seen.exit;
    ASSERT_TRUE(exit);
    EXPECT_EQ(exit->exit_code, 143);
    EXPECT_EQ(exit->rank, 3);
    EXPECT_EQ(exit->last_step, 7);
    EXPECT_EQ(exit->message, "rank 3 was asked to end");
    EXPECT_EQ(exit->asked, asked);
  }
}

TEST(PodViewTest, ReadsWhichInitContainerFailed) {
  constexpr char kInit[] = R"("initContainerStatuses":[
      {"name":"mesh","state":{"running":{}}},
      {"name":"copy","state":{"terminated":{"exitCode":0}}},
      {"name":"fetch","state":{"terminated":{"exitCode":3,"reason":"Error","message":"no data",
        "finishedAt":"2026-01-02T03:04:05Z"}}}],
      "containerStatuses":[{"name":"trainer","state":{"waiting":{"reason":"PodInitializing"}}}]})";
  const PodView pod = view(pod_of(std::string(R"({"phase":"Failed",)") + kInit));
  EXPECT_EQ(pod.seen.phase, PodPhase::kFailed);
  ASSERT_TRUE(pod.seen.exit.has_value());
  EXPECT_EQ(pod.seen.exit->container, "fetch");
  EXPECT_EQ(pod.seen.exit->exit_code, 3);
  EXPECT_EQ(pod.seen.exit->message, "no data");
  EXPECT_TRUE(pod.seen.exit->finished_at.has_value());
  const PodView pending = view(pod_of(std::string(R"({"phase":"Pending",)") + kInit));
  EXPECT_FALSE(pending.seen.exit.has_value()) << "it may be begun again";
  EXPECT_EQ(pending.seen.phase, PodPhase::kPending);
  const PodView evicted =
      view(pod_of(std::string(R"({"phase":"Failed","reason":"Evicted","message":"low",)") + kInit));
  EXPECT_FALSE(evicted.seen.exit.has_value());
}

TEST(PodViewTest, ASidecarKeepsNoPodAlive) {
  const auto running_with = [](const char* exit_code) {
    return view(pod_of(std::string(R"({"phase":"Running","conditions":[
        {"type":"Ready","status":"True"}],"containerStatuses":[
        {"name":"istio","state":{"running":{}}},
        {"name":"trainer","state":{"terminated":{"exitCode":)") +
                       exit_code + "}}}]}"));
  };
  EXPECT_EQ(running_with("0").seen.phase, PodPhase::kSucceeded);
  EXPECT_EQ(running_with("3").seen.phase, PodPhase::kFailed);
  EXPECT_FALSE(running_with("3").seen.ready);
  EXPECT_TRUE(running_with("3").seen.lingers) << "it still holds its place";
  EXPECT_EQ(view(pod_of(R"({"phase":"Running","containerStatuses":[
      {"name":"istio","state":{"terminated":{"exitCode":1}}}]})"))
                .seen.phase,
            PodPhase::kRunning)
      << "another container's end is not the trainer's";
}

TEST(PodViewTest, TellsSinceWhenTheTrainerRuns) {
  const auto started_with = [](const char* state) {
    return view(pod_of(std::string(R"({"phase":"Running","containerStatuses":[
        {"name":"istio","state":{"running":{"startedAt":"2026-01-02T03:00:00Z"}}},
        {"name":"trainer","state":)") +
                       state + "}]}"))
        .seen.started_at;
  };
  EXPECT_EQ(started_with(R"({"running":{"startedAt":"2026-01-02T03:04:05Z"}})"),
            Time(std::chrono::seconds(1'767'323'045)));
  EXPECT_FALSE(started_with(R"({"waiting":{"reason":"PodInitializing"}})"));
  EXPECT_FALSE(started_with(R"({"terminated":{"exitCode":0,"startedAt":"2026-01-02T03:04:05Z"}})"));
}

TEST(PodViewTest, AnExitThatIsShownBeforeThePodsEndKeepsNoPlace) {
  const PodView pod = view(pod_of(R"({"phase":"Running","containerStatuses":[
      {"name":"trainer","state":{"terminated":{"exitCode":3}}},
      {"name":"istio","state":{"terminated":{"exitCode":0}}}]})"));
  EXPECT_EQ(pod.seen.phase, PodPhase::kFailed);
  EXPECT_FALSE(pod.seen.lingers) << "nothing of it runs, it stays for its log";
}

/// A running pod whose conditions Ready and ContainersReady, and whose trainer's `ready`, are so.
PodView ready_as(const char* pod, const char* containers, const char* trainer) {
  return view(pod_of(std::string(R"({"phase":"Running","conditions":[
      {"type":"ContainersReady","status":")") +
                     containers + R"("},{"type":"Ready","status":")" + pod +
                     R"("}],"containerStatuses":[
      {"name":"istio","ready":false,"state":{"terminated":{"exitCode":0}}},
      {"name":"trainer","ready":)" +
                     trainer + R"(,"state":{"running":{}}}]})"));
}

TEST(PodViewTest, ASidecarThatHasEndedLeavesThePodReady) {
  EXPECT_TRUE(ready_as("False", "False", "true").seen.ready);
  EXPECT_FALSE(ready_as("False", "False", "false").seen.ready) << "by its own probe";
  EXPECT_FALSE(ready_as("False", "True", "true").seen.ready) << "its node is lost";
  EXPECT_FALSE(ready_as("Unknown", "Unknown", "true").seen.ready);
}

PodView failed_with_trainer(const char* exit_code, const char* more) {
  return view(pod_of(std::string(R"({"phase":"Failed","containerStatuses":[
      {"name":"istio","state":{"terminated":{"exitCode":3}}},
      {"name":"trainer","state":{"terminated":{"exitCode":)") +
                     exit_code + "}}}]" + more + "}"));
}

TEST(PodViewTest, ATrainerThatEndedWellIsNotMadeAFailureByItsSidecar) {
  EXPECT_EQ(failed_with_trainer("0", "").seen.phase, PodPhase::kSucceeded);
  EXPECT_EQ(failed_with_trainer("1", "").seen.phase, PodPhase::kFailed);
  EXPECT_EQ(failed_with_trainer("0", R"(,"reason":"Evicted")").seen.phase, PodPhase::kFailed)
      << "it was asked to end";
  EXPECT_EQ(failed_with_trainer("0", R"(,"conditions":[
      {"type":"DisruptionTarget","status":"True"}])")
                .seen.phase,
            PodPhase::kFailed);
}

TEST(PodViewTest, ReadsHowSidecarsFailed) {
  const PodView pod = view(pod_of(R"({"phase":"Failed","containerStatuses":[
      {"name":"logs","state":{"terminated":{"exitCode":0}}},
      {"name":"istio","state":{"terminated":{"exitCode":3,"message":"no route"}}},
      {"name":"probe","state":{"running":{}}},
      {"name":"trainer","state":{"terminated":{"exitCode":1}}}]})"));
  EXPECT_EQ(pod.seen.exit->container, "trainer");
  ASSERT_EQ(pod.seen.sidecar_exits.size(), 1u);
  EXPECT_EQ(pod.seen.sidecar_exits[0].container, "istio");
  EXPECT_EQ(pod.seen.sidecar_exits[0].exit_code, 3);
  EXPECT_EQ(pod.seen.sidecar_exits[0].message, "no route");
}

TEST(PodViewTest, SaysWhatIsSaidOfAPodThatNeverRan) {
  const PodView pod =
      view(pod_of(R"({"phase":"Failed","reason":"Evicted","message":"low on memory"})"));
  EXPECT_FALSE(pod.seen.exit.has_value());
  EXPECT_EQ(pod.seen.message, "Evicted: low on memory");
}

TEST(PodViewTest, ADeletionTimestampIsTerminating) {
  EXPECT_TRUE(
      view(pod_of(R"({"phase":"Running"})", R"(,"deletionTimestamp":"2026-01-02T03:04:05Z")"))
          .seen.terminating);
}

TEST(PodViewTest, KeepsTheTextsOfConditionsThatPeopleAreTold) {
  const PodView pod = view(pod_of(R"({"phase":"Pending","conditions":[
      {"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"0/3 nodes"},
      {"type":"Initialized","status":"True","reason":"dropped","message":"dropped"}]})"));
  ASSERT_EQ(pod.seen.conditions.size(), 2u);
  EXPECT_EQ(pod.seen.conditions[0].message, "0/3 nodes");
  EXPECT_THAT(pod.seen.conditions[1].message, IsEmpty());
}

TEST(PodViewTest, KeepsTheNewestOfLongLastWords) {
  std::string words(5000, 'a');
  words += "THE END";
  json pod = pod_of(R"({"phase":"Failed","containerStatuses":[
      {"name":"trainer","state":{"terminated":{"exitCode":1}}}]})");
  pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = words;
  const PodView seen = view(pod);
  EXPECT_EQ(seen.seen.exit->message.size(), 1024u);
  EXPECT_TRUE(seen.seen.exit->message.ends_with("THE END"));
}

TEST(PodViewTest, TakesOddObjectsAsTheyAre) {
  for (const char* status : {"null", "[]", "3", R"({"containerStatuses":7,"conditions":"x"})",
                             R"({"containerStatuses":[null,1,{"name":3}]})"}) {
    EXPECT_EQ(view(pod_of(status)).seen.phase, PodPhase::kPending) << status;
  }
  EXPECT_FALSE(view_of_pod(json::parse(R"({"metadata":{"name":3}})")).has_value());
}

TEST(PodViewTest, APodWhoseLabelsContradictItsNameIsNoMemberOfAnyGeneration) {
  for (const auto& [label, text] : std::vector<std::pair<std::string, std::string>>{
           {"trainyard.dev/created-generation", "9223372036854775806"},
           {"trainyard.dev/created-generation", "5"},
           {"trainyard.dev/created-generation", ""},
           {"trainyard.dev/node-index", "0"},
           {"trainyard.dev/node-index", "-1"},
           {"trainyard.dev/node-index", "4294967297"},
           {"trainyard.dev/node-index", "99999999999999999999"}}) {
    json pod = pod_of("{}");
    pod["metadata"]["labels"][label] = text;
    const control::ObservedPod seen = view(pod).seen;
    EXPECT_FALSE(seen.member) << label << " " << text;
    EXPECT_EQ(seen.created_generation, 0) << label << " " << text;
    EXPECT_GE(seen.node_index, -1) << label << " " << text;
  }
  json foreign = pod_of("{}");
  foreign["metadata"]["ownerReferences"][0]["uid"] = "job-2";
  EXPECT_FALSE(view(foreign).seen.member) << "a name of another job's";
}

TEST(PodViewTest, AnOwnerThatDoesNotControlIsNone) {
  json pod = pod_of("{}");
  pod["metadata"]["ownerReferences"][0]["controller"] = false;
  EXPECT_THAT(view(pod).job_uid, IsEmpty());
  pod["metadata"]["ownerReferences"][0]["controller"] = true;
  pod["metadata"]["ownerReferences"][0]["kind"] = "Job";
  EXPECT_THAT(view(pod).job_uid, IsEmpty());
}

TEST(PodViewTest, NoiseIsTheSameToPlanAndNewsIsNot) {
  const json quiet = pod_of(R"({"phase":"Running"})");
  json noise = quiet;
  noise["metadata"]["resourceVersion"] = "8";
  noise["status"]["hostIP"] = "192.0.2.1";
  EXPECT_TRUE(same_to_plan(view(quiet), view(noise)));
  json news = quiet;
  news["status"]["phase"] = "Failed";
  EXPECT_FALSE(same_to_plan(view(quiet), view(news)));
  news = quiet;
  news["status"]["podIP"] = "10.0.0.1";
  EXPECT_FALSE(same_to_plan(view(quiet), view(news))) << "its name leads there";
  news = quiet;
  news["metadata"]["labels"].erase("trainyard.dev/member");
  EXPECT_FALSE(same_to_plan(view(quiet), view(news)));
  news = quiet;
  news["status"]["conditions"] = json::array({{{"type", "Ready"}, {"status", "True"}}});
  EXPECT_FALSE(same_to_plan(view(quiet), view(news)));
  news = quiet;
  news["status"]["containerStatuses"] =
      json::array({{{"name", "istio"}, {"state", {{"terminated", {{"exitCode", 3}}}}}}});
  EXPECT_FALSE(same_to_plan(view(quiet), view(news))) << "a rule may name it";
  news = quiet;
  news["metadata"]["uid"] = "pod-2";
  EXPECT_FALSE(same_to_plan(view(quiet), view(news))) << "another pod of the name";
  news = quiet;
  news["metadata"]["ownerReferences"][0]["uid"] = "job-2";
  EXPECT_FALSE(same_to_plan(view(quiet), view(news))) << "another job's";
}

// ---- Jobs and nodes ----------------------------------------------------------------------------

TEST(JobViewTest, ReadsAStoredJob) {
  const auto job = view_of_job(json::parse(R"({"apiVersion":"trainyard.dev/v1alpha1",
      "kind":"TrainingJob","metadata":{"name":"a","namespace":"ns","uid":"u","generation":3,
      "resourceVersion":"9","ownerReferences":[{"kind":"X"}]},
      "spec":{"agent":"None","numNodes":2,"template":{"spec":{"containers":[
        {"name":"trainer","image":"i","command":["c"]}]}}},
      "status":{"membership":{"generation":5}}})"));
  ASSERT_TRUE(job.has_value());
  EXPECT_THAT(job->faults, IsEmpty());
  EXPECT_EQ(job->job.spec.num_nodes, 2);
  EXPECT_EQ(job->job.metadata.generation, 3);
  EXPECT_EQ(job->job.metadata.resource_version, "9");
  EXPECT_EQ(job->job.status.membership.generation, 5);
}

/// The operator adds them to pods whose template names none: a node without them has no room.
TEST(JobViewTest, TheGpusOfItsRanksAreAmongWhatItsPodsNeed) {
  const auto gpus = [](const std::string& device, const std::string& more) {
    const auto job = view_of_job(json::parse(R"({"apiVersion":"trainyard.dev/v1alpha1",
        "kind":"TrainingJob","metadata":{"name":"a","namespace":"ns","uid":"u","resourceVersion":"9"},
        "spec":{"numProcPerNode":4,"engine":{"device":")" +
                                             device + R"(","model":{"family":"GPT2","layers":1,
        "hidden":64,"heads":1,"vocab":100,"maxPositions":16},"data":{"tokens":["/d"],
        "sequenceLength":16},"batch":{"globalSequences":4},"steps":1})" +
                                             more + "}}"));
    EXPECT_THAT(job->faults, IsEmpty());
    const auto found = job->needs.requests.find("nvidia.com/gpu");
    return found == job->needs.requests.end() ? 0 : found->second / 1000;
  };
  constexpr char kNone[] =
      R"(,"template":{"spec":{"containers":[{"name":"trainer","image":"i"}]}})";
  EXPECT_EQ(gpus("Cuda", kNone), 4);
  EXPECT_EQ(gpus("Cuda", ""), 4);
  EXPECT_EQ(gpus("Cpu", kNone), 0);
  EXPECT_EQ(gpus("Auto", kNone), 0);
  EXPECT_EQ(gpus("Cuda", R"(,"template":{"spec":{"containers":[{"name":"side","image":"i"},
      {"name":"trainer","image":"i","resources":{"limits":{"nvidia.com/gpu":4}}}]}})"),
            4)
      << "the template's, once";
}

TEST(JobViewTest, KnowsWhichWorkerImageItsPodsHave) {
  using render::WorkerImage;
  const auto image_of = [](const std::string& spec) {
    const auto job = view_of_job(json::parse(R"({"apiVersion":"trainyard.dev/v1alpha1",
        "kind":"TrainingJob","metadata":{"name":"a","namespace":"ns","uid":"u","resourceVersion":"9"},
        "spec":)" + spec + "}"));
    EXPECT_THAT(job->faults, IsEmpty());
    return job->image;
  };
  const auto engine = [&](const std::string& device, const std::string& trainer) {
    return image_of(R"({"engine":{"device":")" + device + R"(","model":{"family":"GPT2","layers":1,
        "hidden":64,"heads":1,"vocab":100,"maxPositions":16},"data":{"tokens":["/d"],
        "sequenceLength":16},"batch":{"globalSequences":4},"steps":1},
        "template":{"spec":{"containers":[{"name":"trainer")" +
                    trainer + "}]}}}");
  };
  EXPECT_EQ(engine("Cpu", ""), WorkerImage::kCpu);
  EXPECT_EQ(engine("Cuda", ""), WorkerImage::kGpu);
  EXPECT_EQ(engine("Auto", R"(,"resources":{"limits":{"nvidia.com/gpu":1}})"), WorkerImage::kGpu);
  EXPECT_EQ(engine("Cuda", R"(,"image":"mine:1")"), WorkerImage::kNone);
  const std::string program = R"("template":{"spec":{"containers":[{"name":"trainer","image":"i",
      "command":["x"]}]}}})";
  EXPECT_EQ(image_of(R"({"numProcPerNode":2,)" + program), WorkerImage::kCpu) << "of the agent";
  EXPECT_EQ(image_of(R"({"agent":"None",)" + program), WorkerImage::kNone);
}

/// Else its status would be written again and again: what was written would never be seen.
TEST(JobViewTest, ASpecThatCannotBeReadCostsTheJobNoStatus) {
  json object = json::parse(R"({"apiVersion":"trainyard.dev/v1alpha1",
      "kind":"TrainingJob","metadata":{"name":"a","namespace":"ns","uid":"u","resourceVersion":"1"},
      "spec":{"agent":"None","template":{"spec":{"containers":[
        {"name":"trainer","image":"i","command":["c"]}]}}},
      "status":{"membership":{"generation":5},"conditions":[
        {"type":"Accepted","status":"False","reason":"InvalidSpec","message":"m",
         "lastTransitionTime":"2026-01-02T03:04:05Z"}]}})");
  json deep = json::array();
  for (int i = 0; i < 80; ++i)
    deep = json::array({deep});
  const std::vector<std::pair<const char*, json>> unreadable = {
      {"deep", deep}, {"large", std::string(2 << 20, 'x')}, {"NUL", std::string(1, '\0')}};
  for (const auto& [what, value] : unreadable) {
    object["spec"]["template"]["spec"]["affinity"] = value;
    const auto job = view_of_job(object);
    ASSERT_TRUE(job.has_value()) << what;
    EXPECT_FALSE(job->faults.empty()) << what;
    EXPECT_EQ(job->job.status.membership.generation, 5) << what;
    ASSERT_EQ(job->job.status.conditions.size(), 1U) << what;
    EXPECT_EQ(job->job.status.conditions[0].reason, "InvalidSpec") << what;
  }
}

/// Nothing restarts a job whose spec is invalid: one that runs is none for a label that earlier
/// operators passed over.
TEST(JobViewTest, AQueueOfKueuesIsAFaultOfJobsThatHaveNotBegun) {
  const auto faults = [](int64_t generation) {
    return view_of_job(
               {{"apiVersion", "trainyard.dev/v1alpha1"},
                {"kind", "TrainingJob"},
                {"metadata",
                 {{"name", "a"},
                  {"namespace", "ns"},
                  {"uid", "u"},
                  {"resourceVersion", "9"},
                  {"labels", {{"kueue.x-k8s.io/queue-name", "team"}}}}},
                {"spec",
                 {{"template",
                   {{"spec",
                     {{"containers", json::array({{{"name", "trainer"},
                                                   {"image", "i"},
                                                   {"command", json::array({"c"})}}})}}}}}}},
                {"status", {{"membership", {{"generation", generation}}}}}})
        ->faults;
  };
  ASSERT_EQ(faults(0).size(), 1U);
  EXPECT_THAT(faults(0)[0], HasSubstr("metadata.labels.kueue.x-k8s.io/queue-name"));
  EXPECT_THAT(faults(1), IsEmpty());
}

TEST(JobViewTest, WhatCannotBeIsAFaultThatNamesTheField) {
  const auto job = view_of_job(json::parse(R"({"apiVersion":"trainyard.dev/v1alpha1",
      "kind":"TrainingJob","metadata":{"name":"a","namespace":"ns","uid":"u","resourceVersion":"1"},
      "spec":{"numNodes":0,"template":{"spec":{"containers":[
        {"name":"trainer","image":"i","command":["c"]}]}}}})"));
  ASSERT_TRUE(job.has_value());
  ASSERT_FALSE(job->faults.empty());
  EXPECT_THAT(job->faults.front(), HasSubstr("spec.numNodes"));
  EXPECT_EQ(job->job.metadata.uid, "u") << "it can be told whom it concerns";
}

TEST(NodeViewTest, ReadyAndOpenForPodsAreTwoThings) {
  const auto node = [](const std::string& spec, const std::string& ready) {
    return *view_of_node(
        json::parse(R"({"metadata":{"name":"n1","uid":"u","resourceVersion":"1"},"spec":)" + spec +
                    R"(,"status":{"conditions":[{"type":"Ready","status":")" + ready + R"("}]}})"));
  };
  EXPECT_TRUE(node("{}", "True").ready);
  EXPECT_TRUE(node("{}", "True").open);
  EXPECT_FALSE(node("{}", "Unknown").ready);
  EXPECT_FALSE(node("{}", "False").open);
  EXPECT_FALSE(node(R"({"unschedulable":true})", "True").open);
  EXPECT_TRUE(node(R"({"unschedulable":true})", "True").ready);
  EXPECT_EQ(node(R"({"taints":[{"key":"x","effect":"NoExecute"}]})", "True").taints.size(), 1u);
  EXPECT_THAT(node(R"({"taints":[{"key":"x","effect":"PreferNoSchedule"}]})", "True").taints,
              IsEmpty());
}

}  // namespace
}  // namespace trainyard::cluster
