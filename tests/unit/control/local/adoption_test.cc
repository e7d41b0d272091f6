// What a cluster makes of pods that an earlier process left.
#include <cstdio>
#include <fstream>
#include <functional>
#include <signal.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/io/file.h"
#include "control/local/pod_exit.h"
#include "control/local/pod_record.h"
#include "control/reconciler.h"
#include "control/status_edit.h"
#include "tests/support/local_world.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/control/local/local_cluster_world.h"

namespace trainyard::control::local {
namespace {

using std::chrono::seconds;
using testing_support::kScriptUntilTold;
using testing_support::script_options;
using testing_support::tell_to_exit;
using testing_support::wait_until;

class AdoptionTest : public LocalClusterWorld {
 protected:
  /// Closes the cluster and leaves the record of a pod whose process is another one by now: this
  /// test's own stands for the one that got the pid later.
  PodRecord leave_record_of_another_process() {
    PodRecord record;
    record.job_uid = cluster_->job_uid();
    cluster_.reset();
    record.name = "job-0-zzzzz";
    record.uid = "uid";
    record.process = *identify(::getpid());
    record.process.start_ticks += 1;
    EXPECT_TRUE(make_directories(run_dir() / "pods" / record.name).has_value());
    EXPECT_TRUE(write_pod_record(run_dir() / "pods" / record.name, record).has_value());
    return record;
  }
};

/// As script_options, for a job of the engine.
LocalClusterOptions engine_options(const std::filesystem::path& run_dir, const Clock& clock) {
  LocalClusterOptions options = script_options(run_dir, clock, kScriptUntilTold);
  options.job.spec.engine = *api::decode_engine(
      R"({"model":{"layers":1,"hidden":8,"heads":1},"batch":{"globalSequences":8},
          "data":{"tokens":["/data"],"sequenceLength":8},"steps":10,"runtime":{"threads":4}})",
      {.file = "engine"});
  return options;
}

/// Another process that opened the run directory, started two pods and was killed.
class KilledRun {
 public:
  KilledRun(const std::filesystem::path& run_dir, const std::string& script) {
    const std::string command = "exec " +
                                testing_support::test_program_path("control_orphan_maker") + " '" +
                                run_dir.string() + "' '" + script + "'";
    std::FILE* pipe = ::popen(command.c_str(), "re");
    char word[16] = {};
    ready_ = pipe != nullptr && std::fgets(word, sizeof word, pipe) != nullptr &&
             std::string(word) == "ready\n";
    const auto holder = read_file(run_dir / "lock", 64);
    if (holder) ::kill(static_cast<pid_t>(std::stol(*holder)), SIGKILL);
    if (pipe != nullptr) ::pclose(pipe);
  }
  bool was_ready() const { return ready_; }

 private:
  bool ready_ = false;
};

TEST_F(AdoptionTest, AdoptsThePodsOfARunThatWasKilled) {
  const KilledRun killed(run_dir(), kScriptUntilTold);
  ASSERT_TRUE(killed.was_ready());
  open(kScriptUntilTold);
  const auto observed = cluster_->observe(cluster_->key());
  ASSERT_EQ(observed->pods.size(), 2u);
  std::vector<PodRef> refs;
  for (const ObservedPod& pod : observed->pods) {
    EXPECT_EQ(pod.phase, PodPhase::kRunning);
    refs.push_back({"default", pod.name, pod.uid});
  }
  // One ends without a word: nobody can know its code. One is ended by us.
  const ProcessId first = process_of(refs[0]);
  ASSERT_TRUE(tell_to_exit(run_dir(), refs[0].name, 3));
  const ObservedPod lost = ended(refs[0]);
  EXPECT_EQ(lost.phase, PodPhase::kFailed);
  EXPECT_EQ(lost.exit->reason, "Lost");
  const ProcessId second = process_of(refs[1]);
  ASSERT_TRUE(cluster_->delete_pod(refs[1], seconds(30)).has_value());
  EXPECT_TRUE(gone(refs[1]));
  for (const ProcessId& process : {first, second})
    EXPECT_TRUE(wait_until([&] { return session_members(process.pid).empty(); }));
}

