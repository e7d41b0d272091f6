#include "control/local/job_store.h"

#include <fstream>
#include <map>
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
#include "tests/support/temporary_directory.h"
#include "tests/unit/control/local/local_cluster_world.h"

namespace trainyard::control::local {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing_support::kScriptUntilTold;
using testing_support::script_options;

class JobStoreTest : public LocalClusterWorld {
 protected:
  /// Writes down that the run has failed after two restarts, and closes it.
  void fail_the_run() {
    auto job = cluster_->observe(cluster_->key());
    job->status.membership.generation = 3;
    job->status.restarts.total = 2;
    set_condition(job->status,
                  {api::ConditionType::kFailed, api::ConditionStatus::kTrue, "BudgetExceeded", ""},
                  clock_.now());
    ASSERT_TRUE(cluster_->put_status(cluster_->key(), cluster_->job_uid(), job->status,
                                     job->metadata.resource_version));
    cluster_.reset();
  }

  /// Writes down that the run is complete, and closes it.
  void complete_the_run() {
    auto job = cluster_->observe(cluster_->key());
    job->status.membership.generation = 1;
    set_condition(
        job->status,
        {api::ConditionType::kComplete, api::ConditionStatus::kTrue, "CompletionsReached", ""},
        clock_.now());
    ASSERT_TRUE(cluster_->put_status(cluster_->key(), cluster_->job_uid(), job->status,
                                     job->metadata.resource_version));
    cluster_.reset();
  }
};

TEST_F(JobStoreTest, AnotherJobOrAnotherSeedIsRefusedAndANewSpecIsANewGeneration) {
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

TEST_F(JobStoreTest, OtherCoresAreNoOtherJob) {
  const auto with_threads = [&](int64_t threads) {
    auto options = script_options(run_dir(), clock_, "exit 0");
    options.job.spec.engine = *api::decode_engine(
        R"({"model":{"layers":1,"hidden":8,"heads":1},"batch":{"globalSequences":8},
            "data":{"tokens":["/data"],"sequenceLength":8},"steps":10})",
        {.file = "engine"});
    options.job.spec.engine->runtime.threads = threads;
    return options;
  };
  for (const int64_t threads : {2, 1, 4}) {
    auto opened = LocalCluster::open(with_threads(threads));
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    const auto job = (*opened)->observe((*opened)->key());
    EXPECT_EQ(job->metadata.generation, 1);
    EXPECT_EQ(job->spec.engine->runtime.threads, threads);
  }
}

TEST_F(JobStoreTest, ValuesThatTheManifestDoesNotNameAreThoseOfTheRun) {
  const auto open_with = [&](const api::NumericsSpec& numerics) {
    auto options = script_options(run_dir(), clock_, "exit 0");
    options.job.spec.engine = *api::decode_engine(
        R"({"model":{"layers":1,"hidden":8,"heads":1},"batch":{"globalSequences":8},
            "data":{"tokens":["/data"],"sequenceLength":8},"steps":10})",
        {.file = "engine"});
    options.job.spec.engine->numerics = numerics;
    return LocalCluster::open(std::move(options));
  };
  // As runs were written down when this was the default.
  ASSERT_TRUE(open_with({.grain_tokens = 128}));
  {
    const auto opened = open_with({});
    ASSERT_TRUE(opened) << opened.error().message;
    const auto job = (*opened)->observe((*opened)->key());
    EXPECT_EQ(job->metadata.generation, 1);
    EXPECT_EQ(job->spec.engine->numerics.grain_tokens, 128);
  }
  ASSERT_TRUE(open_with({.key_block = 64})) << "its checkpoint may have that";
  const auto refused = open_with({.key_block = 32});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("spec.engine.numerics: differs from the job in"));
}

