#include "control/local/local_cluster.h"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <signal.h>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/io/file.h"
#include "control/local/pod_exit.h"
#include "control/local/pod_record.h"
#include "control/reconciler.h"
#include "control/status_edit.h"
#include "tests/support/cluster_conformance.h"
#include "tests/support/local_world.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::control::local {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using testing_support::ClusterConformance;
using testing_support::kScriptUntilTold;
using testing_support::script_options;
using testing_support::tell_to_exit;
using testing_support::TemporaryDirectory;
using testing_support::wait_until;

class LocalWorld final : public testing_support::World {
 public:
  LocalWorld() {
    auto opened = LocalCluster::open(script_options(directory_.path(), clock_, kScriptUntilTold));
    EXPECT_TRUE(opened.has_value()) << (opened ? "" : opened.error().message);
    if (opened) cluster_ = *std::move(opened);
  }
  ~LocalWorld() override { cluster_->kill_all(); }

  Cluster& cluster() override { return *cluster_; }
  JobKey key() const override { return cluster_->key(); }
  void move_on() override { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }
  void finish_pod(const std::string& name, int exit_code) override {
    EXPECT_TRUE(tell_to_exit(directory_.path(), name, exit_code));
  }

 private:
  TemporaryDirectory directory_;
  SystemClock clock_;
  std::unique_ptr<LocalCluster> cluster_;
};

INSTANTIATE_TEST_SUITE_P(Local, ClusterConformance,
                         testing::Values(testing_support::WorldFactory([] {
                           return std::make_unique<LocalWorld>();
                         })));

class LocalClusterTest : public testing::Test {
 protected:
  ~LocalClusterTest() override {
    if (cluster_) cluster_->kill_all();
  }

  void open(const std::string& script) {
    auto opened = LocalCluster::open(script_options(run_dir(), clock_, script));
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    cluster_ = *std::move(opened);
  }

  PodRef create(int index) {
    const auto observed = cluster_->observe(cluster_->key());
    const PodSpec spec = make_pod_spec(observed->metadata, observed->spec, index, 1, 2);
    const auto reply = cluster_->create_pod(spec);
    EXPECT_TRUE(reply.has_value()) << (reply ? "" : reply.error().message);
    return {"default", spec.name, reply ? reply->uid : ""};
  }

  std::optional<ObservedPod> look(const PodRef& ref) {
    const auto observed = cluster_->observe(cluster_->key());
    for (const ObservedPod& pod : observed->pods) {
      if (pod.uid == ref.uid) return pod;
    }
    return std::nullopt;
  }

  /// The pod once it has ended.
  ObservedPod ended(const PodRef& ref) {
    EXPECT_TRUE(wait_until([&] { return look(ref).has_value() && look(ref)->exit.has_value(); }));
    return look(ref).value_or(ObservedPod{});
  }

  bool gone(const PodRef& ref) {
    return wait_until([&] { return !look(ref).has_value(); });
  }

  ProcessId process_of(const PodRef& ref) {
    const auto record = read_pod_record(run_dir() / "pods" / ref.name);
    EXPECT_TRUE(record.has_value());
    return record ? record->process : ProcessId{};
  }

  std::string file_of(const PodRef& ref, const std::string& name) {
    return read_file(run_dir() / "pods" / ref.name / name, 1 << 20).value_or("");
  }

  const std::filesystem::path& run_dir() const { return directory_.path(); }

