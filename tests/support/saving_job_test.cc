#include "tests/support/saving_job_test.h"

#include <fstream>
#include <sstream>

#include "tests/support/exact.h"
#include "tests/support/tiny_engine.h"

namespace trainyard::testing_support {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kTraining{90};
/// A restart takes seconds where the machine is quiet.
constexpr std::chrono::seconds kResuming{240};

}  // namespace

void SavingJobTest::SetUp() {
  ClusterTest::SetUp();
  if (IsSkipped()) return;
  must({"label", "namespace", name_space(), "pod-security.kubernetes.io/enforce=restricted"});
  claim_ = make_claim("ckpt");
  trainyard_ = std::make_unique<TrainyardCommand>(folder());
  trainyard_->prepare_data(claim_ / "data");
}

void SavingJobTest::TearDown() {
  if (IsSkipped()) return;
  restore();
  ClusterTest::TearDown();
}

SavingJobTest::Json SavingJobTest::saving_job(int nodes, int procs_per_node, int64_t steps) const {
  const Json container = {
      {"name", "trainer"},
      {"resources",
       {{"requests", {{"cpu", "10m"}, {"memory", "64Mi"}}}, {"limits", {{"cpu", "250m"}}}}},
      {"volumeMounts",
       Json::array(
           {{{"name", "data"}, {"mountPath", "/data"}, {"subPath", "data"}, {"readOnly", true}}})}};
  const Json volume = {{"name", "data"}, {"persistentVolumeClaim", {{"claimName", "ckpt"}}}};
  Json engine = tiny_engine("/data/train", steps);
  engine["learningRateSchedule"] = {{"name", "Constant"}};
  engine["runtime"] = {{"threads", 1}};
  Json job = {
      {"apiVersion", "trainyard.dev/v1alpha1"},
      {"kind", "TrainingJob"},
      {"metadata", {{"name", kJob}}},
      {"spec",
       {{"numNodes", nodes},
        {"numProcPerNode", procs_per_node},
        {"engine", engine},
        {"checkpointPolicy",
         {{"storage", {{"persistentVolumeClaim", {{"claimName", "ckpt"}}}}},
          {"everySteps", kEverySteps},
          {"preemptionCheckpointSeconds", 20}}},
        {"failurePolicy", {{"backoff", {{"initialSeconds", 0}}}}},
        {"template",
         {{"spec",
           {{"containers", Json::array({container})}, {"volumes", Json::array({volume})}}}}}}}};
  leave_lost_nodes(job);
  spread(job, Apart::kWherePossible);
  return job;
}

/// Directories are called "g<generation>-step-<step>"; with a manifest they are whole.
SavingJobTest::Saved SavingJobTest::newest_saved(std::optional<int64_t> generation) const {
  Saved newest;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(claim_ / kJob, error)) {
    Saved saved;
    char letter = 0;
    std::string name = entry.path().filename();
    const size_t middle = name.find("-step-");
    if (middle == std::string::npos || !fs::exists(entry.path() / "manifest.json", error)) continue;
    name.replace(middle, std::string("-step-").size(), " ");
    std::istringstream(name) >> letter >> saved.generation >> saved.step;
    if (generation && *generation != saved.generation) continue;
    if (saved.step > newest.step) newest = saved;
  }
  return newest;
}

::testing::AssertionResult SavingJobTest::saves(int64_t generation, int64_t step) const {
  if (wait_until([&] { return newest_saved(generation).step > step; }, kTraining)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "waited for generation " << generation << " to save a step after " << step
         << ", its newest is " << newest_saved(generation).step << ", the newest of all "
         << newest_saved().step << "; the job's status is " << job_status(kJob).dump(2);
}

::testing::AssertionResult SavingJobTest::trains(const Json& job, int64_t generation) const {
  apply(job);
  return saves(generation);
}

int64_t SavingJobTest::step() const {
  return job_status(kJob).value("progress", Json::object()).value("step", int64_t{-1});
}

int64_t SavingJobTest::generation() const {
  return job_status(kJob).value("membership", Json::object()).value("generation", int64_t{-1});
}

SavingJobTest::Json SavingJobTest::last_attempt() const {
  Json last = Json::object();
  for (const Json& attempt : job_status(kJob).value("attempts", Json::array())) {
    if (attempt.contains("endTime")) last = attempt;
  }
  return last;
}

SavingJobTest::Json SavingJobTest::settled_attempt(size_t number) const {
  Json attempt;
  const auto is_settled = [&] {
    Json attempts = job_status(kJob).value("attempts", Json::array());
    if (attempts.size() <= number) return false;
    attempt = attempts[number];
    return attempt.contains("lostSteps");
  };
  EXPECT_TRUE(wait_until(is_settled, kResuming)) << job_status(kJob).dump(2);
  return attempt;
}

void SavingJobTest::suspend() {
  patch(kJob, {{"suspend", true}});
  ASSERT_TRUE(reaches(kJob, "Suspended"));
}

void SavingJobTest::expect_undisturbed(const Json& job, const fs::path& checkpoints) {
  if (!HasFailure()) suspend();
  if (HasFailure()) return;
  const int64_t reached = last_attempt().value("endStep", int64_t{-1});
  ASSERT_GT(reached, 0) << last_attempt().dump(2);
  EXPECT_EQ(job_status(kJob)["checkpoint"]["lastStep"], reached) << "its last step is saved";
  Json undisturbed = job;
  Json& spec = undisturbed["spec"];
  spec["numNodes"] = 1;
  spec["numProcPerNode"] = 1;
  for (const char* part : {"elasticPolicy", "progressPolicy", "failurePolicy"})
    spec.erase(part);
  spec["engine"]["steps"] = reached;
  spec["engine"]["data"]["tokens"] = Json::array({claim_ / "data" / "train"});
  spec["checkpointPolicy"]["everySteps"] = 0;
  const std::string hash =
      trainyard_->state_hash(checkpoints.empty() ? claim_ / kJob : checkpoints);
  EXPECT_TRUE(same_hash(hash, trainyard_->state_hash_of_run(undisturbed)))
      << "after " << reached << " steps";
}

std::string SavingJobTest::node_of(const std::string& pod) const {
  return nodes_of_pods(kJob)[pod];
}

std::string SavingJobTest::process_of(const std::string& pod, int rank) const {
  // A process's name has 15 letters.
  const std::string script = R"(for process in $(pgrep -x trainyard-worke); do
    words=$(tr '\0' '\n' <"/proc/$process/environ") || continue
    grep -qx "TRAINYARD_POD_NAME=$0" <<<"$words" && grep -qx "RANK=$1" <<<"$words" && echo "$process"
  done; true)";
  std::string found = on_node(node_of(pod), {"bash", "-c", script, pod, std::to_string(rank)});
  found.erase(found.find_last_not_of('\n') + 1);
  EXPECT_FALSE(found.empty()) << "no process of rank " << rank << " in " << pod;
  return found;
}

void SavingJobTest::disturb(const std::string& act, const std::string& undo,
                            const std::string& node) {
  to_node(act, node);
  undo_ = {undo, node};
}

void SavingJobTest::restore() {
  if (!undo_) return;
  const auto [undo, node] = *std::exchange(undo_, std::nullopt);
  to_node(undo, node);
  EXPECT_TRUE(comes_back(node));
}

}  // namespace trainyard::testing_support
