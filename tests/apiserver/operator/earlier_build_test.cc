// Upgrades with programs that are really of an earlier commit: tools/earlier_programs builds them.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apiserver/operator/stream.h"
#include "tests/support/child_process.h"
#include "tests/support/exact.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::apiserver {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::same_hash;

/// Before numerics.keyBlock and tensorChunks were fields and the others had defaults of their own.
constexpr char kEarlier[] = "02eeba82";
/// A build from nothing.
constexpr std::chrono::minutes kBuild{60};

class EarlierBuildTest : public StreamTest {
 protected:
  static void SetUpTestSuite() {
    StreamTest::SetUpTestSuite();
    const testing_support::TemporaryDirectory said;
    const testing_support::CommandResult made = testing_support::run_command(
        {.argv = {testing_support::source_path("tools/earlier_programs"), kEarlier},
         .output = said.path() / "out",
         .errors = said.path() / "err"},
        kBuild);
    ASSERT_EQ(made.exit_code, 0) << made.errors;
    earlier_ = made.output.substr(0, made.output.find('\n'));
  }
  void SetUp() override {
    StreamTest::SetUp();
    make_claim();
  }
  void TearDown() override {
    apply_newest_definition();
    StreamTest::TearDown();
  }

  void apply_newest_definition() const {
    must({"apply", "--server-side", "--force-conflicts", "-f",
          testing_support::source_path("manifests/crd.yaml")});
    ASSERT_TRUE(wait_until([&] { return takes_new_numerics(); }));
  }
  /// The earlier definition, operator and worker image.
  void install_earlier() {
    must({"replace", "-f",
          testing_support::source_path("tests/fixtures/formats/crd-02eeba82.yaml")});
    ASSERT_TRUE(wait_until([&] { return refuses_new_numerics(); }));
    ASSERT_EQ(operator_->stop(), 0);
    start_operator(earlier_);
    run_agents_of(earlier_);
  }
  /// What the server says of a manifest that names one of the later fields.
  testing_support::CommandResult try_new_numerics() const {
    Json job = engine_job(2, 20);
    job["metadata"]["name"] = "tried";
    job["spec"]["engine"]["numerics"] = {{"keyBlock", 64}};
    return kubectl_with({"create", "--dry-run=server", "--validate=strict"}, job.dump());
  }
  bool takes_new_numerics() const { return try_new_numerics().exit_code == 0; }
  bool refuses_new_numerics() const {
    const testing_support::CommandResult tried = try_new_numerics();
    return tried.exit_code != 0 && tried.errors.find("keyBlock") != std::string::npos;
  }

  /// Twenty seconds and more, and a checkpoint every second or so.
  Json job(const std::string& name) const {
    Json job = engine_job(2, 20'000);
    job["metadata"]["name"] = name;
    job["spec"]["checkpointPolicy"]["everySteps"] = 400;
    return job;
  }
  std::filesystem::path checkpoints(const std::string& name) const {
    return machine_->claim("ckpt") / name;
  }
  /// The format's versions that its checkpoints have.
  std::set<int> versions(const std::string& name) const {
    std::set<int> found;
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints(name), gone)) {
      if (entry.is_symlink()) continue;
      std::ifstream file(entry.path() / "manifest.json");
      const Json manifest = Json::parse(file, nullptr, false);
      if (manifest.is_object()) found.insert(manifest.value("version", 0));
    }
    return found;
  }
  void signal_rank(const std::string& name, int index, int signal) const {
    const pid_t rank = rank_of(member(name, index));
    ASSERT_GT(rank, 0) << name;
    ::kill(rank, signal);
  }
  void kill_rank(const std::string& name) const { signal_rank(name, 1, SIGKILL); }
  /// Plays until the job trains in that generation and has saved there.
  ::testing::AssertionResult saves_in_generation(const std::string& name, int generation) {
    const std::string prefix = "g" + std::to_string(generation) + "-step-";
    const bool done = until([&] {
      std::error_code none_yet;
      for (const auto& entry : std::filesystem::directory_iterator(checkpoints(name), none_yet)) {
        if (entry.path().filename().string().starts_with(prefix)) return true;
      }
      return false;
    });
    if (done) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << job_status(name).dump(1);
  }
  ::testing::AssertionResult comes_to(const std::string& name, const std::string& type) {
    if (until([&] { return condition(name, type) == "True"; }))
      return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << job_status(name).dump(1);
  }
  std::string hash_of_run(const std::filesystem::path& programs, const Json& job) const {
    return testing_support::TrainyardCommand(folder(), programs / "trainyard")
        .state_hash_of_run(job);
  }
  static std::filesystem::path own() {
    return std::filesystem::path(testing_support::program_path("trainyard")).parent_path();
  }

  static std::filesystem::path earlier_;
};
std::filesystem::path EarlierBuildTest::earlier_;

