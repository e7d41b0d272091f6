#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::cli {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

class PlanProgramTest : public testing::Test {
 protected:
  /// What `trainyard plan` prints of a job with this parallelism; two sequences a micro-batch.
  std::string plan(const std::string& parallelism, int ranks, int sequences,
                   const std::vector<std::string>& more) {
    std::ofstream(path("job.yaml"))
        << "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\n"
           "metadata: {name: job}\nspec:\n  numProcPerNode: "
        << ranks
        << "\n  engine:\n"
           "    model: {layers: 6, hidden: 64, heads: 2, vocab: 256, maxPositions: 64}\n"
           "    data: {tokens: [nowhere], sequenceLength: 64}\n"
           "    batch: {microSequences: 2, globalSequences: "
        << sequences
        << "}\n    steps: 1\n    runtime: {threads: 1}\n    parallelism: " << parallelism << "\n";
    std::vector<std::string> words = {"plan", path("job.yaml")};
    words.insert(words.end(), more.begin(), more.end());
    std::ostringstream out;
    std::ostringstream err;
    EXPECT_EQ(run(words, out, err), 0) << err.str();
    return out.str();
  }
  Json json(const std::string& parallelism, int ranks, int sequences,
            const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"-o", "json"};
    words.insert(words.end(), more.begin(), more.end());
    return Json::parse(plan(parallelism, ranks, sequences, words));
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  testing_support::TemporaryDirectory folder_;
};

std::string pipeline(int stages, const std::string& schedule) {
  return "{mode: Distributed, pipeline: " + std::to_string(stages) +
         ", pipelineSchedule: " + schedule + "}";
}

/// How long a pipeline takes whose passes cost one each, from the passes of its ranks alone, and
/// how long they wait of it. A W that follows its B at once is a part of it.
class Replay {
 public:
  explicit Replay(const Json& programs) {
    for (const Json& program : programs)
      ranks_.push_back({.passes = program["passes"]});
    bool moves = true;
    while (moves) {
      moves = false;
      for (Rank& rank : ranks_) {
        while (rank.next < rank.passes.size() && step(rank))
          moves = true;
      }
    }
    for (const Rank& rank : ranks_) {
      EXPECT_EQ(rank.next, rank.passes.size()) << "deadlock";
      end_ = std::max(end_, rank.now);
      busy_ += static_cast<double>(rank.passes.size());
    }
  }
  double end() const { return end_; }
  double bubble() const { return 1 - busy_ / (end_ * static_cast<double>(ranks_.size())); }

 private:
  struct Rank {
    Json passes;
    size_t next = 0;
    double now = 0;
  };
  using Key = std::tuple<std::string, int, int>;  // kind, micro-batch, stage

  bool step(Rank& rank) {
    const Json& pass = rank.passes[rank.next];
    const std::string kind = pass[0];
    const int m = pass[1];
    const int stage = pass[2];
    std::vector<Key> before;
    if (kind == "F" && stage > 0) before.emplace_back("F", m, stage - 1);
    const int last = static_cast<int>(ranks_.size()) - 1;
    if (kind == "B") before.emplace_back("F", m, stage);
    if (kind == "B" && stage < last) before.emplace_back("B", m, stage + 1);
    if (kind == "W") before.emplace_back("B", m, stage);
    double begin = rank.now;
    for (const Key& key : before) {
      if (!ended_.contains(key)) return false;
      begin = std::max(begin, ended_[key]);
    }
    rank.now = begin + 1;
    ++rank.next;
    if (kind == "B" && rank.next < rank.passes.size() && rank.passes[rank.next][0] == "W" &&
        rank.passes[rank.next][1] == m && rank.passes[rank.next][2] == stage) {
      rank.now += 1;
      ended_[{"W", m, stage}] = rank.now;
      ++rank.next;
    }
    ended_[{kind, m, stage}] = rank.now;
    return true;
  }

  std::vector<Rank> ranks_;
  std::map<Key, double> ended_;
  double end_ = 0;
  double busy_ = 0;
};

