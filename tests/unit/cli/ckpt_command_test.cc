#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "common/io/file.h"
#include "tests/support/paths.h"
#include "tests/support/whole_tensor.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "worker/hf/model_folder.h"
#include "worker/model/family.h"

namespace trainyard::cli {
namespace {

using checkpoint::PosixFileSystem;
using checkpoint::testing::JobDirectory;
using checkpoint::testing::slurp;
using checkpoint::testing::spill;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Ran {
  int exit_code;
  std::string out;
  std::string err;
};

Ran trainyard(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  const int exit_code = run(arguments, out, err);
  return {exit_code, out.str(), err.str()};
}

void flip_a_bit(const std::filesystem::path& path, size_t at) {
  std::string content = slurp(path);
  content[at] = static_cast<char>(content[at] ^ 4);
  spill(path, content);
}

/// Two generations: 1 trained to step 20, 2 went on from there on three ranks to step 30.
class CkptCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(job_.train(files_, {.generation = 1, .ranks = 2, .steps = {10, 20}}), "");
    ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1, .ranks = 3, .steps = {30}}), "");
  }
  std::string root() const { return job_.root().string(); }

  PosixFileSystem files_;
  JobDirectory job_;
};

TEST_F(CkptCommandTest, LsTellsWhatIsThere) {
  const Ran text = trainyard({"ckpt", "ls", root()});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("g2-step-0000000030"), HasSubstr("1920"),
                              HasSubstr("current"), Not(HasSubstr("damaged"))));
  flip_a_bit(job_.root() / "g2-step-0000000030/manifest.json", 100);
  std::filesystem::remove(job_.root() / "g1-step-0000000010/manifest.json");
  const auto json = nlohmann::json::parse(trainyard({"ckpt", "ls", "-o", "json", root()}).out);
  std::map<std::string, std::string> states;
  for (const auto& one : json)
    states[one["name"]] = one["state"];
  const std::map<std::string, std::string> wanted = {{"g1-step-0000000010", "incomplete"},
                                                     {"g2-step-0000000020", "current"},
                                                     {"g2-step-0000000030", "damaged"}};
  for (const auto& [name, state] : wanted)
    EXPECT_EQ(states[name], state) << name;
}

TEST_F(CkptCommandTest, LsReadsEveryByteWhereItIsToldTo) {
  flip_a_bit(job_.root() / "g2-step-0000000030/shard-1-of-3.safetensors", 300);
  EXPECT_THAT(trainyard({"ckpt", "ls", root()}).out, Not(HasSubstr("damaged")));
  EXPECT_EQ(trainyard({"ckpt", "ls", root()}).exit_code, 0);
  const Ran read = trainyard({"ckpt", "ls", "--verify", root()});
  EXPECT_EQ(read.exit_code, 65);
  EXPECT_THAT(read.out,
              AllOf(HasSubstr("damaged: shard-1-of-3.safetensors: chunk 1"), HasSubstr("current")));
  EXPECT_THAT(read.err, HasSubstr(root() + ": 1 of 3 damaged: g2-step-0000000030\n"));
  flip_a_bit(job_.root() / "g1-step-0000000010/manifest.json", 100);
  const Ran json = trainyard({"ckpt", "ls", "--verify", "-o", "json", root()});
  EXPECT_EQ(json.exit_code, 65);
  EXPECT_EQ(nlohmann::json::parse(json.out).size(), 3U) << "the whole table";
  EXPECT_THAT(json.err, HasSubstr("2 of 3 damaged: g1-step-0000000010, g2-step-0000000030\n"));
}

