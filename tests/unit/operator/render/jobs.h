// Jobs as the tests of render/ have them, and what is made of them.
#pragma once

#include <map>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/api/decode.h"
#include "control/membership.h"
#include "operator/render/pod.h"

namespace trainyard::render {

/// A job as it comes back from the API server.
inline api::TrainingJob job_of(const std::string& spec) {
  auto job =
      api::decode_training_job(R"({"apiVersion":"trainyard.dev/v1alpha1","kind":"TrainingJob",
    "metadata":{"name":"bert","namespace":"team-a","uid":"uid-1"},"spec":)" +
                               spec + "}");
  EXPECT_TRUE(job.has_value()) << (job ? "" : job.error().message);
  return job ? *std::move(job) : api::TrainingJob();
}

inline constexpr char kForeign[] = R"({"numNodes":3,"agent":"None","rendezvous":{"port":1234},
  "template":{"metadata":{"labels":{"team":"a"},"annotations":{"note":"x"}},"spec":{
    "nodeSelector":{"gpu":"yes"},
    "containers":[{"name":"sidecar","image":"log:1"},
                  {"name":"trainer","image":"train:1","command":["python","t.py"],
                   "env":[{"name":"HF_HOME","value":"/hf"}],
                   "resources":{"limits":{"nvidia.com/gpu":1}}}]}}})";

inline constexpr char kEngine[] = R"({"numNodes":2,"numProcPerNode":4,
  "engine":{"task":"CausalLM","model":{"preset":"gpt2-124m"},
            "data":{"tokens":["/data/a.tok"],"sequenceLength":128},
            "batch":{"globalSequences":8,"microSequences":1},"steps":10},
  "checkpointPolicy":{"storage":{"persistentVolumeClaim":{"claimName":"ckpt"}},"path":"runs/1"}})";

/// Two processes of a program of its own in each pod.
inline constexpr char kInjected[] = R"({"numNodes":2,"numProcPerNode":2,
  "checkpointPolicy":{"preemptionCheckpointSeconds":45},
  "template":{"spec":{
    "initContainers":[{"name":"fetch","image":"fetch:1"}],
    "containers":[{"name":"trainer","image":"train:1","command":["python","-u","t.py"],
                   "args":["--fast"]}]}}})";

inline control::PodSpec pod_of(const api::TrainingJob& job, int index, int64_t generation = 2) {
  return control::make_pod_spec(job.metadata, job.spec, index, generation, job.spec.num_nodes);
}

inline nlohmann::json rendered(const api::TrainingJob& job, int index, int64_t generation = 2) {
  return render_pod(job.metadata, job.spec, pod_of(job, index, generation),
                    {"worker:9", "control:9443"});
}

inline const nlohmann::json& trainer_of(const nlohmann::json& pod) {
  return pod["spec"]["containers"][trainer_index(pod["spec"])];
}

inline std::map<std::string, std::string> environment(const nlohmann::json& pod) {
  std::map<std::string, std::string> variables;
  for (const nlohmann::json& entry : trainer_of(pod)["env"])
    variables[entry["name"]] = entry.value("value", "");
  return variables;
}

}  // namespace trainyard::render