TEST_F(JobStoreTest, AnotherContextModeIsNoOtherJobWithoutContextRanks) {
  const auto generation_with = [&](int64_t context, api::ContextMode mode) {
    auto options = script_options(run_dir(), clock_, "exit 0");
    options.job.spec.engine = *api::decode_engine(
        R"({"model":{"layers":1,"hidden":8,"heads":4},"batch":{"globalSequences":8},
            "data":{"tokens":["/data"],"sequenceLength":8},"steps":10})",
        {.file = "engine"});
    options.job.spec.engine->parallelism.context = context;
    options.job.spec.engine->parallelism.context_mode = mode;
    const auto opened = LocalCluster::open(std::move(options));
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? (*opened)->observe((*opened)->key())->metadata.generation : 0;
  };
  // As runs were written down when this was the default.
  EXPECT_EQ(generation_with(1, api::ContextMode::kRing), 1);
  EXPECT_EQ(generation_with(1, api::ContextMode::kUlysses), 1);
  EXPECT_EQ(generation_with(2, api::ContextMode::kUlysses), 2);
  EXPECT_EQ(generation_with(2, api::ContextMode::kRing), 3);
}

/// A job of the engine whose paths are below `place`, which it is imported into as well.
class MovedJobTest : public JobStoreTest {
 protected:
  Result<std::unique_ptr<LocalCluster>> open_in(const std::filesystem::path& place,
                                                const std::string& import = "base") {
    auto options = script_options(place / "run", clock_, "exit 0");
    options.job.spec.engine = *api::decode_engine(
        R"({"model":{"import":"base"},"batch":{"globalSequences":8},
            "data":{"tokens":["data/train"],"sequenceLength":8},"steps":10})",
        {.file = "engine"});
    options.job.spec.engine->model.import_path = import;
    api::resolve_paths(*options.job.spec.engine, place);
    return LocalCluster::open(std::move(options));
  }
  static int64_t generation_of(LocalCluster& cluster) {
    return cluster.observe(cluster.key())->metadata.generation;
  }
  static void write_model(const std::filesystem::path& folder, const std::string& weights) {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << "{}";
    std::ofstream(folder / "model.safetensors") << weights;
  }
  std::filesystem::path place(const std::string& name) const { return folder_.path() / name; }

  testing_support::TemporaryDirectory folder_;
};

TEST_F(MovedJobTest, AFolderThatIsMovedOrCopiedWithItsRunIsTheSameJob) {
  write_model(place("first/base"), "weights");
  ASSERT_TRUE(open_in(place("first")));
  std::filesystem::rename(place("first"), place("second"));
  auto moved = open_in(place("second"));
  ASSERT_TRUE(moved) << moved.error().message;
  EXPECT_EQ(generation_of(**moved), 1);
  moved->reset();
  std::filesystem::copy(place("second"), place("third"), std::filesystem::copy_options::recursive);
  auto copied = open_in(place("third"));
  ASSERT_TRUE(copied) << copied.error().message;
  EXPECT_EQ(generation_of(**copied), 1);
}

TEST_F(MovedJobTest, AMovedRunThatIsCompleteStaysSo) {
  write_model(place("first/base"), "weights");
  cluster_ = *open_in(place("first"));
  complete_the_run();
  std::ofstream(place("first/run/result.json")) << "{}";
  std::filesystem::rename(place("first"), place("second"));
  cluster_ = *open_in(place("second"));
  EXPECT_EQ(cluster_->taken_up(), TakenUp::kNo);
  const auto job = cluster_->observe(cluster_->key());
  EXPECT_TRUE(is_true(job->status, api::ConditionType::kComplete));
  EXPECT_FALSE(is_true(job->status, api::ConditionType::kSuspended));
  EXPECT_TRUE(std::filesystem::exists(place("second/run/result.json")));
}