TEST_F(CkptCommandTest, ARunDirectoryStandsForItsCheckpoints) {
  const trainyard::testing_support::TemporaryDirectory run;
  std::filesystem::create_directories(run.path() / "pvc/claim");
  std::filesystem::copy(
      job_.root(), run.path() / "pvc/claim/job",
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
  spill(run.path() / "job.json", R"({
    "apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "job"},
    "spec": {
      "engine": {"model": {"preset": "gpt2-100k"}, "data": {"tokens": ["x"]},
                 "batch": {"globalSequences": 1}, "steps": 1},
      "checkpointPolicy": {"storage": {"persistentVolumeClaim": {"claimName": "claim"}}}}})");
  spill(run.path() / "status.json", "{}");
  const std::string path = run.path().string();
  for (const std::vector<std::string>& command : {std::vector<std::string>{"ckpt", "ls", path},
                                                  {"ckpt", "verify", path},
                                                  {"ckpt", "show", path},
                                                  {"ckpt", "hash", path},
                                                  {"ckpt", "diff", path, root()}}) {
    const Ran ran = trainyard(command);
    EXPECT_EQ(ran.exit_code, 0) << command[1] << ran.err;
  }
  EXPECT_EQ(trainyard({"ckpt", "hash", path}).out, trainyard({"ckpt", "hash", root()}).out);
  EXPECT_EQ(trainyard({"ckpt", "prune", "--keep-last", "1", "--yes", path}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(run.path() / "pvc/claim/job/g1-step-0000000010"));
  std::string job = slurp(run.path() / "job.json");
  job.replace(job.find("{\"name\": \"job\""), 14, R"({"name": "job", "uid": "another-job")");
  spill(run.path() / "job.json", job);
  EXPECT_THAT(trainyard({"ckpt", "ls", path}).err,
              HasSubstr("found checkpoints of job job-uid-1, wanted another-job as in"));
  spill(run.path() / "job.json", "{");
  EXPECT_THAT(trainyard({"ckpt", "ls", path}).err, HasSubstr("job.json"));
}

TEST_F(CkptCommandTest, ShowTakesTheNewestGoodOne) {
  const Ran newest = trainyard({"ckpt", "show", "-o", "json", root()});
  EXPECT_EQ(newest.exit_code, 0) << newest.err;
  EXPECT_EQ(nlohmann::json::parse(newest.out)["step"], 30);
  flip_a_bit(job_.root() / "g2-step-0000000030/manifest.json", 100);
  const Ran before = trainyard({"ckpt", "show", "-o", "json", root()});
  EXPECT_EQ(nlohmann::json::parse(before.out)["step"], 20);
  EXPECT_THAT(before.err,
              HasSubstr("skipped " + root() + "/g2-step-0000000030: manifest.json: checksum"));
}

/// Of generation 2's newest checkpoint the end of a shard: data, unlike its beginning.
class DamagedShardTest : public CkptCommandTest {
 protected:
  void SetUp() override {
    CkptCommandTest::SetUp();
    hash_before_ = trainyard({"ckpt", "hash", root() + "/g2-step-0000000020"}).out;
    damage("g2-step-0000000030");
  }
  void damage(const std::string& checkpoint) const {
    const auto shard = job_.root() / checkpoint /
                       (checkpoint == "g2-step-0000000030" ? "shard-1-of-3.safetensors"
                                                           : "shard-1-of-2.safetensors");
    flip_a_bit(shard, std::filesystem::file_size(shard) - 1);
  }
  std::string passed_over() const {
    return "skipped " + root() + "/g2-step-0000000030: shard-1-of-3.safetensors: chunk ";
  }

  std::string hash_before_;
};

TEST_F(DamagedShardTest, HashAndShowTakeTheGoodOneBefore) {
  const Ran hash = trainyard({"ckpt", "hash", root()});
  EXPECT_EQ(hash.exit_code, 0) << hash.err;
  EXPECT_EQ(hash.out, hash_before_);
  EXPECT_THAT(hash.err, HasSubstr(passed_over()));
  const Ran show = trainyard({"ckpt", "show", "--hash", "-o", "json", root()});
  EXPECT_EQ(show.exit_code, 0) << show.err;
  EXPECT_EQ(nlohmann::json::parse(show.out)["stateHash"].get<std::string>() + "\n", hash_before_);
  EXPECT_EQ(nlohmann::json::parse(show.out)["step"], 20);
  EXPECT_THAT(show.err, HasSubstr(passed_over()));
}

TEST_F(DamagedShardTest, NamedItselfIsBadData) {
  for (const char* name : {"/g2-step-0000000030", "/latest"}) {
    for (std::vector<std::string> command :
         {std::vector<std::string>{"ckpt", "hash"}, {"ckpt", "show", "--hash"}}) {
      command.push_back(root() + name);
      const Ran ran = trainyard(command);
      EXPECT_EQ(ran.exit_code, 65) << name;
      EXPECT_THAT(ran.err, HasSubstr(name + std::string(": shard-1-of-3.safetensors: chunk ")));
    }
  }
}

TEST_F(DamagedShardTest, DiffStepsBackOnWhicheverSideItIs) {
  const std::string good = root() + "/g2-step-0000000020";
  for (const auto& [a, b] :
       {std::pair(root(), good), std::pair(good, root()), std::pair(root(), root())}) {
    const Ran ran = trainyard({"ckpt", "diff", a, b});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("12 of 12 tensors equal: the same state"));
    EXPECT_THAT(ran.err, HasSubstr(passed_over()));
    EXPECT_EQ(ran.err.find("skipped"), ran.err.rfind("skipped")) << "told once";
  }
}

