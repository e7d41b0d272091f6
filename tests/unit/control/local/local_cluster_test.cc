#include "control/local/local_cluster.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
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
#include "tests/unit/control/local/local_cluster_world.h"

namespace trainyard::control::local {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
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

class LocalClusterTest : public LocalClusterWorld {};

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

TEST_F(LocalClusterTest, WhoHasThePidOfAProcessThatEndedIsLeftAlone) {
  open(kScriptUntilTold);
  const PodRef ref = create(0);
  const ProcessId process = process_of(ref);
  ProcessId earlier = process;
  earlier.start_ticks -= 1;
  ProcessId before_the_boot = process;
  before_the_boot.boot_id = "another";
  for (const ProcessId& ended_long_ago : {earlier, before_the_boot}) {
    kill_process(ended_long_ago);
    kill_session(ended_long_ago);
  }
  EXPECT_TRUE(tell_to_exit(run_dir(), ref.name, 7));
  EXPECT_EQ(ended(ref).exit->exit_code, 7);

  const PodRef other = create(1);
  ASSERT_TRUE(wait_until([&] {
    return std::filesystem::exists(run_dir() / "pods" / other.name / "end");
  })) << "it has begun";
  kill_process(process_of(other));
  EXPECT_EQ(ended(other).exit->signal, SIGKILL);
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

TEST_F(LocalClusterTest, TheListenerHearsThatAFinishedPodIsTakenAway) {
  open("exit 0");
  // A pause, and several times: the call that tells of the pod's end may come late and be taken for
  // this one.
  for (int index = 0; index < 5; ++index) {
    const PodRef ref = create(index);
    EXPECT_EQ(ended(ref).phase, PodPhase::kSucceeded);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::atomic<int> calls = 0;
    cluster_->set_listener([&](const JobKey&) { ++calls; });
    ASSERT_TRUE(cluster_->delete_pod(ref, seconds(1)).has_value());
    ASSERT_TRUE(wait_until([&] { return calls > 0; }));
    cluster_->set_listener({});
  }
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

TEST_F(LocalClusterTest, ADamagedPodRecordIsNamedAndNothingIsTouched) {
  ASSERT_TRUE(make_directories(run_dir() / "pods" / "job-0-xxxxx").has_value());
  std::ofstream(run_dir() / "pods" / "job-0-xxxxx" / "pod.json") << "{\"name\": 3";
  const auto opened = LocalCluster::open(script_options(run_dir(), clock_, "exit 0"));
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalidData);
  EXPECT_THAT(opened.error().message, HasSubstr("job-0-xxxxx/pod.json"));
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

TEST_F(LocalClusterTest, APodThatCannotBeWatchedDoesNotRun) {
  open("echo ran > \"$TRAINYARD_POD_DIR/witness\"");
  int refused = 0;
  for (rlim_t limit = 3; limit <= kDescriptorsEnough; ++limit) {
    const auto observed = cluster_->observe(cluster_->key());
    const PodSpec spec =
        make_pod_spec(observed->metadata, observed->spec, static_cast<int>(limit), 1, 2);
    std::optional<FewDescriptors> few(limit);
    const auto reply = cluster_->create_pod(spec);
    few.reset();
    const PodRef ref{"default", spec.name, reply ? reply->uid : ""};
    if (reply) {
      EXPECT_EQ(ended(ref).phase, PodPhase::kSucceeded) << limit;
    } else {
      ++refused;
      EXPECT_EQ(file_of(ref, "witness"), "") << limit;
    }
  }
  EXPECT_GT(refused, 0);
  const size_t made = cluster_->observe(cluster_->key())->pods.size();
  EXPECT_EQ(made, kDescriptorsEnough - 2 - static_cast<size_t>(refused));
  cluster_.reset();
  open("exit 0");
  EXPECT_EQ(cluster_->observe(cluster_->key())->pods.size(), made) << "nothing is left of others";
}

TEST_F(LocalClusterTest, NoticesThatItsDirectoryIsGone) {
  open("exit 0");
  EXPECT_TRUE(cluster_->is_in_place());
  const std::filesystem::path moved = run_dir().string() + "-moved";
  std::filesystem::rename(run_dir(), moved);
  EXPECT_FALSE(cluster_->is_in_place());
  std::filesystem::create_directory(run_dir());
  EXPECT_FALSE(cluster_->is_in_place()) << "another's";
  std::filesystem::remove(run_dir());
  std::filesystem::rename(moved, run_dir());
  EXPECT_TRUE(cluster_->is_in_place());
}

TEST_F(LocalClusterTest, WithoutItsLockFileItIsStillAlone) {
  open("exit 0");
  for (const char* how : {"removed", "another's"}) {
    std::filesystem::remove(run_dir() / "lock");
    if (std::string(how) != "removed") std::ofstream(run_dir() / "lock") << how;
    EXPECT_TRUE(cluster_->is_in_place()) << how;
    const auto second = LocalCluster::open(script_options(run_dir(), clock_, "exit 0"));
    ASSERT_FALSE(second.has_value()) << how;
    EXPECT_EQ(second.error().code, ErrorCode::kConflict) << second.error().message;
  }
}

TEST_F(LocalClusterTest, WhatCannotBeARunDirectoryIsTheCallersToMend) {
  std::ofstream(run_dir() / "file") << "x";
  for (const auto& path : {run_dir() / "file", run_dir() / "file" / "below"}) {
    const auto opened = LocalCluster::open(script_options(path, clock_, "exit 0"));
    ASSERT_FALSE(opened.has_value());
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidConfig) << opened.error().message;
    EXPECT_THAT(opened.error().message, HasSubstr("not a directory"));
  }
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

TEST(LaunchTest, VariablesOfEveryNameArrive) {
  const TemporaryDirectory directory;
  const std::filesystem::path odd = directory.path() / "a=b";  // where env looks for variables
  std::filesystem::create_symlink("/usr/bin/env", odd);
  for (const std::string& program : {std::string("/usr/bin/env"), odd.string()}) {
    LaunchSpec spec;
    spec.command = {program, "LAST=argument"};
    spec.environment = {{"a.b", "dotted = $PATH"},
                        {"-c", "dashed\nline"},
                        {"1", "first"},
                        {"A_1", "plain"},
                        {"PATH", "/nowhere"}};
    spec.log = directory.path() / "log";
    std::filesystem::remove(spec.log);
    const auto launched = launch(spec, [](const ProcessId&) { return Status(); });
    ASSERT_TRUE(launched.has_value()) << launched.error().message;
    int status = -1;
    ASSERT_EQ(::waitpid(launched->pid, &status, 0), launched->pid);
    EXPECT_EQ(status, 0) << program;
    const std::string log = "\n" + read_file(spec.log, 1 << 16).value_or("");
    for (const char* line : {"\na.b=dotted = $PATH\n", "\n-c=dashed\nline\n", "\n1=first\n",
                             "\nA_1=plain\n", "\nPATH=/nowhere\n", "\nLAST=argument\n"})
      EXPECT_THAT(log, HasSubstr(line)) << program;
  }
}

TEST(PodExitTest, IsWrittenIntoTheRoomTakenBeforeWhereThereIsNoOther) {
  const TemporaryDirectory directory;
  const std::string other_room = "exit.json.tmp." + std::to_string(::getpid());
  std::filesystem::create_directories(directory.path() / other_room / "in-the-way");
  ContainerExit exit;
  exit.exit_code = 143;
  EXPECT_FALSE(write_pod_exit(directory.path(), "uid", exit)) << "nothing was reserved";
  ASSERT_TRUE(reserve_pod_exit(directory.path()));
  ASSERT_TRUE(write_pod_exit(directory.path(), "uid", exit));
  EXPECT_EQ(read_pod_exit(directory.path(), "uid")->exit_code, 143);
  EXPECT_FALSE(write_pod_exit(directory.path(), "uid", exit)) << "it was used up";
  std::filesystem::remove_all(directory.path() / other_room);
  ASSERT_TRUE(reserve_pod_exit(directory.path()));
  ASSERT_TRUE(write_pod_exit(directory.path(), "uid", exit));
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "exit.json.reserve"));
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
