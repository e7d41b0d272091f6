// Jobs on real nodes: kubelets start their pods, the pods find each other by name over the network.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/cluster_test.h"
#include "tests/support/paths.h"
#include "tests/support/trainyard_command.h"

namespace trainyard::cluster {
namespace {

class JobTest : public testing_support::ClusterTest {
 protected:
  void train_example(const std::string& name);
};

TEST_F(JobTest, PodsOnTwoNodesMeetAndTheJobCompletes) {
  Json job = trainer_job("train", 2, {"meet"});
  spread(job, Apart::kAlways);
  apply(job);
  ASSERT_TRUE(runs("train", 2, 0));
  const auto nodes = nodes_of_pods("train");
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_NE(nodes.begin()->second, nodes.rbegin()->second);
  // Rank 0 waits for rank 1, which must reach it by its name.
  ASSERT_TRUE(reaches("train", "Complete"));
  EXPECT_EQ(job_status("train").value("restarts", Json::object()).value("total", 0), 0);
}

TEST_F(JobTest, AnEngineTrainsOnTwoNodes) {
  testing_support::TrainyardCommand(folder()).prepare_data(make_claim("data") / "text");
  const Json container = {
      {"name", "trainer"},
      {"volumeMounts",
       Json::array({{{"name", "data"}, {"mountPath", "/data"}, {"readOnly", true}}})}};
  const Json volume = {{"name", "data"}, {"persistentVolumeClaim", {{"claimName", "data"}}}};
  Json job = {
      {"apiVersion", "trainyard.dev/v1alpha1"},
      {"kind", "TrainingJob"},
      {"metadata", {{"name", "tiny"}}},
      {"spec",
       {{"numNodes", 2},
        {"numProcPerNode", 2},
        {"engine",
         {{"model",
           {{"family", "GPT2"},
            {"layers", 2},
            {"hidden", 32},
            {"heads", 2},
            {"vocab", 257},
            {"maxPositions", 32}}},
          {"data", {{"tokens", Json::array({"/data/text/train"})}, {"sequenceLength", 32}}},
          {"batch", {{"globalSequences", 16}, {"microSequences", 4}}},
          {"steps", 1500}}},
        {"template",
         {{"spec",
           {{"containers", Json::array({container})}, {"volumes", Json::array({volume})}}}}}}}};
  spread(job, Apart::kAlways);
  apply(job);
  ASSERT_TRUE(runs("tiny", 2, 0)) << operator_log();
  EXPECT_EQ(nodes_of_pods("tiny").size(), 2U);
  const auto step = [&] {
    return job_status("tiny").value("progress", Json::object()).value("step", int64_t{0});
  };
  EXPECT_TRUE(wait_until([&] { return step() > 0; })) << job_status("tiny").dump(2);
  ASSERT_TRUE(reaches("tiny", "Complete")) << operator_log();
  Json status = job_status("tiny");
  EXPECT_EQ(status["progress"]["step"], 1500);
  EXPECT_EQ(status["restarts"]["total"], 0);
  EXPECT_LT(std::stod(status["progress"]["loss"].get<std::string>()), 3.5) << "ln 257 is 5.5";
}

/// Trains an example of the engine on two nodes as its first lines say: the claim is made and
/// filled, the manifest applied as it is.
void JobTest::train_example(const std::string& name) {
  const std::filesystem::path texts = folder() / "texts";
  std::filesystem::create_directory(texts);
  for (const char* text : {"mine.txt", "mine_test.txt"}) {
    std::ofstream file(texts / text);
    for (int i = 0; i < 2000; ++i)
      file << "the quick brown fox jumps over " << i << " lazy dogs of " << text << "\n";
  }
  const testing_support::TrainyardCommand trainyard(folder());
  ASSERT_EQ(trainyard.run({"data", "prepare", texts, "--out", make_claim("training") / "data",
                           "--tokenizer", "bytes", "--split", "heldout=_test"},
                          "prepared"),
            0);
  must({"apply", "-f", testing_support::source_path("manifests/examples/" + name + ".yaml")});
  ASSERT_TRUE(runs(name, 2, 0)) << operator_log();
  const auto step = [&] {
    return job_status(name).value("progress", Json::object()).value("step", int64_t{0});
  };
  EXPECT_TRUE(wait_until([&] { return step() >= 10; }, std::chrono::seconds(180)))
      << job_status(name).dump(2) << operator_log();
  EXPECT_EQ(job_status(name)["restarts"]["total"], 0) << job_status(name).dump(2);
}

TEST_F(JobTest, TheExampleOfTheEngineTrainsAsItIsWritten) {
  train_example("engine-on-kubernetes");
  must({"delete", "tj", "engine-on-kubernetes"});
}

TEST_F(JobTest, TheExampleOfZeroTrainsAsItIsWritten) {
  train_example("zero");
  EXPECT_EQ(job_status("zero")["membership"]["layout"], "dp 2 x shard 2, ZeRO-3");
  must({"delete", "tj", "zero"});
}

TEST_F(JobTest, TheExampleOfAPipelineTrainsAsItIsWritten) {
  train_example("pipeline");
  EXPECT_EQ(job_status("pipeline")["membership"]["layout"], "pp 2 x shard 2, ZeRO-1");
  must({"delete", "tj", "pipeline"});
}

TEST_F(JobTest, TheExampleOfThreeAxesTrainsAsItIsWritten) {
  train_example("hybrid-3d");
  EXPECT_EQ(job_status("hybrid-3d")["membership"]["layout"], "pp 2 x dp 2 x shard 2, ZeRO-1");
  must({"delete", "tj", "hybrid-3d"});
}

TEST_F(JobTest, TheExampleOfMegatronsRecipeTrainsAsItIsWritten) {
  train_example("megatron");
  EXPECT_EQ(job_status("megatron")["membership"]["layout"],
            "pp 2 x shard 2 x tp 2 (sequence parallel), ZeRO-1");
  must({"delete", "tj", "megatron"});
}

TEST_F(JobTest, TheExampleOfLongSequencesTrainsAsItIsWritten) {
  train_example("long-context");
  EXPECT_EQ(job_status("long-context")["membership"]["layout"], "shard 2 x cp 2, ZeRO-1");
  must({"delete", "tj", "long-context"});
}

/// Nodes with GPUs as a device plugin tells of them; nothing opens any.
TEST_F(JobTest, PodsGetTheGpusOfTheirRanks) {
  const auto tell = [&](const Json& gpus) {
    const Json nodes = get({"nodes"});
    for (const Json& node : nodes["items"]) {
      must({"patch", "node", node["metadata"]["name"], "--subresource=status", "--type=merge", "-p",
            Json{{"status",
                  {{"capacity", {{"nvidia.com/gpu", gpus}}},
                   {"allocatable", {{"nvidia.com/gpu", gpus}}}}}}
                .dump()});
    }
  };
  tell("2");
  Json job = trainer_job("gpus", 2, {});
  Json& trainer = job["spec"]["template"]["spec"]["containers"][0];
  job["spec"]["agent"] = "Auto";
  job["spec"]["numProcPerNode"] = "auto";
  trainer["command"] = {"/bin/busybox", "sleep", "3600"};
  trainer["resources"]["limits"] = {{"nvidia.com/gpu", 2}};
  spread(job, Apart::kAlways);
  apply(job);
  ASSERT_TRUE(runs("gpus", 2, 0)) << operator_log();
  EXPECT_EQ(job_status("gpus")["membership"]["worldSize"], 4);

  // No GPU is left for the ranks of an engine, which asks for them by itself.
  Json engine = trainer_job("more", 1, {});
  engine["spec"].erase("template");
  engine["spec"].erase("agent");
  engine["spec"]["numProcPerNode"] = 2;
  engine["spec"]["engine"] = {{"device", "Cuda"},
                              {"model", {{"preset", "gpt2-124m"}}},
                              {"data", {{"tokens", Json::array({"/data/a"})}}},
                              {"batch", {{"globalSequences", 16}}},
                              {"steps", 1}};
  apply(engine);
  EXPECT_TRUE(wait_until([&] {
    const std::string said = job_status("more").dump();
    return said.find("Insufficient nvidia.com/gpu") != std::string::npos;
  })) << job_status("more").dump(2);
  const Json pods = get({"pods", "-l", "trainyard.dev/job-name=more"});
  ASSERT_EQ(pods["items"].size(), 1U);
  EXPECT_EQ(pods["items"][0]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"],
            "2");
  must({"delete", "tj", "gpus"});
  // Then there are GPUs; its tokens are nowhere.
  EXPECT_TRUE(reaches("more", "Failed"));
  must({"delete", "tj", "more"});
  tell(nullptr);
}

TEST_F(JobTest, AContainerThatTakesMoreMemoryThanItMayIsTheProgramsOwnFailure) {
  Json job = trainer_job("train", 1, {"eat", "512"});
  // With less, what starts the container may be the one that is killed, which is not the program's
  // failure.
  job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {{"memory", "96Mi"}};
  job["spec"]["failurePolicy"]["budgets"] =
      Json::array({{{"class", "Application"}, {"maxRestarts", 1}, {"windowSeconds", 3600}}});
  apply(job);
  ASSERT_TRUE(reaches("train", "Failed"));
  Json attempts = job_status("train")["attempts"];
  ASSERT_FALSE(attempts.empty());
  // Any other SIGKILL would count as the infrastructure's.
  EXPECT_EQ(attempts.back()["class"], "Application") << attempts.dump(2);
  EXPECT_EQ(attempts.back()["exitCode"], 137) << attempts.dump(2);
  EXPECT_EQ(job_status("train")["restarts"]["total"], 1) << attempts.dump(2);
}

TEST_F(JobTest, ADeletedPodEndsWithinItsGraceAndTheGangStartsAgain) {
  apply(trainer_job("train", 2, {"meet-after", "2"}));
  ASSERT_TRUE(runs("train", 2, 0));
  must({"delete", "pod", member("train", 1), "--wait=false"});
  ASSERT_TRUE(runs("train", 2, 1));
  ASSERT_TRUE(reaches("train", "Complete"));
  EXPECT_EQ(job_status("train")["restarts"]["total"], 1);
}

}  // namespace
}  // namespace trainyard::cluster