TEST_F(AdoptionTest, AnAdoptedPodsOwnRecordTellsItsExit) {
  const std::string script = std::string(
      "cd \"$TRAINYARD_POD_DIR\" && rm -f end && mkfifo end && read -r code < end && "
      "echo \"{\\\"podUID\\\":\\\"$TRAINYARD_POD_UID\\\",\\\"exit\\\":{\\\"container\\\":"
      "\\\"trainer\\\",\\\"exitCode\\\":$code,\\\"reason\\\":\\\"Error\\\",\\\"message\\\":"
      "\\\"told\\\"}}\" > exit.json; exit $code");
  const KilledRun killed(run_dir(), script);
  ASSERT_TRUE(killed.was_ready());
  open(script);
  const auto observed = cluster_->observe(cluster_->key());
  ASSERT_EQ(observed->pods.size(), 2u);
  ASSERT_TRUE(tell_to_exit(run_dir(), observed->pods[0].name, 75));
  const ObservedPod pod = ended({"default", observed->pods[0].name, observed->pods[0].uid});
  EXPECT_EQ(pod.exit->exit_code, 75);
  EXPECT_EQ(pod.exit->message, "told");
}

TEST_F(AdoptionTest, ADeletedJobsPodsEndAndAreNotTheNextJobs) {
  open(kScriptUntilTold);
  const PodRef ref = create(0);
  const ProcessId process = process_of(ref);
  const std::string uid = cluster_->job_uid();
  ASSERT_TRUE(cluster_->delete_job(cluster_->key(), uid).has_value());
  EXPECT_TRUE(wait_until([&] { return session_members(process.pid).empty(); })) << "at once";
  cluster_.reset();
  open(kScriptUntilTold);
  EXPECT_NE(cluster_->job_uid(), uid);
  EXPECT_TRUE(cluster_->observe(cluster_->key())->pods.empty());
}

TEST_F(AdoptionTest, PodsThatADeletedJobsControllerLeftEndWithTheNextOne) {
  const KilledRun killed(run_dir(), kScriptUntilTold);
  ASSERT_TRUE(killed.was_ready());
  // It was killed while it deleted the job: the job is gone, its pods are not.
  std::vector<ProcessId> processes;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir() / "pods")) {
    const auto record = read_pod_record(entry.path());
    ASSERT_TRUE(record.has_value()) << record.error().message;
    processes.push_back(record->process);
  }
  ASSERT_EQ(processes.size(), 2u);
  std::filesystem::remove(run_dir() / "job.json");
  open(kScriptUntilTold);
  EXPECT_TRUE(cluster_->observe(cluster_->key())->pods.empty());
  for (const ProcessId& process : processes)
    EXPECT_TRUE(wait_until([&] { return session_members(process.pid).empty(); }));
}

TEST_F(AdoptionTest, WhatWasDoneToAPodIsKnownToTheNextOne) {
  const std::string deaf =
      "trap '' TERM; echo ready > \"$TRAINYARD_POD_DIR/ready\"; "
      "while true; do sleep 1000; done";
  open(deaf);
  const PodRef doomed = create(0);
  const PodRef unlabelled = create(1);
  ASSERT_TRUE(wait_until([&] { return !file_of(doomed, "ready").empty(); }));
  ASSERT_TRUE(cluster_->delete_pod(doomed, std::chrono::hours(1)).has_value());
  ASSERT_TRUE(cluster_->remove_member_label(unlabelled).has_value());
  cluster_.reset();
  open(deaf);
  ASSERT_TRUE(look(doomed) && look(unlabelled));
  EXPECT_TRUE(look(doomed)->terminating);
  EXPECT_TRUE(look(doomed)->member);
  EXPECT_FALSE(look(unlabelled)->member);
  EXPECT_FALSE(look(unlabelled)->terminating);
}

