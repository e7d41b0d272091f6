// `trainyard run` killed at every write, by itself.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/exact.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using testing_support::RunFixture;

/// Runs that kill themselves at their N-th write; then the next one ends the job. One rank is lost
/// on the way, so that a restart is among what is interrupted.
class RunCrashTest : public RunFixture, public ::testing::WithParamInterface<const char*> {
 protected:
  const Environment calm_ = {{"FAKE_RANK_STEP_MS", "4"}, {"FAKE_RANK_FAULT", "1:25:kill"}};

  /// Whether the run died at that write; false: it made fewer.
  bool dies_at(int write_number) {
    Environment environment = calm_;
    environment["TRAINYARD_RUN_CRASH"] = std::to_string(write_number) + ":" + GetParam();
    const auto run = start(environment);
    const auto end = run->wait(kDeadline);
    EXPECT_TRUE(end.has_value());
    return end && end->signal == SIGKILL;
  }

  void expect_exact_counts(const std::string& where) {
    const Json now = status();
    ASSERT_EQ(now.value("phase", ""), "Complete") << where;  // time may explain that, not the rest
    const std::string exact = testing_support::kExact + (": " + where);
    EXPECT_EQ(now["restarts"].value("total", -1), 1) << exact << now.dump(1);
    EXPECT_EQ(now["membership"].value("generation", 0), 2) << exact;
    EXPECT_EQ(now["attempts"].size(), 2u) << exact << now["attempts"].dump(1);
    std::multiset<std::string> starts;
    std::ifstream file(checkpoints() / "starts");
    for (std::string line; std::getline(file, line);)
      starts.insert(line);
    EXPECT_EQ(starts, (std::multiset<std::string>{"g1 r0", "g1 r1", "g2 r0", "g2 r1"})) << exact;
  }
};

TEST_P(RunCrashTest, CountsAreExactAndNoRankIsStartedTwice) {
  write("job.yaml", std::string(kManifest).replace(std::string(kManifest).find("initialSeconds: 1"),
                                                   17, "initialSeconds: 0"));
  constexpr int kMostWrites = 200;
  int writes = 1;
  for (; writes < kMostWrites && !HasFailure(); ++writes) {
    std::filesystem::remove_all(run_dir());
    if (!dies_at(writes)) break;
    const std::string where =
        std::string("killed ") + GetParam() + " write " + std::to_string(writes) + "\n";
    expect_end(*start(calm_), 0);
    expect_exact_counts(where);
    expect_nothing_left();
  }
  EXPECT_GT(writes, 10) << "a run with a restart writes more than that";
  EXPECT_LT(writes, kMostWrites);
}

INSTANTIATE_TEST_SUITE_P(Sides, RunCrashTest, ::testing::Values("before", "after"),
                         [](const auto& side) { return std::string(side.param); });

}  // namespace
}  // namespace trainyard