  TemporaryDirectory directory_;
  SystemClock clock_;
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(LocalClusterTest, APodSeesItsEnvironmentAndLogsToItsFolder) {
  open("env; echo to stderr >&2");
  cluster_->set_environment("TRAINYARD_CONTROL_ADDRESS", "unix:/there");
  const PodRef ref = create(1);
  EXPECT_EQ(ended(ref).phase, PodPhase::kSucceeded);
  const std::string log = file_of(ref, "log");
  const std::string dir = run_dir().string();
  for (const std::string& line :
       {std::string("TRAINYARD_JOB=job"), "TRAINYARD_JOB_UID=" + cluster_->job_uid(),
        std::string("TRAINYARD_NODE_INDEX=1"), std::string("TRAINYARD_GENERATION=1"),
        "TRAINYARD_POD_NAME=" + ref.name, "TRAINYARD_POD_UID=" + ref.uid,
        "TRAINYARD_POD_DIR=" + dir + "/pods/" + ref.name, std::string("PET_NNODES=2"),
        std::string("PET_NPROC_PER_NODE=1"), std::string("MASTER_ADDR=127.0.0.1"),
        std::string("TRAINYARD_CONTROL_ADDRESS=unix:/there"),
        "TRAINYARD_CHECKPOINT_DIR=" + dir + "/checkpoints/job",
        "TRAINYARD_CHECKPOINT_POLICY=" + dir + "/checkpoint-policy.json",
        std::string("to stderr")}) {
    EXPECT_THAT(log, HasSubstr(line + "\n"));
  }
}

TEST_F(LocalClusterTest, AFailureWithoutARecordShowsTheLastLines) {
  open("echo first; echo second; exit 7");
  const ObservedPod pod = ended(create(0));
  EXPECT_EQ(pod.exit->exit_code, 7);
  EXPECT_EQ(pod.exit->reason, "Error");
  EXPECT_EQ(pod.exit->message, "first\nsecond");
  EXPECT_TRUE(pod.exit->finished_at.has_value());
}

TEST_F(LocalClusterTest, TheSupervisorsRecordNamesTheRank) {
  open(
      "printf '{\"podUID\":\"%s\",\"exit\":{\"container\":\"trainer\",\"exitCode\":139,"
      "\"signal\":11,\"rank\":3,\"reason\":\"Error\",\"message\":\"rank 3 crashed\"}}' "
      "\"$TRAINYARD_POD_UID\" > \"$TRAINYARD_POD_DIR/exit.json\"; exit 139");
  const ObservedPod pod = ended(create(0));
  EXPECT_EQ(pod.exit->rank, 3);
  EXPECT_EQ(pod.exit->signal, 11);
  EXPECT_EQ(pod.exit->exit_code, 139);
  EXPECT_EQ(pod.exit->message, "rank 3 crashed");
}

TEST_F(LocalClusterTest, AKilledPodFailsBySignalAndLeavesNoProcess) {
  open("sleep 1000 & sleep 1000 & echo $! > \"$TRAINYARD_POD_DIR/child\"; wait");
  const PodRef ref = create(0);
  ASSERT_TRUE(wait_until([&] { return !file_of(ref, "child").empty(); }));
  const ProcessId process = process_of(ref);
  ASSERT_EQ(::kill(process.pid, SIGKILL), 0);
  const ObservedPod pod = ended(ref);
  EXPECT_EQ(pod.phase, PodPhase::kFailed);
  EXPECT_EQ(pod.exit->signal, SIGKILL);
  EXPECT_EQ(pod.exit->exit_code, 128 + SIGKILL);
  EXPECT_TRUE(wait_until([&] { return session_members(process.pid).empty(); }));
}

TEST_F(LocalClusterTest, DeletionEndsAStubbornPodAndItsChildrenAfterTheGrace) {
  open(
      "trap '' TERM; sleep 1000 & echo ready > \"$TRAINYARD_POD_DIR/ready\"; "
      "while true; do sleep 1000; done");
  const PodRef ref = create(0);
  ASSERT_TRUE(wait_until([&] { return !file_of(ref, "ready").empty(); }));
  const ProcessId process = process_of(ref);
  ASSERT_TRUE(cluster_->delete_pod(ref, std::chrono::milliseconds(50)).has_value());
  EXPECT_TRUE(gone(ref));
  EXPECT_TRUE(wait_until([&] { return session_members(process.pid).empty(); }));
}

TEST_F(LocalClusterTest, DeletionGivesThePodItsGrace) {
  open(
      "trap 'echo saved; exit 143' TERM; echo ready > \"$TRAINYARD_POD_DIR/ready\"; "
      "while true; do sleep 0.01; done");
  const PodRef ref = create(0);
  ASSERT_TRUE(wait_until([&] { return !file_of(ref, "ready").empty(); }));
  ASSERT_TRUE(cluster_->delete_pod(ref, seconds(30)).has_value());
  EXPECT_TRUE(gone(ref));
  EXPECT_EQ(file_of(ref, "log"), "saved\n") << "logs stay when the pod is gone";
}

TEST_F(LocalClusterTest, ASecondRunOnTheDirectoryIsRefused) {
  open("exit 0");
  const auto second = LocalCluster::open(script_options(run_dir(), clock_, "exit 0"));
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
  EXPECT_THAT(second.error().message, HasSubstr(std::to_string(::getpid())));
}

TEST_F(LocalClusterTest, ACommandThatIsNoneIsRefused) {
  auto options = script_options(run_dir(), clock_, "");
  options.pod_command = {"/no/such/agent"};
  const auto opened = LocalCluster::open(std::move(options));
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalidConfig);
}