TEST_F(AdoptionTest, WhatMayChangeAtAnyTimeEndsNoPod) {
  const std::vector<std::function<void(api::TrainingJobSpec&)>> changes = {
      [](auto& spec) { spec.engine->runtime.threads = 1; },  // the run may have fewer cores now
      [](auto& spec) { spec.engine->runtime.isa = api::Isa::kAvx2; },
      [](auto& spec) { spec.checkpoint_policy.every_steps = 7; },
      [](auto& spec) { spec.checkpoint_policy.keep_last = 9; },
      [](auto& spec) { spec.num_nodes = 3, spec.engine->runtime.threads = 2; },
      [](auto& spec) { spec.num_proc_per_node = 2, spec.engine->runtime.threads = 3; }};
  auto options = engine_options(run_dir(), clock_);
  cluster_ = *LocalCluster::open(options);
  const PodRef ref = create(0);
  const ProcessId process = process_of(ref);
  for (size_t i = 0; i < changes.size(); ++i) {
    cluster_.reset();
    changes[i](options.job.spec);
    auto opened = LocalCluster::open(options);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    cluster_ = *std::move(opened);
    ASSERT_FALSE(session_members(process.pid).empty()) << i;
    EXPECT_EQ(look(ref)->phase, PodPhase::kRunning) << i;
  }
  cluster_.reset();
  options.job.spec.engine->steps = 11;
  cluster_ = *LocalCluster::open(options);
  EXPECT_TRUE(wait_until([&] { return session_members(process.pid).empty(); }))
      << "a spec that is no more";
}

TEST_F(AdoptionTest, AnEndCountsForTheSpecThatThePodWasStartedWith) {
  auto options = engine_options(run_dir(), clock_);
  options.pod_command = {"/bin/sh", "-c", "exit 0"};
  cluster_ = *LocalCluster::open(options);
  const PodRef ref = create(0);
  EXPECT_EQ(ended(ref).exit->exit_code, 0);
  auto job = cluster_->observe(cluster_->key());
  job->status.membership.generation = 1;
  job->status.completed_indexes = "0";
  ASSERT_TRUE(cluster_->put_status(cluster_->key(), cluster_->job_uid(), job->status,
                                   job->metadata.resource_version));
  cluster_.reset();
  cluster_ = *LocalCluster::open(options);
  EXPECT_EQ(look(ref)->exit->exit_code, 0) << "the same spec";
  cluster_.reset();
  const std::filesystem::path result = run_dir() / "pods" / ref.name / "result.json";
  std::ofstream(result) << "{}";
  options.job.spec.engine->steps = 11;
  // The files of the new spec cannot be written, as in a crash before them.
  std::filesystem::remove(run_dir() / "checkpoint-policy.json");
  std::filesystem::create_directories(run_dir() / "checkpoint-policy.json" / "in-the-way");
  EXPECT_FALSE(LocalCluster::open(options).has_value());
  std::filesystem::remove_all(run_dir() / "checkpoint-policy.json");
  for (int times = 0; times < 2; ++times) {
    cluster_ = *LocalCluster::open(options);
    job = cluster_->observe(cluster_->key());
    EXPECT_TRUE(job->pods.empty());
    EXPECT_TRUE(is_true(job->status, api::ConditionType::kSuspended)) << "as one that was stopped";
    EXPECT_EQ(job->status.completed_indexes, "");
    EXPECT_EQ(job->status.restarts.total, 0);
    EXPECT_FALSE(std::filesystem::exists(result));
    cluster_.reset();
  }
}