TEST_F(DamagedShardTest, NoGoodOneIsBadData) {
  damage("g2-step-0000000020");
  damage("g1-step-0000000010");
  const Ran ran = trainyard({"ckpt", "hash", root()});
  EXPECT_EQ(ran.exit_code, 65);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, HasSubstr("checkpoints is good; the last one tried was g1-step-0000000010"));
}

TEST_F(CkptCommandTest, ShowFollowsLatestAndHashesTheState) {
  const Ran shown = trainyard({"ckpt", "show", "--hash", root() + "/latest"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("optimizerStep     30"), HasSubstr("[13,2,3] in 3")));
  const Ran hash = trainyard({"ckpt", "hash", root() + "/g2-step-0000000030"});
  EXPECT_EQ(hash.out.size(), 33U);
  EXPECT_THAT(shown.out, HasSubstr("state hash        " + hash.out));
  EXPECT_NE(trainyard({"ckpt", "hash", root() + "/g2-step-0000000020"}).out, hash.out);
}

TEST_F(CkptCommandTest, VerifyNamesFileAndChunkAndExitsWithBadData) {
  const Ran good = trainyard({"ckpt", "verify", root()});
  EXPECT_EQ(good.exit_code, 0) << good.out;
  EXPECT_THAT(good.out, HasSubstr("g2-step-0000000030: good, "));
  flip_a_bit(job_.root() / "g2-step-0000000030/shard-1-of-3.safetensors", 300);
  const Ran bad = trainyard({"ckpt", "verify", root()});
  EXPECT_EQ(bad.exit_code, 65);
  EXPECT_THAT(bad.out, HasSubstr("g2-step-0000000030: shard-1-of-3.safetensors: chunk 1 (bytes 256 "
                                 "to 511) hashes to "));
  const Ran json = trainyard({"ckpt", "verify", "-o", "json", root() + "/g2-step-0000000030"});
  EXPECT_EQ(json.exit_code, 65);
  const auto damages = nlohmann::json::parse(json.out)[0]["damages"];
  ASSERT_EQ(damages.size(), 1U);
  EXPECT_EQ(damages[0]["file"], "shard-1-of-3.safetensors");
  EXPECT_EQ(damages[0]["chunk"], 1);
}

TEST_F(CkptCommandTest, MissingDirectoryIsBadData) {
  for (const char* command : {"ls", "show", "hash", "verify"}) {
    const Ran ran = trainyard({"ckpt", command, root() + "/nowhere"});
    EXPECT_EQ(ran.exit_code, 65) << command;
    EXPECT_THAT(ran.err, HasSubstr("nowhere")) << command;
  }
}

TEST_F(CkptCommandTest, FileWhereADirectoryIsWantedIsBadData) {
  const std::string file = (job_.root() / "g7-step-0000000001").string();
  spill(file, "stray");
  for (const std::string& path : {file, file + "/below/it"}) {
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"ckpt", "ls", path},
          {"ckpt", "show", path},
          {"ckpt", "hash", path},
          {"ckpt", "verify", path},
          {"ckpt", "prune", path},
          {"ckpt", "diff", path, root()},
          {"ckpt", "diff", root(), path},
          {"sample", path},
          {"evaluate", path, root()},
          {"export", "--checkpoint", path, "--hugging-face", root() + "/exported"}}) {
      const Ran ran = trainyard(command);
      EXPECT_EQ(ran.exit_code, 65) << command[0] << command[1];
      EXPECT_THAT(ran.err, AllOf(HasSubstr(file),
                                 HasSubstr("is not a directory, wanted the directory of a ")));
    }
    const Ran exported = trainyard({"export", "--checkpoint", root(), "--hugging-face", path});
    EXPECT_EQ(exported.exit_code, 64);
    EXPECT_THAT(exported.err, HasSubstr("FOLDER: found " + path));
  }
}