TEST_F(LocalClusterTest, StatusAndPodsSurviveTheCluster) {
  open(kScriptUntilTold);
  const auto before = cluster_->observe(cluster_->key());
  api::TrainingJobStatus status;
  status.membership.generation = 4;
  const auto version = cluster_->put_status(cluster_->key(), before->metadata.uid, status,
                                            before->metadata.resource_version);
  ASSERT_TRUE(version.has_value());
  const PodRef running = create(0);
  const PodRef finished = create(1);
  ASSERT_TRUE(tell_to_exit(run_dir(), finished.name, 5));
  EXPECT_EQ(ended(finished).exit->exit_code, 5);
  cluster_.reset();

  open(kScriptUntilTold);
  const auto after = cluster_->observe(cluster_->key());
  EXPECT_EQ(after->metadata.uid, before->metadata.uid);
  EXPECT_EQ(after->metadata.generation, before->metadata.generation);
  EXPECT_EQ(after->metadata.resource_version, *version);
  EXPECT_EQ(after->status, status);
  ASSERT_TRUE(look(running).has_value());
  EXPECT_EQ(look(running)->phase, PodPhase::kRunning);
  ASSERT_TRUE(look(finished).has_value());
  EXPECT_EQ(look(finished)->exit->exit_code, 5);
  ASSERT_TRUE(tell_to_exit(run_dir(), running.name, 9));
  EXPECT_EQ(ended(running).exit->exit_code, 9);
}

TEST_F(LocalClusterTest, AnotherJobOrAnotherSeedIsRefusedAndANewSpecIsANewGeneration) {
  open("exit 0");
  cluster_.reset();
  auto renamed = script_options(run_dir(), clock_, "exit 0");
  renamed.job.metadata.name = "other";
  auto refused = LocalCluster::open(std::move(renamed));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(refused.error().message, HasSubstr("metadata.name"));

  auto moved = script_options(run_dir(), clock_, "exit 0");
  moved.job.spec.checkpoint_policy.path = "elsewhere";
  refused = LocalCluster::open(std::move(moved));
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("spec.checkpointPolicy.path"));

  auto larger = script_options(run_dir(), clock_, "exit 0");
  larger.job.spec.num_nodes = 5;
  auto opened = LocalCluster::open(std::move(larger));
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  EXPECT_EQ((*opened)->observe((*opened)->key())->metadata.generation, 2);
  EXPECT_EQ((*opened)->observe((*opened)->key())->spec.num_nodes, 5);
}

TEST_F(LocalClusterTest, ADamagedPodRecordIsNamedAndNothingIsTouched) {
  ASSERT_TRUE(make_directories(run_dir() / "pods" / "job-0-xxxxx").has_value());
  std::ofstream(run_dir() / "pods" / "job-0-xxxxx" / "pod.json") << "{\"name\": 3";
  const auto opened = LocalCluster::open(script_options(run_dir(), clock_, "exit 0"));
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalidData);
  EXPECT_THAT(opened.error().message, HasSubstr("job-0-xxxxx/pod.json"));
}

TEST_F(LocalClusterTest, ADamagedStatusIsNamedInOurWords) {
  open("exit 0");
  const auto job = cluster_->observe(cluster_->key());
  ASSERT_TRUE(cluster_->put_status(cluster_->key(), cluster_->job_uid(), job->status,
                                   job->metadata.resource_version));
  cluster_.reset();
  for (const auto& [text, fault] :
       {std::pair{"rubbish", "no JSON at byte 1"}, std::pair{"{\"uid\":3}", "type must be"}}) {
    std::ofstream(run_dir() / "status.json") << text;
    const auto opened = LocalCluster::open(script_options(run_dir(), clock_, "exit 0"));
    ASSERT_FALSE(opened.has_value());
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidData);
    EXPECT_THAT(opened.error().message, HasSubstr("status.json: damaged: "));
    EXPECT_THAT(opened.error().message, HasSubstr(fault));
    EXPECT_THAT(opened.error().message, Not(HasSubstr("exception")));
  }
}