TEST_F(EarlierBuildTest, ItsJobsGoOnAfterTheUpgradeToTheirHash) {
  install_earlier();
  Json paused = job("paused");
  Json asleep = job("asleep");
  asleep["spec"]["suspend"] = true;
  for (const Json& made : {job("tiny"), paused, asleep})
    apply(made);
  ASSERT_TRUE(saves_in_generation("tiny", 1));
  for (const int index : {0, 1})  // that it does not end before the upgrade
    signal_rank("tiny", index, SIGSTOP);
  ASSERT_TRUE(saves_in_generation("paused", 1));
  paused["spec"]["suspend"] = true;
  apply(paused);
  ASSERT_TRUE(comes_to("paused", "Suspended"));
  EXPECT_EQ(get({"tj", "tiny"})["spec"]["engine"]["numerics"]["grainTokens"], 128);

  apply_newest_definition();
  ASSERT_EQ(operator_->stop(), 0);
  start_operator();
  for (const Json& made : {job("tiny"), paused, asleep}) {
    apply(made);
    must_with({"replace"}, made.dump());
    apply(made);
  }
  for (const int index : {0, 1})
    signal_rank("tiny", index, SIGCONT);
  let_it_delete();
  EXPECT_EQ(job_status("tiny")["membership"]["generation"], 1) << "no restart for an upgrade";

  // Its image is pinned, then the new one comes.
  kill_rank("tiny");
  ASSERT_TRUE(saves_in_generation("tiny", 2));
  run_agents_of(own());
  kill_rank("tiny");
  ASSERT_TRUE(comes_to("tiny", "Complete"));
  EXPECT_EQ(job_status("tiny")["restarts"]["total"], 2);
  for (const char* name : {"paused", "asleep"})
    patch(name, {{"suspend", false}});
  for (const char* name : {"paused", "asleep"})
    ASSERT_TRUE(comes_to(name, "Complete"));
  const std::string expected = hash_of_run(earlier_, job("tiny"));
  for (const char* name : {"tiny", "paused"}) {
    EXPECT_TRUE(same_hash(trainyard_->state_hash(checkpoints(name)), expected));
    EXPECT_THAT(versions(name), ElementsAre(1));
  }
  EXPECT_TRUE(
      same_hash(trainyard_->state_hash(checkpoints("asleep")), hash_of_run(own(), job("asleep"))))
      << "it had not begun, and its manifest names no numerics";
}

TEST_F(EarlierBuildTest, ItsImageTrainsJobsOfThisOperator) {
  run_agents_of(earlier_);
  apply(job("tiny"));
  ASSERT_TRUE(saves_in_generation("tiny", 1));
  kill_rank("tiny");
  ASSERT_TRUE(comes_to("tiny", "Complete"));
  EXPECT_EQ(job_status("tiny")["restarts"]["total"], 1);
  EXPECT_THAT(versions("tiny"), ElementsAre(1));
  EXPECT_TRUE(
      same_hash(trainyard_->state_hash(checkpoints("tiny")), hash_of_run(earlier_, job("tiny"))));
}

TEST_F(EarlierBuildTest, ItsImageRefusesWhatItWouldContinueWithOtherBits) {
  apply(job("tiny"));
  ASSERT_TRUE(saves_in_generation("tiny", 1));
  ASSERT_THAT(versions("tiny"), ElementsAre(2));
  run_agents_of(earlier_);
  kill_rank("tiny");
  ASSERT_TRUE(comes_to("tiny", "Failed"));
  EXPECT_THAT(message("tiny", "Failed"), HasSubstr("version"));
  EXPECT_THAT(versions("tiny"), ElementsAre(2));
}