TEST_F(CkptCommandTest, ExportOfARunWithoutAModelSaysWhy) {
  const Ran ran =
      trainyard({"export", "--checkpoint", root(), "--hugging-face", root() + "/exported"});
  EXPECT_EQ(ran.exit_code, 64);
  EXPECT_THAT(ran.err, HasSubstr("model.hidden: found nothing, wanted a value"));
}

TEST_F(CkptCommandTest, DiffOfTheSameStateInOtherLayoutsIsEqual) {
  // Generation 2 adopted step 20 as it was; a second job reaches the same state on one rank.
  JobDirectory other;
  ASSERT_EQ(other.train(files_, {.generation = 1, .ranks = 1, .steps = {30}}), "");
  const Ran ran = trainyard({"ckpt", "diff", root(), other.root().string()});
  EXPECT_EQ(ran.exit_code, 0) << ran.out << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("12 of 12 tensors equal: the same state"));
}

TEST_F(CkptCommandTest, DiffNamesWhatDiffersAndByHowMuch) {
  const std::string a = root() + "/g1-step-0000000010";
  const std::string b = root() + "/g2-step-0000000030";
  const Ran text = trainyard({"ckpt", "diff", a, b});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.out, AllOf(HasSubstr("step"), HasSubstr("A has 10, B has 30"),
                              HasSubstr("7 of 7 differ, max |a-b| 20000, relative 0.6"),
                              HasSubstr("0 of 12 tensors equal: different")));
  const Ran json = trainyard({"ckpt", "diff", "-o", "json", a, b});
  EXPECT_EQ(json.exit_code, 1);
  const auto parsed = nlohmann::json::parse(json.out);
  EXPECT_EQ(parsed["equal"], false);
  EXPECT_EQ(parsed["sameConfig"], true);
  EXPECT_EQ(parsed["scalars"][0]["name"], "step");
  EXPECT_EQ(parsed["scalars"][0]["a"], 10);
  EXPECT_EQ(parsed["scalars"][0]["b"], 30);
  ASSERT_EQ(parsed["tensors"].size(), 12U);
  EXPECT_EQ(parsed["tensors"][0]["result"], "different");
  EXPECT_EQ(parsed["tensors"][0]["absoluteMax"], 20000.0);
}

TEST_F(CkptCommandTest, DiffOfADamagedCheckpointIsBadData) {
  // The end of a shard is data; its beginning is the header, which no comparison reads.
  const std::filesystem::path shard = job_.root() / "g2-step-0000000030/shard-1-of-3.safetensors";
  flip_a_bit(shard, static_cast<int64_t>(std::filesystem::file_size(shard)) - 1);
  const Ran ran = trainyard({"ckpt", "diff", root() + "/g2-step-0000000030", root()});
  EXPECT_EQ(ran.exit_code, 65) << ran.out;
  EXPECT_THAT(ran.err, HasSubstr("shard-1-of-3.safetensors: chunk "));
}

TEST_F(CkptCommandTest, PruneTellsAndOnlyRemovesWhenToldTo) {
  const Ran told = trainyard({"ckpt", "prune", "--keep-last", "1", root()});
  EXPECT_EQ(told.exit_code, 0) << told.err;
  EXPECT_THAT(told.out,
              AllOf(HasSubstr("would remove g1-step-0000000010"),
                    HasSubstr("would remove g2-step-0000000020"),
                    HasSubstr("kept g2-step-0000000030"), HasSubstr("--yes removes them")));
  EXPECT_TRUE(std::filesystem::exists(job_.root() / "g1-step-0000000010"));

  const Ran unsure = trainyard({"ckpt", "prune", "--keep-last", "1", "--yes", root()});
  EXPECT_EQ(unsure.exit_code, 64);
  EXPECT_THAT(unsure.err, HasSubstr("pass --stopped"));
  EXPECT_TRUE(std::filesystem::exists(job_.root() / "g1-step-0000000010"));

  const Ran done =
      trainyard({"ckpt", "prune", "--keep-last", "1", "--yes", "--stopped", "-o", "json", root()});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  const auto json = nlohmann::json::parse(done.out);
  EXPECT_EQ(json["done"], true);
  EXPECT_EQ(json["kept"], nlohmann::json::parse(R"(["g2-step-0000000030"])"));
  EXPECT_GT(json["bytes"], 0);
  EXPECT_FALSE(std::filesystem::exists(job_.root() / "g1-step-0000000010"));
  EXPECT_FALSE(std::filesystem::exists(job_.root() / "g2-step-0000000020"));
  EXPECT_EQ(trainyard({"ckpt", "verify", root() + "/latest"}).exit_code, 0);
  ASSERT_EQ(job_.train(files_, {.generation = 3, .parent = 2, .steps = {40}}), "");
  EXPECT_EQ(job_.restored_step(), 30);
}

