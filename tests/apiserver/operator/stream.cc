#include "tests/apiserver/operator/stream.h"

#include <fstream>
#include <iostream>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/free_port.h"
#include "tests/support/paths.h"
#include "tests/support/tiny_engine.h"

namespace trainyard::apiserver {
namespace {

constexpr std::chrono::minutes kTraining{3};
constexpr char kWorker[] = "registry.example/worker:";  ///< and the tag

std::filesystem::path own_programs() {
  return std::filesystem::path(testing_support::program_path("trainyard")).parent_path();
}

}  // namespace

void StreamTest::SetUp() {
  JobTest::SetUp();
  trainyard_ = std::make_unique<testing_support::TrainyardCommand>(folder());
  trainyard_->prepare_data(folder() / "data");
  port_ = std::to_string(testing_support::free_port());
  start_operator();
  make_nodes("stream-" + name_space(), 3, 4, /*kubelets=*/false);
  testing_support::PodRunner::Options options;
  options.kubectl = [this](const std::vector<std::string>& words) { return must(words); };
  options.get = [this](const std::vector<std::string>& words) { return get(words); };
  options.folder = folder() / "machine";
  machine_ = std::make_unique<testing_support::PodRunner>(std::move(options));
  run_agents_of(own_programs());
}

void StreamTest::TearDown() {
  if (HasFailure()) {
    std::cout << "the operator said:\n" << operator_->log() << std::endl;
    for (const char* job : {"tiny", "longer"}) {
      for (const std::string& pod : names_of_pods(job))
        std::cout << pod << " said:\n" << machine_->output_of(pod) << std::endl;
    }
  }
  machine_.reset();
  EXPECT_EQ(operator_->stop(), 0) << operator_->log();
  JobTest::TearDown();
}

void StreamTest::start_operator(const std::filesystem::path& programs, const std::string& tag) {
  operator_ = std::make_unique<testing_support::OperatorProcess>(
      plane(), folder() / ("operator-" + std::to_string(++starts_)),
      std::vector<std::string>{name_space()},
      std::vector<std::string>{"--control-bind-address", "127.0.0.1:" + port_, "--control-address",
                               "127.0.0.1:" + port_, "--worker-image", kWorker + tag},
      testing_support::OperatorAccess{.program = programs / "trainyard-operator"});
}

void StreamTest::start_operator() { start_operator(own_programs()); }

void StreamTest::run_agents_of(const std::filesystem::path& programs) {
  machine_->set_entrypoint({programs / "trainyard-agent"});
}

void StreamTest::run_agents_of(const std::filesystem::path& programs, const std::string& tag) {
  machine_->set_image(kWorker + tag, {programs / "trainyard-agent"});
}

StreamTest::Json StreamTest::engine_job(int nodes, int steps) const {
  Json job = {
      {"apiVersion", "trainyard.dev/v1alpha1"},
      {"kind", "TrainingJob"},
      {"metadata", {{"name", "tiny"}}},
      {"spec",
       {{"numNodes", nodes},
        {"numProcPerNode", 1},
        {"engine", testing_support::tiny_engine(folder() / "data" / "train", steps)},
        {"checkpointPolicy",
         {{"storage", {{"persistentVolumeClaim", {{"claimName", "ckpt"}}}}}, {"everySteps", 20}}},
        {"failurePolicy", {{"backoff", {{"initialSeconds", 0}}}}},
        {"template", {{"spec", {{"containers", Json::array({{{"name", "trainer"}}})}}}}}}}};
  place(job, "stream-" + name_space());
  return job;
}

StreamTest::Json StreamTest::program_job(const std::string& script) const {
  Json job = job_manifest("tiny", 2);
  job["spec"]["agent"] = "Auto";
  job["spec"]["numProcPerNode"] = 2;
  job["spec"]["failurePolicy"] = {{"backoff", {{"initialSeconds", 0}}}};
  Json& container = job["spec"]["template"]["spec"]["containers"][0];
  container["image"] = "registry.example/other:1";
  container["command"] = {"sh", "-c", script, "sh"};
  container["args"] = {"an argument"};
  place(job, "stream-" + name_space());
  return job;
}

bool StreamTest::until(const std::function<bool()>& condition) {
  return wait_until(
      [&] {
        machine_->step();
        const auto now = std::chrono::steady_clock::now();
        if (now - renewed_at_ > std::chrono::seconds(10)) {
          renew_leases_of_nodes();
          renewed_at_ = now;
        }
        return condition();
      },
      kTraining);
}

void StreamTest::let_it_delete() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  ASSERT_TRUE(until([&] { return std::chrono::steady_clock::now() > end; }));
}

int64_t StreamTest::remembered_term() const {
  return std::stoll(must({"get", "secret", "trainyard-control-tls", "-n", "trainyard-system", "-o",
                          "jsonpath={.metadata.annotations.trainyard\\.dev/control-term}"}));
}

bool StreamTest::has_checkpoint_after(const std::string& name) const {
  std::error_code none_yet;
  for (const auto& entry :
       std::filesystem::directory_iterator(machine_->claim("ckpt") / "tiny", none_yet)) {
    const std::string found = entry.path().filename();
    if (found.starts_with("g1-step-") && found.size() == name.size() && found > name) return true;
  }
  return false;
}

pid_t StreamTest::rank_of(const std::string& pod) const {
  const std::string agent = std::to_string(machine_->pid_of(pod));
  std::ifstream children("/proc/" + agent + "/task/" + agent + "/children");
  pid_t rank = -1;
  children >> rank;
  return rank;
}

int64_t StreamTest::step() const {
  return job_status("tiny").value("progress", Json::object()).value("step", int64_t{-1});
}

}  // namespace trainyard::apiserver