TEST_F(AdoptionTest, AnotherSpecStopsTheJobAndIsNoRestart) {
  auto options = engine_options(run_dir(), clock_);
  const auto run_until = [&](const std::function<bool(const Observed&)>& holds) {
    Reconciler reconciler({.cluster = cluster_.get(), .clock = &clock_});
    cluster_->set_listener([&](const JobKey& key) { reconciler.wake(key); });
    reconciler.wake(cluster_->key());
    const bool held = wait_until([&] {
      reconciler.run_next();
      return holds(*cluster_->observe(cluster_->key()));
    });
    cluster_->set_listener({});
    return held;
  };
  cluster_ = *LocalCluster::open(options);
  ASSERT_TRUE(run_until([](const Observed& now) { return now.pods.size() == 2; }));
  auto before = cluster_->observe(cluster_->key());
  before->status.progress.emplace().step = 7;
  before->status.attempts.back().start_step = 0;
  ASSERT_TRUE(cluster_->put_status(cluster_->key(), cluster_->job_uid(), before->status,
                                   before->metadata.resource_version));
  cluster_.reset();
  options.job.spec.engine->steps = 11;
  cluster_ = *LocalCluster::open(options);
  const auto stopped = cluster_->observe(cluster_->key());
  EXPECT_TRUE(stopped->pods.empty()) << "they are waited for";
  EXPECT_TRUE(is_true(stopped->status, api::ConditionType::kSuspended));
  ASSERT_EQ(stopped->status.attempts.size(), 1u);
  EXPECT_EQ(stopped->status.attempts[0].reason, api::reason::kSuspended);
  EXPECT_EQ(stopped->status.attempts[0].end_step, 7);
  ASSERT_TRUE(run_until([](const Observed& now) { return now.pods.size() == 2; }));
  const auto after = cluster_->observe(cluster_->key());
  EXPECT_EQ(after->status.membership.generation, 2);
  EXPECT_EQ(after->status.restarts.total, 0);
  EXPECT_FALSE(is_true(after->status, api::ConditionType::kSuspended));
}

TEST_F(AdoptionTest, APidThatCameToAnotherProcessIsNotAdopted) {
  open("exit 0");
  const PodRecord record = leave_record_of_another_process();
  std::ofstream(run_dir() / "pods" / record.name / "started");
  open("exit 0");
  const auto pod = look({"default", record.name, record.uid});
  ASSERT_TRUE(pod.has_value());
  EXPECT_EQ(pod->exit->reason, "Lost");
}

TEST_F(AdoptionTest, APodWhoseMakerDiedBeforeItBeganIsYetToBeMade) {
  open("exit 0");
  const PodRecord record = leave_record_of_another_process();
  std::ofstream(run_dir() / "status.json.tmp.4711") << "half";
  open("exit 0");
  EXPECT_TRUE(cluster_->observe(cluster_->key())->pods.empty());
  EXPECT_FALSE(std::filesystem::exists(run_dir() / "pods" / record.name / "pod.json"));
  EXPECT_FALSE(std::filesystem::exists(run_dir() / "status.json.tmp.4711"));
}

TEST_F(AdoptionTest, WhatCannotBeLookedAtIsNotTakenForLost) {
  open(kScriptUntilTold);
  std::vector<PodRef> refs;
  std::vector<ProcessId> processes;
  for (int index = 0; index < 3; ++index) {
    refs.push_back(create(index));
    processes.push_back(process_of(refs.back()));
  }
  cluster_.reset();
  int refused = 0;
  // Descriptors run out at every place, also between two pods.
  for (rlim_t limit = 3; limit <= kDescriptorsEnough; ++limit) {
    std::optional<FewDescriptors> few(limit);
    auto opened = LocalCluster::open(script_options(run_dir(), clock_, kScriptUntilTold));
    few.reset();
    if (opened) cluster_ = *std::move(opened);
    if (!cluster_) ++refused;
    for (size_t i = 0; i < refs.size(); ++i) {
      ASSERT_FALSE(session_members(processes[i].pid).empty()) << limit;
      if (!cluster_) continue;
      ASSERT_TRUE(look(refs[i]).has_value()) << limit;
      ASSERT_FALSE(look(refs[i])->exit.has_value()) << limit;
    }
    cluster_.reset();
  }
  EXPECT_GT(refused, 0);
  open(kScriptUntilTold);
  for (const PodRef& ref : refs) {
    ASSERT_TRUE(tell_to_exit(run_dir(), ref.name, 9));
    EXPECT_EQ(ended(ref).exit->exit_code, 9);
  }
}

}  // namespace
}  // namespace trainyard::control::local