TEST_F(CkptCommandTest, PruneCountsOnlyGoodOnesAndKeepsMultiples) {
  flip_a_bit(job_.root() / "g2-step-0000000030/shard-0-of-3.safetensors", 300);
  const auto plan = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"ckpt", "prune", "-o", "json", root()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return nlohmann::json::parse(trainyard(arguments).out);
  };
  const auto one = plan({"--keep-last", "1"});
  EXPECT_EQ(one["kept"], nlohmann::json::parse(R"(["g2-step-0000000020"])"));
  EXPECT_THAT(one["leftAlone"].dump(), HasSubstr("g2-step-0000000030: damaged: shard-0-of-3"));
  EXPECT_THAT(one["removed"].dump(), HasSubstr("g1-step-0000000010"));
  const auto multiples = plan({"--keep-last", "1", "--keep-every", "10"});
  EXPECT_THAT(multiples["kept"].dump(), HasSubstr("g1-step-0000000010"));
}

TEST_F(CkptCommandTest, PruneTakesWhatIsOlderThanTheKeptUnreadAndWhatNobodyWillFinish) {
  flip_a_bit(job_.root() / "g1-step-0000000010/shard-0-of-2.safetensors", 300);
  std::filesystem::create_directories(job_.root() / "g1-step-0000000015");
  const auto removed = [&](const char* keep_last) {
    const Ran ran = trainyard({"ckpt", "prune", "--keep-last", keep_last, "-o", "json", root()});
    return nlohmann::json::parse(ran.out)["removed"].dump();
  };
  EXPECT_EQ(removed("2"), R"(["g1-step-0000000010","g1-step-0000000015"])");
  EXPECT_EQ(removed("3"), R"(["g1-step-0000000015"])") << "read, found damaged, left alone";
}

TEST_F(CkptCommandTest, PruneRefusesWithoutAGoodOneAndNeverRemovesTheOnlyOne) {
  JobDirectory single;
  ASSERT_EQ(single.train(files_, {.generation = 1, .steps = {10}}), "");
  const std::string path = single.root().string();
  const Ran only = trainyard({"ckpt", "prune", "--keep-last", "1", "--yes", "--stopped", path});
  EXPECT_EQ(only.exit_code, 0) << only.err;
  EXPECT_THAT(only.out, HasSubstr("0 checkpoints, 0 bytes removed"));
  flip_a_bit(single.root() / "g1-step-0000000010/shard-0-of-1.safetensors", 300);
  const Ran none = trainyard({"ckpt", "prune", "--keep-last", "1", "--yes", "--stopped", path});
  EXPECT_EQ(none.exit_code, 65);
  EXPECT_THAT(none.err, HasSubstr("nothing may be removed"));
  EXPECT_TRUE(std::filesystem::exists(single.root() / "g1-step-0000000010/manifest.json"));
  EXPECT_EQ(trainyard({"ckpt", "prune", "--keep-last", "0", path}).exit_code, 64);
}

/// Not damage, which would be passed over: here its manifest is a link to itself.
TEST_F(CkptCommandTest, PruneRemovesNothingForTheSakeOfACheckpointThatCannotBeRead) {
  std::filesystem::create_directories(job_.root() / "g2-step-0000000040");
  std::filesystem::create_symlink("manifest.json",
                                  job_.root() / "g2-step-0000000040/manifest.json");
  const Ran ran = trainyard({"ckpt", "prune", "--keep-last", "1", "--yes", "--stopped", root()});
  EXPECT_EQ(ran.exit_code, 75) << ran.err;
  EXPECT_THAT(ran.err, AllOf(HasSubstr("nothing may be removed"), HasSubstr("g2-step-0000000040")));
  EXPECT_TRUE(std::filesystem::exists(job_.root() / "g2-step-0000000030/manifest.json"));
}