TEST_F(PlanProgramTest, AReplayOfTheListedPassesHasTheBubbleOfTheFormula) {
  for (const int p : {2, 4}) {
    for (const int m : {1, 3, 8}) {
      for (const char* const schedule : {"GPipe", "OneFOneB"}) {
        const Json planned = json(pipeline(p, schedule), p, 2 * m)["schedule"];
        ASSERT_EQ(planned["programs"].size(), static_cast<size_t>(p));
        const Replay replay(planned["programs"]);
        EXPECT_EQ(replay.end(), 3.0 * (m + p - 1)) << schedule << " " << p << " " << m;
        EXPECT_NEAR(replay.bubble(), (p - 1.0) / (m + p - 1), 1e-9) << schedule;
        EXPECT_NEAR(planned["bubble"], replay.bubble(), 1e-9) << schedule;
      }
      if (m == 1) continue;  // its W follows its B at once
      const Json apart = json(pipeline(p, "ZeroBubbleH1"), p, 2 * m)["schedule"];
      EXPECT_EQ(Replay(apart["programs"]).end(), 3.0 * m + 2 * (p - 1) - (std::min(m, p) - 1))
          << p << " " << m;
    }
  }
}

TEST_F(PlanProgramTest, ListsEachProgramOnceWithTheRanksThatRunIt) {
  // Of five sequences one data rank has two, a micro-batch, the other three.
  const Json planned = json(pipeline(2, "OneFOneB"), 4, 5)["schedule"];
  EXPECT_EQ(planned["microBatches"], 2);
  const Json& programs = planned["programs"];
  ASSERT_EQ(programs.size(), 4U) << programs;
  EXPECT_EQ(programs[0]["ranks"], Json::array({0}));
  EXPECT_EQ(programs[0]["passes"].dump(), R"([["F",0,0,0],["B",0,0,0],["W",0,0,0]])");
  EXPECT_EQ(programs[3]["ranks"], Json({3}));
  EXPECT_EQ(programs[3]["passes"].dump(),
            R"([["F",0,1,0],["B",0,1,0],["W",0,1,0],["F",1,1,0],["B",1,1,0],["W",1,1,0]])");
  const Json even = json(pipeline(2, "OneFOneB"), 4, 8)["schedule"]["programs"];
  ASSERT_EQ(even.size(), 2U) << even;
  EXPECT_EQ(even[1]["ranks"], Json({2, 3}));
}

TEST_F(PlanProgramTest, BytesOfEveryRankAddUpToThoseOfTheTable) {
  for (const int zero_stage : {0, 1, 2, 3}) {
    const Json planned = json(
        "{mode: Distributed, pipeline: 2, zeroStage: " + std::to_string(zero_stage) + "}", 6, 12);
    const Json& table = planned["stages"][static_cast<size_t>(zero_stage)];
    int ranks = 0;
    std::map<std::string, int64_t> messages;
    for (const Json& group : planned["rankGroups"]) {
      ranks += static_cast<int>(group["ranks"].size());
      int64_t bytes = 0;
      for (const auto& [purpose, of_it] : group["bytes"].items())
        bytes += of_it.get<int64_t>();
      EXPECT_EQ(bytes, group["totalBytes"]);
      int64_t sent = 0;
      for (const Json& of_group : group["sentPerStep"]) {
        sent += of_group["bytes"].get<int64_t>();
        messages[of_group["group"]] +=
            of_group["bytes"].get<int64_t>() * static_cast<int64_t>(group["ranks"].size());
      }
      EXPECT_EQ(sent, group["bytesSentPerStep"]);
      const bool largest = std::find(group["ranks"].begin(), group["ranks"].end(),
                                     table["largestRank"]) != group["ranks"].end();
      if (!largest) continue;
      EXPECT_EQ(group["bytes"], table["bytes"]);
      EXPECT_EQ(group["bytesSentPerStep"], table["bytesSentPerStep"]);
      EXPECT_EQ(group["flopsPerStep"], table["flopsPerStep"]);
    }
    EXPECT_EQ(ranks, 6);
    // 12 sequences of 64 tokens, 64 values each, go forward once and back once.
    EXPECT_EQ(messages["activations"], 12 * 64 * 64 * 4);
    EXPECT_EQ(messages["gradients"], 12 * 64 * 64 * 4);
  }
}

