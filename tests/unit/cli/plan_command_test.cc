#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "tests/support/extent.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::cli {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr char kSmall[] = "{layers: 2, hidden: 64, heads: 2, vocab: 256, maxPositions: 64}";

class PlanCommandTest : public testing::Test {
 protected:
  /// Runs `trainyard plan` on a job of this model; returns its exit code.
  int plan(const std::string& model, const std::string& batch,
           const std::vector<std::string>& more = {}) {
    std::ofstream(path("job.yaml"))
        << "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\n"
           "metadata: {name: job}\nspec:\n  engine:\n    model: "
        << model << "\n    data: {tokens: [nowhere], sequenceLength: 64, documents: " << documents_
        << "}\n    batch: " << batch
        << "\n    steps: 1\n    runtime: {threads: 2}\n"
           "    parallelism: {zeroStage: 1}\n    precision: {compute: BF16}\n";
    std::vector<std::string> words = {"plan", path("job.yaml")};
    words.insert(words.end(), more.begin(), more.end());
    std::ostringstream out;
    std::ostringstream err;
    const int code = run(words, out, err);
    out_ = out.str();
    err_ = err.str();
    return code;
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  testing_support::TemporaryDirectory folder_;
  std::string documents_ = "Join";
  std::string out_;
  std::string err_;
};

TEST_F(PlanCommandTest, RanksThatTheJobCannotHaveAreRefused) {
  const auto plan_of = [this](const std::string& sizes, const std::vector<std::string>& more) {
    std::ofstream(path("sizes.yaml"))
        << "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: job}\nspec:\n  "
        << sizes
        << "\n  engine:\n    model: {layers: 1, hidden: 16, heads: 2, vocab: 99}\n"
           "    data: {tokens: [nowhere], sequenceLength: 64}\n"
           "    batch: {globalSequences: 8}\n    steps: 1\n    parallelism: {shard: 2}\n";
    std::vector<std::string> words = {"plan", path("sizes.yaml")};
    words.insert(words.end(), more.begin(), more.end());
    std::ostringstream out;
    std::ostringstream err;
    const int code = run(words, out, err);
    return std::to_string(code) + " " + err.str();
  };
  EXPECT_THAT(plan_of("numProcPerNode: 4", {"--ranks", "5"}),
              HasSubstr("--ranks: found 5, wanted a multiple of engine.parallelism.shard (2)"));
  EXPECT_THAT(
      plan_of("numProcPerNode: auto", {}),
      HasSubstr("spec.numProcPerNode: found auto, counted as 1 here, wanted 2, for the ranks"));
  EXPECT_EQ(plan_of("numProcPerNode: 2", {"--ranks", "4"}), "0 ");
}

// Three nodes of a rank each, of which two hold the stages.
TEST_F(PlanCommandTest, AnElasticJobIsPlannedAtTheLargestSizeThatItsStagesAllow) {
  const auto plan_of = [this](const std::vector<std::string>& more) {
    std::ofstream(path("elastic.yaml"))
        << "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: job}\nspec:\n"
           "  numNodes: 3\n  numProcPerNode: 1\n  elasticPolicy: {minNodes: 1}\n"
           "  engine:\n    model: {layers: 2, hidden: 16, heads: 2, vocab: 99}\n"
           "    data: {tokens: [nowhere], sequenceLength: 64}\n"
           "    batch: {globalSequences: 8}\n    steps: 1\n    parallelism: {pipeline: 2}\n";
    std::vector<std::string> words = {"plan", path("elastic.yaml")};
    words.insert(words.end(), more.begin(), more.end());
    std::ostringstream out;
    std::ostringstream err;
    const int code = run(words, out, err);
    return std::to_string(code) + " " + err.str() + out.str();
  };
  EXPECT_THAT(plan_of({}), testing::AllOf(StartsWith("0 "), HasSubstr("2 ranks")));
  EXPECT_THAT(plan_of({"--ranks", "3"}),
              HasSubstr("--ranks: found 3, wanted a multiple of engine.parallelism.pipeline (2)"));
}

TEST_F(PlanCommandTest, ShowsHowAPipelineIsCutAndHowEvenly) {
  const auto plan_of = [this](const std::string& parallelism,
                              const std::vector<std::string>& more) {
    std::ofstream(path("pipeline.yaml"))
        << "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: job}\nspec:\n"
           "  numProcPerNode: 2\n  engine:\n"
           "    model: {layers: 4, hidden: 64, heads: 2, vocab: 256, maxPositions: 64}\n"
           "    data: {tokens: [nowhere], sequenceLength: 64}\n"
           "    batch: {globalSequences: 8}\n    steps: 1\n    parallelism: "
        << parallelism << "\n";
    std::vector<std::string> words = {"plan", path("pipeline.yaml")};
    words.insert(words.end(), more.begin(), more.end());
    std::ostringstream out;
    std::ostringstream err;
    EXPECT_EQ(run(words, out, err), 0) << err.str();
    std::string text = out.str();
    std::replace(text.begin(), text.end(), '\n', ' ');  // it is wrapped
    return text;
  };
  EXPECT_THAT(plan_of("{pipeline: 2}", {}), HasSubstr(" blocks, cut by cost; "));
  const std::string by_hand = plan_of("{pipeline: 2, stages: [0, 4]}", {});
  EXPECT_THAT(by_hand, HasSubstr("pipeline, OneFOneB: 0 (0 %) + 4 (100 %) blocks, cut by hand; "));
  EXPECT_THAT(by_hand, HasSubstr("the busiest rank computes 2.00 times the mean"));
  const auto json =
      nlohmann::json::parse(plan_of("{pipeline: 2, stages: [3, 1]}", {"-o", "json"}))["pipeline"];
  EXPECT_EQ(json[0]["blocks"], 3);
  EXPECT_EQ(json[1]["blocks"], 1);
  EXPECT_DOUBLE_EQ(json[0]["partOfFlops"].get<double>() + json[1]["partOfFlops"].get<double>(), 1);
}

TEST_F(PlanCommandTest, AModelOfOneAndAHalfBillionParametersShows24GB) {
  ASSERT_EQ(plan("{preset: gpt2-1558m}", "{globalSequences: 64}", {"--ranks", "64"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("job: 1,557,611,200 parameters, BF16, 64 ranks: shard 64, ZeRO-1\n"));
  EXPECT_THAT(out_, HasSubstr("states at 16 B per parameter, not divided: 24.92 GB\n"));
  EXPECT_THAT(out_, HasSubstr("\nsent per step                  18.40 GB "))
      << "stage 0: 12 bytes of each parameter, but for the own share of 64";
}

// By hand: 120,576 parameters, of which 114,688 in matrices, on 4 ranks; stage 3 then holds 12 / 4
// bytes of each in the snapshot, 6 x 128 x (114,688 + 2 x 64 x 64) FLOPs are a rank's share.
constexpr char kTable[] =
    R"(job: 120,576 parameters, BF16, 4 ranks: shard 4, ZeRO-1
8 sequences of 64 tokens per step, 2 at once
states at 16 B per parameter, not divided: 1.93 MB
numerics of a new run on CPUs: Canonical, grainTokens 64, keyBlock 128, tensorChunks 0

largest rank                     ZeRO 0          ZeRO 1*           ZeRO 2           ZeRO 3
  weights                       0.2 MiB          0.2 MiB          0.2 MiB          0.1 MiB
  master weights                0.5 MiB          0.1 MiB          0.1 MiB          0.1 MiB
  moments                       0.9 MiB          0.2 MiB          0.2 MiB          0.2 MiB
  gradient sums                 0.9 MiB          0.9 MiB          0.2 MiB          0.2 MiB
  unit buffers                  0.0 MiB          0.0 MiB          0.9 MiB          1.2 MiB
  activations                   0.8 MiB          0.8 MiB          0.8 MiB          0.8 MiB
  kernel scratch               18.0 MiB         18.0 MiB         18.0 MiB         18.0 MiB
  token batches                 0.0 MiB          0.0 MiB          0.0 MiB          0.0 MiB
  checkpoint snapshot           0.3 MiB          0.3 MiB          0.3 MiB          0.3 MiB
  shared memory                 4.0 MiB          4.0 MiB          4.0 MiB          4.0 MiB
  process                      24.0 MiB         24.0 MiB         24.0 MiB         24.0 MiB
total                          49.7 MiB         48.7 MiB         48.9 MiB         49.0 MiB
sent per step                   1.09 MB        907.22 kB        907.22 kB        962.52 kB
computed per step           94.37 MFLOP      94.37 MFLOP      94.37 MFLOP      94.37 MFLOP
rank                                  0                0                0                0
)";

TEST_F(PlanCommandTest, ShowsAllStagesSideBySide) {
  ASSERT_EQ(plan(kSmall, "{globalSequences: 8, microSequences: 2}", {"--ranks", "4"}), 0) << err_;
  EXPECT_EQ(out_.substr(0, sizeof kTable - 1), kTable);
  EXPECT_THAT(out_, HasSubstr("\nthis machine: "));
}

/// What a GPU's memory holds is not asked of this machine's.
TEST_F(PlanCommandTest, AJobOnGpusHasTwoSumsOfMemory) {
  const auto plan_of = [this](const std::string& more, const std::vector<std::string>& options) {
    std::ofstream(path("gpu.yaml"))
        << "engine:\n  device: Cuda\n"
           "  model: {layers: 2, hidden: 128, heads: 2, vocab: 256, maxPositions: 64}\n"
           "  data: {tokens: [nowhere]}\n  batch: {globalSequences: 8, microSequences: 2}\n"
           "  steps: 1\n"
        << more;
    std::vector<std::string> words = {"plan", path("gpu.yaml"), "--ranks", "4"};
    words.insert(words.end(), options.begin(), options.end());
    std::ostringstream out;
    std::ostringstream err;
    EXPECT_EQ(run(words, out, err), 0) << err.str();
    return out.str();
  };
  const std::string text = plan_of("", {});
  EXPECT_THAT(text, HasSubstr("\n  driver                      768.0 MiB  "));
  EXPECT_THAT(text, HasSubstr("\ntotal on its GPU "));
  EXPECT_THAT(text, HasSubstr("\n  pinned for copies "));
  EXPECT_THAT(text, HasSubstr("\ntotal on its host "));
  EXPECT_THAT(text, Not(HasSubstr("\ntotal  ")));
  EXPECT_THAT(text, HasSubstr("; each rank also needs a GPU with 8"));
  EXPECT_THAT(plan_of("  runtime: {transport: Nccl}\n", {}), HasSubstr("\n  driver and NCCL "));

  const auto json = nlohmann::json::parse(plan_of("", {"-o", "json"}));
  EXPECT_EQ(json["device"], "Cuda");
  const auto& own = json["stages"][1];
  int64_t on_gpu = int64_t{768} << 20;
  int64_t on_host = -own["totalBytes"].get<int64_t>();
  for (const char* const purpose : {"weights", "masterWeights", "moments", "gradientSums",
                                    "unitBuffers", "activations", "kernelScratch"}) {
    on_gpu += own["bytes"][purpose].get<int64_t>();
    on_host += own["bytes"][purpose].get<int64_t>();
  }
  EXPECT_EQ(own["gpuBytes"], on_gpu);
  // And what is pinned: 12 MiB, and as much as the groups' copies take.
  EXPECT_GT(own["hostBytes"].get<int64_t>() + on_host, 12 << 20);
  EXPECT_EQ(json["rankGroups"][0]["gpuBytes"], on_gpu);
}

TEST_F(PlanCommandTest, TellsProgramsEveryByte) {
  ASSERT_EQ(plan(kSmall, "{globalSequences: 8, microSequences: 2}", {"--ranks", "4", "-o", "json"}),
            0)
      << err_;
  const auto json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["job"], "job");
  EXPECT_EQ(json["parameters"], 120'576);
  EXPECT_EQ(json["publishedStateBytes"], 16 * 120'576);
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["zeroStage"], 1);
  EXPECT_EQ(json["device"], "Auto");
  EXPECT_EQ(json["layout"], "shard 4, ZeRO-1");
  EXPECT_EQ(json["numerics"],
            nlohmann::json::parse(
                R"({"mode": "Canonical", "grainTokens": 64, "keyBlock": 128, "tensorChunks": 0})"));
  EXPECT_EQ(json["fits"], json["doubt"] == "");
  ASSERT_EQ(json["stages"].size(), 4U);
  const auto expected = nlohmann::json::parse(R"({
    "zeroStage": 3, "largestRank": 0,
    "bytes": {"weights": 61184, "masterWeights": 118784, "moments": 241152, "gradientSums": 241152,
              "unitBuffers": 1209344, "activations": 874496, "kernelScratch": 18874496, "tokenBatches": 4096,
              "checkpointSnapshot": 361728, "statesInMemory": 0, "sharedMemory": 4198400, "process": 25165824},
    "totalBytes": 51350656, "hostBytes": 51350656, "gpuBytes": 0,
    "bytesSentPerStep": 962520, "flopsPerStep": 94371840, "recomputeFlopsPerStep": 0})");
  EXPECT_EQ(json["stages"][3], expected) << json["stages"][3];
}

TEST_F(PlanCommandTest, TellsTheNumericsThatANewRunWouldHave) {
  const auto told = [&](const std::string& more) {
    std::ofstream(path("job.yaml"))
        << "engine:\n  model: {family: GPT2, layers: 2, hidden: 128, heads: 4, vocab: 256, "
           "maxPositions: 64}\n  data: {tokens: [nowhere]}\n  batch: {globalSequences: 8, "
           "microSequences: 2}\n  steps: 1\n"
        << more << "\n";
    std::ostringstream out;
    std::ostringstream err;
    EXPECT_EQ(run({"plan", path("job.yaml"), "--ranks", "2"}, out, err), 0) << err.str();
    const size_t at = out.str().find("numerics of a new run");
    return out.str().substr(at, out.str().find("\n\n", at) - at);
  };
  EXPECT_EQ(told("  device: Cpu\n  numerics: {grainTokens: 16, keyBlock: 32, tensorChunks: 2}"),
            "numerics of a new run: Canonical, grainTokens 16, keyBlock 32, tensorChunks 2");
  EXPECT_EQ(told("  parallelism: {tensor: 2}"),
            "numerics of a new run on CPUs: Canonical, grainTokens 64, keyBlock 128, "
            "tensorChunks 4");
  EXPECT_EQ(told("  numerics: {grainSequences: 2}"),
            "numerics of a new run on CPUs: Canonical, grainTokens 64, keyBlock 128, "
            "tensorChunks 0");
  EXPECT_EQ(told("  device: Cuda\n  numerics: {mode: Fast}\n  parallelism: {tensor: 2}"),
            "numerics of a new run: Fast");
  EXPECT_EQ(told("  device: Cuda"),
            "numerics of a new run: Canonical, grainSequences 2, tensorChunks 0");
  EXPECT_EQ(told("  startFrom: {checkpoint: elsewhere}"),
            "numerics of a new run on CPUs: Canonical, grainTokens 64, keyBlock 128, tensorChunks "
            "0, unless the\ncheckpoint of startFrom has others");
}

TEST_F(PlanCommandTest, WhatIsolatedDocumentsComputeIsSaidToBeABound) {
  constexpr char kBatch[] = "{globalSequences: 8, microSequences: 2}";
  const auto planned = [&](const char* documents, const std::vector<std::string>& more) {
    documents_ = documents;
    EXPECT_EQ(plan(kSmall, kBatch, more), 0) << err_;
    return out_;
  };
  constexpr char kBound[] = "\ndata.documents: Isolate: the computation shown is an upper bound. ";
  EXPECT_THAT(planned("Isolate", {}), HasSubstr(kBound));
  EXPECT_THAT(planned("Join", {}), Not(HasSubstr("documents")));
  const auto isolated = nlohmann::json::parse(planned("Isolate", {"-o", "json"}));
  const auto joined = nlohmann::json::parse(planned("Join", {"-o", "json"}));
  EXPECT_EQ(isolated["documents"], "Isolate");
  EXPECT_EQ(joined["documents"], "Join");
  EXPECT_EQ(isolated["stages"][0]["flopsPerStep"], joined["stages"][0]["flopsPerStep"]);
}

TEST_F(PlanCommandTest, ALineIsAtMostAHundredColumnsWide) {
  // One that fits nowhere has the longest last line.
  ASSERT_EQ(plan("{preset: gpt2-1558m}", "{globalSequences: 4096, microSequences: 4096}",
                 {"--ranks", "4096"}),
            0)
      << err_;
  EXPECT_THAT(out_, HasSubstr("this machine: does not fit: engine.model: found one that needs "));
  std::istringstream lines(out_);
  for (std::string line; std::getline(lines, line);)
    EXPECT_LE(line.size(), 100U) << line;
}

TEST_F(PlanCommandTest, LimitsThatRanksWouldMeetAreNamedAsRunNamesThem) {
  constexpr char kModel[] = "{layers: 2, hidden: 256, heads: 4, vocab: 8192, maxPositions: 64}";
  const auto planned_under = [&](__rlimit_resource_t resource, rlim_t most) {
    rlimit before{};
    EXPECT_EQ(::getrlimit(resource, &before), 0);
    const rlimit limit{most, before.rlim_max};
    EXPECT_EQ(::setrlimit(resource, &limit), 0);
    EXPECT_EQ(plan(kModel, "{globalSequences: 64, microSequences: 64}"), 0);
    EXPECT_EQ(::setrlimit(resource, &before), 0);
    std::replace(out_.begin(), out_.end(), '\n', ' ');  // between two words of a line
    return out_;
  };
  EXPECT_THAT(planned_under(RLIMIT_FSIZE, rlim_t{20} << 20),
              HasSubstr("this machine: does not fit: limit of file size: found 20480 KiB (ulimit "
                        "-f), wanted at least "));
  if (testing_support::kSanitized) return;  // a sanitizer's own memory counts as data
  EXPECT_THAT(planned_under(RLIMIT_DATA, rlim_t{400} << 20),
              HasSubstr("does not fit: limit of data size: found 409600 KiB (ulimit -d)"));
}

TEST_F(PlanCommandTest, RefusesWhatNobodyKnowsTheSizeOf) {
  EXPECT_EQ(plan("{layers: 2, hidden: 64, heads: 2}", "{globalSequences: 8}"), 65);
  EXPECT_THAT(err_, HasSubstr("trainyard plan: engine.model.vocab: found nothing, wanted"));
  EXPECT_THAT(err_, HasSubstr("nowhere"));
  EXPECT_EQ(plan("{import: gone}", "{globalSequences: 8}"), 65);
  EXPECT_THAT(err_, HasSubstr("trainyard plan: engine.model.import: "));
  EXPECT_EQ(plan("{preset: gpt2-124m}", "{globalSequences: 2}", {"--ranks", "3"}), 64);
  EXPECT_THAT(err_, HasSubstr("engine.batch.globalSequences: found 2"));
}

TEST_F(PlanCommandTest, TheVocabularyMayBeSaidWhereTheDataIsElsewhere) {
  const std::string shape = "{layers: 1, hidden: 16, heads: 2}";
  ASSERT_EQ(plan(shape, "{globalSequences: 8}", {"--vocab", "300"}), 0) << err_;
  const std::string said = out_.substr(0, out_.find("this machine:"));
  ASSERT_EQ(plan("{layers: 1, hidden: 16, heads: 2, vocab: 300}", "{globalSequences: 8}"), 0);
  EXPECT_EQ(said, out_.substr(0, out_.find("this machine:")));
  EXPECT_EQ(plan("{layers: 1, hidden: 16, heads: 2, vocab: 300}", "{globalSequences: 8}",
                 {"--vocab", "256"}),
            64);
  EXPECT_THAT(err_, HasSubstr("--vocab: found 256, wanted 300"));
}

TEST_F(PlanCommandTest, LeavesTheSameFiguresAsAChart) {
  const std::string svg = path("plan.svg");
  ASSERT_EQ(plan("{preset: gpt2-124m}", "{globalSequences: 8}", {"--ranks", "2", "--svg", svg}), 0);
  std::ifstream file(svg);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(text, HasSubstr("job on 2 ranks, largest rank, GiB"));
  EXPECT_THAT(text, HasSubstr("<title>ZeRO 1, moments: "));
  EXPECT_EQ(plan(kSmall, "{globalSequences: 8}", {"--svg", path("nowhere/plan.svg")}), 64);
  EXPECT_THAT(err_, HasSubstr("trainyard plan: --svg: "));
}

TEST_F(PlanCommandTest, AManifestThatIsMissingIsTheUsersMistake) {
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(run({"plan", path("none.yaml")}, out, err), 64);
  EXPECT_THAT(err.str(), HasSubstr("none.yaml: wanted a readable manifest: "));
}

TEST_F(PlanCommandTest, AManifestFromAPipeIsReadWherePathsAreMeant) {
  const std::string pipe = path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] {
    std::ofstream(pipe) << "engine:\n  model: {preset: gpt2-3m}\n  data: {tokens: [not-here]}\n"
                           "  batch: {globalSequences: 8}\n  steps: 1\n";
  });
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(run({"plan", pipe}, out, err), 65);
  writer.join();
  EXPECT_THAT(err.str(), HasSubstr((std::filesystem::current_path() / "not-here").string()))
      << "not beside the pipe";
}