TEST_F(CkptCommandTest, PruneTellsWhatStaysBecauseOfADirectoryInItAndDoesTheRest) {
  std::filesystem::create_directories(job_.root() / "g1-step-0000000010/.ipynb_checkpoints");
  const Ran ran = trainyard({"ckpt", "prune", "--keep-last", "1", "--yes", "--stopped", root()});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("left alone g1-step-0000000010: stays: found the directory "
                                       ".ipynb_checkpoints in it"),
                             HasSubstr("removed g2-step-0000000020")));
  EXPECT_TRUE(std::filesystem::exists(job_.root() / "g1-step-0000000010/manifest.json"));
  EXPECT_FALSE(std::filesystem::exists(job_.root() / "g2-step-0000000020"));
}

TEST_F(CkptCommandTest, ACheckpointOfAnotherJobIsShownAsForeignAndTakenOnlyByItsName) {
  const trainyard::testing_support::TemporaryDirectory folder;
  JobDirectory other(folder.path(), "job-uid-2");
  ASSERT_EQ(other.train(files_, {.generation = 1, .steps = {1000}}), "");
  std::filesystem::copy(folder.path() / "g1-step-0000001000", job_.root() / "g1-step-0000001000");
  const Ran ls = trainyard({"ckpt", "ls", root()});
  EXPECT_THAT(ls.out,
              HasSubstr("foreign: manifest.json: is of another job: found jobUid job-uid-2, "
                        "wanted job-uid-1"));
  const Ran show = trainyard({"ckpt", "show", "-o", "json", root()});
  EXPECT_EQ(nlohmann::json::parse(show.out)["step"], 30);
  const Ran named = trainyard({"ckpt", "show", "-o", "json", root() + "/g1-step-0000001000"});
  EXPECT_EQ(nlohmann::json::parse(named.out)["step"], 1000);
  // A folder of checkpoints without its lineage: which is the newest nobody knows.
  std::filesystem::remove_all(folder.path() / "lineage");
  EXPECT_THAT(
      trainyard({"ckpt", "show", folder.path().string()}).err,
      HasSubstr("name one itself, such as " + (folder.path() / "g1-step-0000001000").string()));
}

TEST_F(CkptCommandTest, ACheckpointWithoutItsLineageRecordIsNotCalledSuperseded) {
  const Ran before = trainyard({"ckpt", "ls", root()});
  EXPECT_THAT(before.out, AllOf(HasSubstr("current"), Not(HasSubstr("unrecorded"))));
  std::filesystem::remove_all(job_.root() / "lineage");
  const Ran ran = trainyard({"ckpt", "ls", root()});
  EXPECT_THAT(ran.out, AllOf(HasSubstr("unrecorded: found no readable lineage/2.json; restore it"),
                             Not(HasSubstr("superseded")), Not(HasSubstr("current"))));
}

TEST_F(CkptCommandTest, PruneTakesTheLockOfTheRunAbove) {
  const trainyard::testing_support::TemporaryDirectory run;
  const auto checkpoints = run.path() / "pvc/claim/job";
  std::filesystem::create_directories(checkpoints.parent_path());
  std::filesystem::copy(
      job_.root(), checkpoints,
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
  const std::vector<std::string> prune = {"ckpt", "prune", "--keep-last",
                                          "1",    "--yes", checkpoints.string()};
  // Somebody's file, but no run's directory.
  spill(run.path() / "job.json", "{}");
  EXPECT_EQ(trainyard(prune).exit_code, 64);
  spill(run.path() / "status.json", "{}");
  {
    const auto running = DirectoryLock::acquire(run.path());
    ASSERT_TRUE(running);
    const Ran refused = trainyard(prune);
    EXPECT_EQ(refused.exit_code, 75);
    EXPECT_THAT(refused.err, HasSubstr("locked by process"));
    EXPECT_TRUE(std::filesystem::exists(checkpoints / "g1-step-0000000010"));
  }
  EXPECT_EQ(trainyard(prune).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(checkpoints / "g1-step-0000000010"));
  // A run's checkpoints may be kept on another disk.
  const trainyard::testing_support::TemporaryDirectory disk;
  std::filesystem::rename(checkpoints, disk.path() / "job");
  std::filesystem::create_directory_symlink(disk.path() / "job", checkpoints);
  const Ran linked = trainyard(prune);
  EXPECT_EQ(linked.exit_code, 0) << linked.err;
}

TEST_F(CkptCommandTest, PruneLeavesWhatANewestGenerationHasNotFinished) {
  std::filesystem::create_directories(job_.root() / "g2-step-0000000040");
  spill(job_.root() / "g2-step-0000000040/shard-0-of-1.safetensors.tmp", "half");
  const Ran ran = trainyard({"ckpt", "prune", "--keep-last", "1", "--yes", "--stopped", root()});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("left alone g2-step-0000000040: unfinished"));
  EXPECT_TRUE(std::filesystem::exists(job_.root() / "g2-step-0000000040"));
}

