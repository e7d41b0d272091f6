#include <filesystem>
#include <fstream>
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

class PlanCommandTest : public testing::Test {
 protected:
  /// Runs `trainyard plan` on a job of this model; returns its exit code.
  int plan(const std::string& model, const std::string& batch,
           const std::vector<std::string>& more = {}) {
    std::ofstream(path("job.yaml")) << "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\n"
                                       "metadata: {name: job}\nspec:\n  engine:\n    model: "
                                    << model
                                    << "\n    data: {tokens: [nowhere], sequenceLength: 64}\n"
                                       "    batch: "
                                    << batch
                                    << "\n    steps: 1\n    runtime: {threads: 2}\n"
                                       "    parallelism: {zeroStage: 1}\n";
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
  std::string out_;
  std::string err_;
};

TEST_F(PlanCommandTest, AModelOfOneAndAHalfBillionParametersShows24GB) {
  ASSERT_EQ(plan("{preset: gpt2-1558m}", "{globalSequences: 64}", {"--ranks", "64"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("job: 1,557,611,200 parameters, FP32, 64 ranks\n"));
  EXPECT_THAT(out_, HasSubstr("states at 16 B per parameter, not divided: 24.92 GB\n"));
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

TEST_F(PlanCommandTest, RefusesWhatNobodyKnowsTheSizeOf) {
  EXPECT_EQ(plan("{layers: 2, hidden: 64, heads: 2}", "{globalSequences: 8}"), 65);
  EXPECT_THAT(err_, HasSubstr("trainyard plan: engine.model.vocab: found nothing, wanted"));
  EXPECT_THAT(err_, HasSubstr("nowhere"));
  EXPECT_EQ(plan("{import: gone}", "{globalSequences: 8}"), 65);
  EXPECT_THAT(err_, HasSubstr("trainyard plan: engine.model.import: "));
  EXPECT_EQ(plan("{preset: gpt2-124m}", "{globalSequences: 2}", {"--ranks", "3"}), 64);
  EXPECT_THAT(err_, HasSubstr("engine.batch.globalSequences: found 2"));
}

TEST_F(PlanCommandTest, LeavesTheSameFiguresAsAChart) {
  const std::string svg = path("plan.svg");
  ASSERT_EQ(plan("{preset: gpt2-124m}", "{globalSequences: 8}", {"--ranks", "2", "--svg", svg}), 0);
  std::ifstream file(svg);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(text, HasSubstr("job on 2 ranks, largest rank, GiB"));
  EXPECT_THAT(text, HasSubstr("<title>stage 1, moments: "));
}

}  // namespace
}  // namespace trainyard::cli