TEST_F(LocalClusterTest, AFailedRunIsTakenUpAgainByAChangedManifestOrOnRequest) {
  open("exit 0");
  auto job = cluster_->observe(cluster_->key());
  job->status.membership.generation = 3;
  job->status.restarts.total = 2;
  set_condition(job->status,
                {api::ConditionType::kFailed, api::ConditionStatus::kTrue, "BudgetExceeded", ""},
                clock_.now());
  ASSERT_TRUE(cluster_->put_status(cluster_->key(), cluster_->job_uid(), job->status,
                                   job->metadata.resource_version));
  cluster_.reset();
  open("exit 0");
  EXPECT_FALSE(cluster_->tries_again());
  cluster_.reset();

  auto changed = script_options(run_dir(), clock_, "exit 0");
  changed.job.spec.failure_policy.backoff.max = seconds(7);
  changed.job.spec.checkpoint_policy.path = "elsewhere";  // nothing was trained: may be mended
  auto opened = LocalCluster::open(std::move(changed));
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  EXPECT_TRUE((*opened)->tries_again());
  const auto after = (*opened)->observe((*opened)->key());
  EXPECT_FALSE(is_true(after->status, api::ConditionType::kFailed));
  EXPECT_TRUE(is_true(after->status, api::ConditionType::kSuspended)) << "as one that was stopped";
  EXPECT_EQ(after->status.membership.generation, 3);
  EXPECT_EQ(after->status.restarts.total, 2) << "counts go on";
}

TEST_F(LocalClusterTest, AStoppedPodHearsThatItIsToEnd) {
  open(kScriptUntilTold);
  const PodRef ref = create(0);
  ASSERT_TRUE(wait_until([&] { return !look(ref)->exit; }));
  const ProcessId process = process_of(ref);
  ASSERT_EQ(::kill(process.pid, SIGSTOP), 0);
  ASSERT_TRUE(wait_until([&] { return is_stopped(process); }));
  ASSERT_TRUE(cluster_->delete_pod(ref, std::chrono::hours(1)));
  EXPECT_TRUE(wait_until([&] { return !look(ref).has_value(); }));
}

TEST_F(LocalClusterTest, NoticesThatItsDirectoryIsGone) {
  open("exit 0");
  EXPECT_TRUE(cluster_->is_in_place());
  std::filesystem::rename(run_dir() / "lock", run_dir() / "moved");
  EXPECT_FALSE(cluster_->is_in_place());
  std::ofstream(run_dir() / "lock") << "another's";
  EXPECT_FALSE(cluster_->is_in_place());
}

TEST_F(LocalClusterTest, WhatCannotBeARunDirectoryIsTheCallersToMend) {
  std::ofstream(run_dir() / "file") << "x";
  for (const auto& path : {run_dir() / "file", run_dir() / "file" / "below"}) {
    const auto opened = LocalCluster::open(script_options(path, clock_, "exit 0"));
    ASSERT_FALSE(opened.has_value());
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidConfig) << opened.error().message;
    EXPECT_THAT(opened.error().message, HasSubstr("no directory"));
  }
}