TEST_F(PlanCommandTest, TheLimitOfAManifestsPodsIsComparedWithTheirRanks) {
  const auto planned = [this](const std::string& limit, const std::vector<std::string>& more) {
    std::ofstream(path("pods.yaml"))
        << "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: job}\nspec:\n"
           "  numProcPerNode: 2\n"
           "  template: {spec: {containers: [{name: trainer, resources: {limits: {memory: "
        << limit << "}}}]}}\n  engine:\n    model: " << kSmall
        << "\n    data: {tokens: [nowhere], sequenceLength: 64}\n"
           "    batch: {globalSequences: 8}\n    steps: 1\n    runtime: {threads: 1}\n";
    std::vector<std::string> words = {more.empty() ? "validate" : "plan", path("pods.yaml")};
    words.insert(words.end(), more.begin(), more.end());
    std::ostringstream out;
    std::ostringstream err;
    const int code = run(words, out, err);
    return std::to_string(code) + " " + out.str() + err.str();
  };
  EXPECT_THAT(planned("2Gi", {"-o", "text"}),
              HasSubstr("its pods: fit into their limit of memory, 2.00 GiB\n"));
  EXPECT_THAT(planned("64Mi", {"-o", "text"}), HasSubstr("its pods: do not fit: engine.model: "));
  EXPECT_THAT(planned("64Mi", {"-o", "json"}), HasSubstr("\"podLimitBytes\": 67108864"));
  EXPECT_THAT(planned("2Gi", {}), StartsWith("0 "));
  const std::string refused = planned("64Mi", {});
  EXPECT_THAT(refused, StartsWith("64 "));
  EXPECT_THAT(refused, HasSubstr("wanted at most the 64.0 MiB that resources.limits.memory"));
}

}  // namespace
}  // namespace trainyard::cli