TEST_F(MovedJobTest, AnImportIsComparedByItsContent) {
  write_model(place("at/base"), "weights");
  ASSERT_TRUE(open_in(place("at")));
  write_model(place("elsewhere/renamed"), "weights");
  EXPECT_TRUE(open_in(place("at"), place("elsewhere/renamed"))) << "a copy by another name";
  std::filesystem::create_directory_symlink(place("at/base"), place("link"));
  EXPECT_TRUE(open_in(place("at"), place("link")));
  EXPECT_TRUE(open_in(place("at"), "./base/"));
  write_model(place("other"), "WEIGHTS");
  const auto other = open_in(place("at"), place("other"));
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, HasSubstr("spec.engine.model.import: differs"));
  std::filesystem::remove_all(place("at/base"));
  EXPECT_TRUE(open_in(place("at"), place("other"))) << "checkpoints tell whether it fits";
}

TEST_F(JobStoreTest, TheSpellingOfTheCheckpointPathIsNoOtherPath) {
  open("exit 0");
  cluster_.reset();
  auto spelled = script_options(run_dir(), clock_, "exit 0");
  spelled.job.spec.checkpoint_policy.path = "./" + spelled.job.metadata.name + "/";
  const auto opened = LocalCluster::open(std::move(spelled));
  EXPECT_TRUE(opened.has_value()) << opened.error().message;
}

TEST_F(JobStoreTest, WhatItsReadersWouldRefuseIsNotWritten) {
  auto options = script_options(run_dir(), clock_, "exit 0");
  options.job.spec.engine.emplace();
  options.job.spec.engine->data.tokens.assign(3000, "/data/" + std::string(400, 'x'));
  const auto refused = LocalCluster::open(std::move(options));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(refused.error().message, HasSubstr("spec.engine.data"));
  EXPECT_FALSE(std::filesystem::exists(run_dir() / "job.json"));
  open("exit 0");  // the folder is as good as new
}

TEST_F(JobStoreTest, ADamagedStatusIsNamedInOurWords) {
  open("exit 0");
  const auto job = cluster_->observe(cluster_->key());
  ASSERT_TRUE(cluster_->put_status(cluster_->key(), cluster_->job_uid(), job->status,
                                   job->metadata.resource_version));
  cluster_.reset();
  for (const auto& [text, fault] :
       {std::pair{std::string("rubbish"), "no JSON at byte 1"},
        std::pair{std::string("{\"uid\":3}"), "type must be"},
        std::pair{std::string("{\"uid\":\"u\",\"version\":1e30}"), "type must be whole number"},
        std::pair{R"({"uid":"u","version":1,"status":)" + std::string(500'000, '['),
                  "nested too deeply"}}) {
    std::ofstream(run_dir() / "status.json") << text;
    const auto opened = LocalCluster::open(script_options(run_dir(), clock_, "exit 0"));
    ASSERT_FALSE(opened.has_value());
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidData);
    EXPECT_THAT(opened.error().message, HasSubstr("status.json: damaged: "));
    EXPECT_THAT(opened.error().message, HasSubstr(fault));
    EXPECT_THAT(opened.error().message, Not(HasSubstr("exception")));
  }
}

TEST_F(JobStoreTest, ARunDirectoryWithLinksInPlaceOfItsFilesIsRefused) {
  const auto elsewhere = run_dir().parent_path() / "elsewhere";
  std::ofstream(elsewhere) << "mine";
  std::filesystem::create_directories(run_dir());
  for (const char* name : {"lock", "history.jsonl", "run.log"}) {
    std::filesystem::create_symlink(elsewhere, run_dir() / name);
    const auto opened = LocalCluster::open(script_options(run_dir(), clock_, "exit 0"));
    ASSERT_FALSE(opened.has_value()) << name;
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidConfig);
    EXPECT_THAT(opened.error().message, HasSubstr(std::string(name) + ": found a link"));
    std::filesystem::remove(run_dir() / name);
  }
  EXPECT_EQ(std::filesystem::file_size(elsewhere), 4u);
  std::filesystem::create_directory(run_dir().parent_path() / "large");
  std::filesystem::create_directory_symlink("../large", run_dir() / "checkpoints");
  EXPECT_TRUE(check_entries(run_dir())) << "a disk of its own for checkpoints";
}