/// Operators of two tags, and what their images run.
class TwoImagesTest : public EarlierBuildTest {
 protected:
  void SetUp() override {
    EarlierBuildTest::SetUp();
    run_agents_of(earlier_, "earlier");
    run_agents_of(own(), "own");
  }
  void replace_operator(const std::filesystem::path& programs, const std::string& tag) {
    ASSERT_EQ(operator_->stop(), 0);
    start_operator(programs, tag);
  }
  /// A job whose pods find no node yet: its gang is not whole.
  Json waiting_job() const {
    Json made = job("tiny");
    place(made, site());
    return made;
  }
  std::string site() const { return "late-" + name_space(); }
  void give_nodes() { make_nodes(site(), 2, 2, /*kubelets=*/false); }
  void wait_for_pods() {
    ASSERT_TRUE(wait_until([&] { return names_of_pods("tiny").size() == 2; }));
  }
  std::set<std::string> tags() const {
    std::set<std::string> found;
    for (const Json& pod : pods("tiny")) {
      const std::string image = pod["spec"]["containers"][0]["image"];
      found.insert(image.substr(image.rfind(':') + 1));
    }
    return found;
  }
};

/// Whose hash of a spec is another: it takes the spec for edited.
TEST_F(TwoImagesTest, AGangThatAnEarlierOperatorHasBegunIsMadeAnewWithOneImage) {
  install_earlier();
  replace_operator(earlier_, "earlier");
  apply(waiting_job());
  ASSERT_NO_FATAL_FAILURE(wait_for_pods());
  const std::string unmade = member("tiny", 1);
  ASSERT_EQ(operator_->stop(), 0);
  must({"delete", "pod", unmade, "--grace-period=0", "--force"});
  apply_newest_definition();
  start_operator(own(), "own");
  give_nodes();
  ASSERT_TRUE(comes_to("tiny", "Complete"));
  EXPECT_THAT(tags(), ElementsAre("own"));
  EXPECT_EQ(job_status("tiny")["restarts"].value("total", 0), 0);
  Json stored = job("tiny");
  stored["spec"]["engine"]["numerics"] = get({"tj", "tiny"})["spec"]["engine"]["numerics"];
  EXPECT_EQ(stored["spec"]["engine"]["numerics"]["grainTokens"], 128);
  EXPECT_TRUE(same_hash(trainyard_->state_hash(checkpoints("tiny")), hash_of_run(own(), stored)));
}

TEST_F(TwoImagesTest, AGangOfWhichEarlierOperatorsHaveMadeTwoHalvesIsMadeAnewOnce) {
  install_earlier();
  replace_operator(earlier_, "earlier");
  apply(waiting_job());
  ASSERT_NO_FATAL_FAILURE(wait_for_pods());
  const std::string unmade = member("tiny", 1);
  ASSERT_EQ(operator_->stop(), 0);
  must({"delete", "pod", unmade, "--grace-period=0", "--force"});
  start_operator(earlier_, "own");
  ASSERT_NO_FATAL_FAILURE(wait_for_pods());
  EXPECT_THAT(tags(), ElementsAre("earlier", "own"));
  apply_newest_definition();
  replace_operator(own(), "own");
  give_nodes();
  ASSERT_TRUE(comes_to("tiny", "Complete"));
  EXPECT_THAT(tags(), ElementsAre("own"));
  EXPECT_EQ(job_status("tiny")["restarts"]["total"], 1);
  EXPECT_EQ(job_status("tiny")["attempts"][0]["reason"], "MixedBuilds");
  EXPECT_TRUE(
      same_hash(trainyard_->state_hash(checkpoints("tiny")), hash_of_run(own(), job("tiny"))));
}

/// Which has a default for grainTokens where the worker of today takes what suits the model.
TEST_F(TwoImagesTest, AJobThatNamesItsNumericsGoesOnUnderTheEarlierOperator) {
  replace_operator(own(), "own");
  Json made = job("tiny");
  made["spec"]["engine"]["numerics"] = {{"grainTokens", 32}};
  apply(made);
  ASSERT_TRUE(saves_in_generation("tiny", 1));
  replace_operator(earlier_, "own");
  kill_rank("tiny");
  ASSERT_TRUE(comes_to("tiny", "Complete"));
  EXPECT_EQ(job_status("tiny")["restarts"]["total"], 1);
  EXPECT_TRUE(same_hash(trainyard_->state_hash(checkpoints("tiny")), hash_of_run(own(), made)));
}

}  // namespace
}  // namespace trainyard::apiserver