TEST_F(PlanProgramTest, WarnsOfZeroStagesThatCommunicateForEachMicroBatch) {
  const auto with = [](int zero_stage, int stages) {
    return "{mode: Distributed, pipeline: " + std::to_string(stages) +
           ", zeroStage: " + std::to_string(zero_stage) + "}";
  };
  const std::string warning =
      "engine.parallelism.zeroStage: found 3, which communicates for each "
      "of 8 micro-batches: the largest rank sends ";
  const Json planned = json(with(3, 2), 4, 32);
  EXPECT_THAT(planned["warning"], HasSubstr(warning));
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(run({"validate", path("job.yaml"), "-o", "json"}, out, err), 0) << err.str();
  EXPECT_THAT(Json::parse(out.str())[0].value("warning", ""), HasSubstr(warning));
  EXPECT_FALSE(json(with(1, 2), 4, 32).contains("warning"));
  EXPECT_FALSE(json(with(3, 1), 4, 32).contains("warning"));
  EXPECT_FALSE(json(with(3, 4), 4, 32).contains("warning")) << "nothing is divided";
}

TEST_F(PlanProgramTest, ListsAWholeProgramOnRequest) {
  const Json program = json(pipeline(2, "OneFOneB"), 4, 8, {"--rank", "2"})["program"];
  EXPECT_EQ(program["rank"], 2);
  const Json& instructions = program["instructions"];
  EXPECT_EQ(instructions[0].dump(), R"({"kind":"RECEIVE","layer":4,"microBatch":0,"peer":0})")
      << instructions[0];
  const auto count = [&](const char* kind) {
    return std::count_if(instructions.begin(), instructions.end(),
                         [&](const Json& i) { return i["kind"] == kind; });
  };
  EXPECT_EQ(count("SEND_GRADIENT"), 2);
  EXPECT_EQ(count("REDUCE_CONTROL"), 1);
  const std::string text = plan(pipeline(2, "OneFOneB"), 4, 8, {"--rank", "2"});
  EXPECT_THAT(text, HasSubstr("     0  RECEIVE m0 l4 p0\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), std::ssize(instructions));
}

TEST_F(PlanProgramTest, ARankThatTheJobLacksIsRefused) {
  plan(pipeline(2, "OneFOneB"), 4, 8, {});
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(run({"plan", path("job.yaml"), "--rank", "4"}, out, err), 64);
  EXPECT_THAT(err.str(), HasSubstr("--rank: found 4, wanted a rank of the job, 0 to 3"));
}

TEST_F(PlanProgramTest, DrawsTheScheduleInLetters) {
  const std::string text = plan("{mode: Distributed, pipeline: 2, pipelineSchedule: GPipe}", 2, 4,
                                {"--program", "--unit-costs"});
  EXPECT_THAT(text, HasSubstr("GPipe, 2 stages, 2 micro-batches: bubble "));
  EXPECT_THAT(text, HasSubstr("by formula 33.3 %\nstage 0, rank 0 FFF"));
  EXPECT_THAT(text, HasSubstr("\nstage 1, rank 1 ...."));
  EXPECT_THAT(text, HasSubstr("(p - 1)/(m + p - 1)"));
  for (const int sequences : {4, 1000}) {
    const std::string drawn = plan(pipeline(2, "OneFOneB"), 2, sequences, {"--program"});
    std::istringstream lines(drawn);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(line.size(), 80U) << line;
    EXPECT_EQ(drawn.find(" ~~ ") != std::string::npos, sequences == 1000) << drawn;
  }
  EXPECT_THAT(plan("{}", 1, 4, {"--program"}), HasSubstr("2 micro-batches: bubble 0.0 %"));
}

TEST_F(PlanProgramTest, DrawsTheScheduleAsAPictureThatNeedsNothingElse) {
  const auto drawn = [this](int sequences) {
    plan(pipeline(2, "OneFOneB"), 2, sequences, {"--program", "--svg", path("program.svg")});
    std::ifstream file(path("program.svg"));
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string svg = drawn(8);
  EXPECT_THAT(svg, HasSubstr("OneFOneB, 2 stages, 4 micro-batches: bubble "));
  EXPECT_THAT(svg, HasSubstr("<title>B, gradients of inputs: micro-batch 3, stage 1, "));
  EXPECT_THAT(svg, HasSubstr("<rect width='100%' height='100%' fill='#ffffff'/>"));
  EXPECT_THAT(svg, Not(HasSubstr("var(")));
  EXPECT_THAT(svg, Not(HasSubstr("href")));
  EXPECT_THAT(svg, HasSubstr(">stage 1, rank 1</text>"));
  EXPECT_THAT(drawn(4000), HasSubstr(">...</text>")) << "the middle is left out";
  EXPECT_LT(drawn(4000).size(), 400'000U);
}

}  // namespace
}  // namespace trainyard::cli