TEST_F(JobStoreTest, ARunDirectoryOfAnotherUserIsRefused) {
  constexpr uid_t kStranger = 65534;
  constexpr uid_t kUser = 12345;
  std::filesystem::create_directories(run_dir() / "pods");
  EXPECT_TRUE(check_entries(run_dir()));
  const bool root = ::geteuid() == 0;
  const std::string owner = std::to_string(root ? kStranger : ::geteuid());
  for (const auto& path : {run_dir(), run_dir() / "pods"}) {
    if (root) {
      ASSERT_EQ(::chown(path.c_str(), kStranger, -1), 0);
    }
    const Status refused = check_entries(run_dir(), kUser);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidConfig);
    EXPECT_THAT(refused.error().message,
                HasSubstr(": belongs to user " + owner + ", wanted user 12345"));
    if (!root) continue;
    EXPECT_THAT(refused.error().message, StartsWith(path.string() + ":"));
    EXPECT_TRUE(check_entries(run_dir(), kStranger)) << "root's files do no harm";
    const auto opened = LocalCluster::open(script_options(run_dir(), clock_, "exit 0"));
    ASSERT_FALSE(opened.has_value()) << path;
    EXPECT_EQ(opened.error().message, check_entries(run_dir()).error().message);
    ASSERT_EQ(::chown(path.c_str(), 0, -1), 0);
  }
}

TEST_F(JobStoreTest, AFailedRunIsTakenUpAgainByAChangedManifestOrOnRequest) {
  open("exit 0");
  fail_the_run();
  open("exit 0");
  EXPECT_EQ(cluster_->taken_up(), TakenUp::kNo);
  cluster_.reset();

  auto changed = script_options(run_dir(), clock_, "exit 0");
  changed.job.spec.failure_policy.backoff.max = seconds(7);
  changed.job.spec.checkpoint_policy.path = "elsewhere";  // nothing was trained: may be mended
  auto opened = LocalCluster::open(std::move(changed));
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  EXPECT_EQ((*opened)->taken_up(), TakenUp::kAfterFailure);
  const auto after = (*opened)->observe((*opened)->key());
  EXPECT_FALSE(is_true(after->status, api::ConditionType::kFailed));
  EXPECT_TRUE(is_true(after->status, api::ConditionType::kSuspended)) << "as one that was stopped";
  EXPECT_EQ(after->status.membership.generation, 3);
  EXPECT_EQ(after->status.restarts.total, 2) << "counts go on";
  (*opened).reset();

  auto again = script_options(run_dir(), clock_, "exit 0");
  again.job.spec.failure_policy.backoff.max = seconds(7);
  again.job.spec.checkpoint_policy.path = "elsewhere";
  opened = LocalCluster::open(std::move(again));
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  EXPECT_EQ((*opened)->taken_up(), TakenUp::kNo)
      << "it is written down that it is none of the failed";
  EXPECT_EQ((*opened)->observe((*opened)->key())->metadata.resource_version,
            after->metadata.resource_version);
}

TEST_F(JobStoreTest, ARunThatIsTakenUpIsNoFailedOneBeforeItsManifestChanges) {
  open("exit 0");
  fail_the_run();
  auto changed = script_options(run_dir(), clock_, "exit 0");
  changed.job.spec.failure_policy.backoff.max = seconds(7);
  // The files of the new spec cannot be written, as in a crash before them.
  std::filesystem::remove(run_dir() / "checkpoint-policy.json");
  std::filesystem::create_directories(run_dir() / "checkpoint-policy.json" / "in-the-way");
  EXPECT_FALSE(LocalCluster::open(std::move(changed)).has_value());
  std::filesystem::remove_all(run_dir() / "checkpoint-policy.json");
  open("exit 0");
  EXPECT_FALSE(is_true(cluster_->observe(cluster_->key())->status, api::ConditionType::kFailed));
}