/// Another process that opened the run directory, started two pods and was killed.
class KilledRun {
 public:
  KilledRun(const std::filesystem::path& run_dir, const std::string& script) {
    const std::string command = std::string("exec ") + TRAINYARD_ORPHAN_MAKER + " '" +
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

TEST_F(LocalClusterTest, AdoptsThePodsOfARunThatWasKilled) {
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

TEST_F(LocalClusterTest, AnAdoptedPodsOwnRecordTellsItsExit) {
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

TEST_F(LocalClusterTest, ADeletedJobsPodsEndAndAreNotTheNextJobs) {
  open(kScriptUntilTold);
  const PodRef ref = create(0);
  const ProcessId process = process_of(ref);
  const std::string uid = cluster_->job_uid();
  ASSERT_TRUE(cluster_->delete_job(cluster_->key(), uid).has_value());
  cluster_.reset();
  open(kScriptUntilTold);
  EXPECT_NE(cluster_->job_uid(), uid);
  EXPECT_TRUE(cluster_->observe(cluster_->key())->pods.empty());
  EXPECT_TRUE(wait_until([&] { return session_members(process.pid).empty(); }));
}

TEST_F(LocalClusterTest, APidThatCameToAnotherProcessIsNotAdopted) {
  // This test's own process stands for the one that got the pid later.
  open("exit 0");
  PodRecord record;
  record.job_uid = cluster_->job_uid();
  cluster_.reset();
  record.name = "job-0-zzzzz";
  record.uid = "uid";
  record.process = *identify(::getpid());
  record.process.start_ticks += 1;
  ASSERT_TRUE(make_directories(run_dir() / "pods" / record.name).has_value());
  ASSERT_TRUE(write_pod_record(run_dir() / "pods" / record.name, record).has_value());
  std::ofstream(run_dir() / "pods" / record.name / "started");
  open("exit 0");
  const auto pod = look({"default", record.name, record.uid});
  ASSERT_TRUE(pod.has_value());
  EXPECT_EQ(pod->exit->reason, "Lost");
}

TEST_F(LocalClusterTest, APodWhoseMakerDiedBeforeItBeganIsYetToBeMade) {
  open("exit 0");
  PodRecord record;
  record.job_uid = cluster_->job_uid();
  cluster_.reset();
  record.name = "job-0-zzzzz";
  record.uid = "uid";
  record.process = *identify(::getpid());
  record.process.start_ticks += 1;
  ASSERT_TRUE(make_directories(run_dir() / "pods" / record.name).has_value());
  ASSERT_TRUE(write_pod_record(run_dir() / "pods" / record.name, record).has_value());
  std::ofstream(run_dir() / "status.json.tmp.4711") << "half";
  open("exit 0");
  EXPECT_TRUE(cluster_->observe(cluster_->key())->pods.empty());
  EXPECT_FALSE(std::filesystem::exists(run_dir() / "pods" / record.name / "pod.json"));
  EXPECT_FALSE(std::filesystem::exists(run_dir() / "status.json.tmp.4711"));
}

TEST_F(LocalClusterTest, AWholeJobFailsOnceAndCompletes) {
  // Index 1 fails in generation 1; everything succeeds in generation 2.
  open("[ \"$TRAINYARD_NODE_INDEX$TRAINYARD_GENERATION\" = 11 ] && exit 70; exit 0");
  std::vector<Reconciled> seen;
  std::stop_source stop;
  Reconciler* reconciler_address = nullptr;
  Reconciler reconciler({cluster_.get(), &clock_, nullptr, nullptr,
                         [&](const Reconciled& reconciled) {
                           seen.push_back(reconciled);
                           if (reconciled.finished) {
                             stop.request_stop();
                           }
                         },
                         [](const JobKey&, const Error& error) {
                           EXPECT_EQ(error.code, ErrorCode::kConflict) << error.message;
                         }});
  reconciler_address = &reconciler;
  cluster_->set_listener([&](const JobKey& key) { reconciler_address->wake(key); });
  reconciler.wake(cluster_->key());
  std::jthread watchdog([&](const std::stop_token& token) {
    static_cast<void>(wait_until([&] { return token.stop_requested(); }));
    stop.request_stop();
  });
  reconciler.run(stop.get_token());
  cluster_->set_listener({});
  watchdog.request_stop();
  ASSERT_FALSE(seen.empty());
  const api::TrainingJobStatus& status = seen.back().status;
  EXPECT_TRUE(seen.back().finished);
  EXPECT_TRUE(is_true(status, api::ConditionType::kComplete));
  EXPECT_EQ(status.restarts.total, 1);
  EXPECT_EQ(status.membership.generation, 2);
  EXPECT_EQ(status.attempts.at(0).exit_code, 70);
}

TEST(LaunchTest, NothingRunsWhenTheRecordIsRefused) {
  const TemporaryDirectory directory;
  const std::filesystem::path witness = directory.path() / "witness";
  LaunchSpec spec;
  spec.command = {"/bin/sh", "-c", "echo ran > '" + witness.string() + "'"};
  spec.log = directory.path() / "log";
  pid_t pid = 0;
  const auto launched = launch(spec, [&](const ProcessId& process) -> Status {
    pid = process.pid;
    return Error{ErrorCode::kIo, "disk full"};
  });
  ASSERT_FALSE(launched.has_value());
  EXPECT_EQ(launched.error().message, "disk full");
  EXPECT_FALSE(identify(pid).has_value()) << "it has ended and was reaped";
  EXPECT_FALSE(std::filesystem::exists(witness));
}

TEST(PodExitTest, IsReadBackAsWrittenUnderItsUidOnly) {
  const TemporaryDirectory directory;
  ContainerExit exit;
  exit.exit_code = 137;
  exit.signal = 9;
  exit.rank = 2;
  exit.reason = "OOMKilled";
  exit.message = "line\nbad byte \xff";
  exit.finished_at = Time(std::chrono::nanoseconds(1'700'000'000'123'456'789));
  ASSERT_TRUE(write_pod_exit(directory.path(), "uid", exit).has_value());
  const auto read = read_pod_exit(directory.path(), "uid");
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->exit_code, 137);
  EXPECT_EQ(read->signal, 9);
  EXPECT_EQ(read->rank, 2);
  EXPECT_EQ(read->reason, "OOMKilled");
  EXPECT_THAT(read->message, testing::StartsWith("line\nbad byte "));
  EXPECT_EQ(read->finished_at, exit.finished_at);
  EXPECT_EQ(read_pod_exit(directory.path(), "other").error().code, ErrorCode::kNotFound);
  std::ofstream(directory.path() / "exit.json") << "{";
  EXPECT_EQ(read_pod_exit(directory.path(), "uid").error().code, ErrorCode::kInvalidData);
}

}  // namespace
}  // namespace trainyard::control::local