/// Writes an imported model as a checkpoint of one rank, as a run would.
void checkpoint_of(const hf::HfModel& model, const std::string& config_json, JobDirectory& job) {
  PosixFileSystem files;
  checkpoint::SoloCommitGroup group;
  const auto started =
      checkpoint::start_generation(files, job.plan(1, std::nullopt), group,
                                   [](checkpoint::CheckpointReader&) { return Status(); });
  ASSERT_TRUE(started.has_value()) << started.error().message;
  checkpoint::CheckpointWriter writer(checkpoint::testing::borrowed(files), group,
                                      {job.root(), {}, 4096}, *started);
  std::vector<std::vector<float>> values;
  checkpoint::Snapshot snapshot;
  snapshot.config_json = config_json;
  const engine::Model built = engine::build_model(model.spec()).value();
  for (const engine::ParamSpec& param : built.params) {
    const std::vector<int64_t>& shape = param.tensor.shape;
    values.push_back(*testing_support::whole_tensor(model, param));
    snapshot.slices.push_back({param.name(),
                               checkpoint::TensorKind::kParameter,
                               DType::kFloat32,
                               shape,
                               {std::vector<int64_t>(shape.size(), 0), shape},
                               std::as_bytes(std::span(values.back()))});
  }
  ASSERT_TRUE(writer.begin(snapshot));
  const auto outcome = writer.wait(std::chrono::seconds(60));
  ASSERT_TRUE(outcome && outcome->status);
}

constexpr char kModelConfig[] =
    R"({"model":{"family":"GPT2","layers":2,"hidden":32,"heads":2,"ffn":128,"vocab":61,)"
    R"("maxPositions":16,"dropout":0},"data":{"tokens":["a"]},"batch":{"globalSequences":1},"steps":1})";

TEST(ExportCommandTest, WhatIsImportedAndCheckpointedIsExportedUnchanged) {
  const std::filesystem::path fixture = testing_support::source_path("tests/fixtures/hf_tiny_gpt2");
  const auto model = hf::load_model(fixture);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  JobDirectory job;
  checkpoint_of(**model, kModelConfig, job);
  // A folder of the user's choice outlives the test: then `transformers` can look at it as well.
  const char* keep = std::getenv("TRAINYARD_EXPORT_DIR");
  const std::string out = keep != nullptr ? keep : (job.root() / "exported").string();
  const Ran ran = trainyard({"export", "--checkpoint", job.root(), "--hugging-face", out});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const auto exported = hf::load_model(out);
  ASSERT_TRUE(exported.has_value()) << exported.error().message;
  EXPECT_EQ((*exported)->spec(), (*model)->spec());
  const engine::Model built = engine::build_model((*model)->spec()).value();
  for (const engine::ParamSpec& param : built.params) {
    EXPECT_EQ(*testing_support::whole_tensor(**exported, param),
              *testing_support::whole_tensor(**model, param))
        << param.name();
  }
  EXPECT_EQ(trainyard({"export", "--checkpoint", job.root(), "--hugging-face", out}).exit_code, 64)
      << "another model is there";
}

TEST(ExportCommandTest, ConfigurationThatDoesNotFitTheTensorsIsRefused) {
  const auto model = hf::load_model(testing_support::source_path("tests/fixtures/hf_tiny_gpt2"));
  JobDirectory job;
  std::string config = kModelConfig;
  config.replace(config.find("\"ffn\":128"), 9, "\"ffn\":120");
  checkpoint_of(**model, config, job);
  const Ran ran =
      trainyard({"export", "--checkpoint", job.root(), "--hugging-face", job.root() / "exported"});
  EXPECT_EQ(ran.exit_code, 65);
  EXPECT_THAT(
      ran.err,
      HasSubstr("h.0.mlp.c_fc.weight is [128,32], the run's configuration makes it [120,32]"));
}

}  // namespace
}  // namespace trainyard::cli