TEST_F(JobStoreTest, ACompleteRunThatIsTrainedFurtherHasNeitherItsResultsNorItsPods) {
  auto options = script_options(run_dir(), clock_, "exit 0");
  options.job.spec.engine = *api::decode_engine(
      R"({"model":{"layers":1,"hidden":8,"heads":1},"batch":{"globalSequences":8},
          "data":{"tokens":["/data"],"sequenceLength":8},"steps":10})",
      {.file = "engine"});
  auto opened = LocalCluster::open(options);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  cluster_ = *std::move(opened);
  const PodRef pod = create(0);
  ASSERT_EQ(ended(pod).phase, PodPhase::kSucceeded);
  const std::filesystem::path pod_dir = run_dir() / "pods" / pod.name;
  for (const auto& folder : {run_dir(), pod_dir})
    std::ofstream(folder / "result.json") << "{}";
  std::filesystem::create_directories(cluster_->checkpoint_dir() / "job-step-10");
  complete_the_run();

  options.job.spec.engine->steps = 20;
  opened = LocalCluster::open(options);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  cluster_ = *std::move(opened);
  EXPECT_EQ(cluster_->taken_up(), TakenUp::kAfterCompletion);
  EXPECT_TRUE(cluster_->observe(cluster_->key())->pods.empty()) << "it has ended well before";
  EXPECT_FALSE(std::filesystem::exists(pod_dir / "pod.json"));
  for (const auto& folder : {run_dir(), pod_dir})
    EXPECT_FALSE(std::filesystem::exists(folder / "result.json")) << folder;
  EXPECT_TRUE(std::filesystem::exists(pod_dir / "log"));
}

/// Its deletion was cut short between its two files.
TEST_F(JobStoreTest, TheStatusOfAJobThatIsGoneIsNotThatOfTheNextOne) {
  open("exit 0");
  const std::string gone_uid = cluster_->job_uid();
  complete_the_run();
  std::filesystem::remove(run_dir() / "job.json");
  for (const char* when : {"as it is made", "as it is found"}) {
    open("exit 0");
    EXPECT_NE(cluster_->job_uid(), gone_uid) << when;
    const auto job = cluster_->observe(cluster_->key());
    EXPECT_EQ(job->status.membership.generation, 0) << when;
    EXPECT_FALSE(is_true(job->status, api::ConditionType::kComplete)) << when;
    cluster_.reset();
  }
}

TEST_F(JobStoreTest, WhatCannotBeReadIsNotTakenForNothing) {
  for (const char* name : {"status.json", "job.json"}) {
    open("exit 0");
    const auto job = cluster_->observe(cluster_->key());
    ASSERT_TRUE(cluster_->put_status(cluster_->key(), cluster_->job_uid(), job->status,
                                     job->metadata.resource_version));
    cluster_.reset();
    const std::string good = read_file(run_dir() / name, 1 << 20).value();
    const std::string large(3 << 20, ' ');
    std::ofstream(run_dir() / name) << large;
    EXPECT_FALSE(LocalCluster::open(script_options(run_dir(), clock_, "exit 0")).has_value());
    EXPECT_EQ(std::filesystem::file_size(run_dir() / name), large.size()) << name << " is kept";
    std::ofstream(run_dir() / name) << good;
  }
}

TEST_F(JobStoreTest, WhatRanksReadIsPutBackBeforeTheyStart) {
  open(kScriptUntilTold);
  const std::vector<std::string> names = {"checkpoint-policy.json", "job.json"};
  std::map<std::string, std::string> before;
  for (const std::string& name : names) {
    before[name] = read_file(run_dir() / name, 1 << 20).value();
    std::filesystem::remove(run_dir() / name);
  }
  create(0);
  for (const std::string& name : names)
    EXPECT_EQ(read_file(run_dir() / name, 1 << 20).value_or(""), before[name]) << name;
}

}  // namespace
}  // namespace trainyard::control::local
