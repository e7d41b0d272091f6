// The end states of today's training are those of yesterday's, whatever compiler built it:
// tests/fixtures/end_states.json, with which tools/check_end_states compares `trainyard matrix`.

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/cpu/isa.h"
#include "tests/support/paths.h"
#include "worker/matrix/matrix.h"

namespace trainyard::matrix {
namespace {

TEST(EndStateTest, IsThePinnedOneAfterThreeAndFiveSteps) {
  const std::string path = testing_support::source_path("tests/fixtures/end_states.json");
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing";
  const nlohmann::json pinned = nlohmann::json::parse(file);
  for (const bool cut : {false, true}) {
    for (const int64_t steps : {3, 5}) {
      const auto result = run_matrix({.ranks = {1},
                                      .zero_stages = {0},
                                      .transports = {comm::TransportKind::kLocal},
                                      .micro_sequences = {4},
                                      .threads = {2},
                                      .isas = {kernels::best_isa()},
                                      .steps = steps,
                                      .cut = cut},
                                     {});
      ASSERT_TRUE(result) << result.error().message;
      const nlohmann::json& expected = pinned[cut ? "cut" : "default"][std::to_string(steps)];
      EXPECT_EQ(result->hashes.front(),
                (std::vector<std::string>{expected["fp32"], expected["bf16"]}))
          << (cut ? "cut, " : "") << steps << " steps: if bits were meant to change, edit " << path
          << " and say so in the change log";
    }
  }
}

}  // namespace
}  // namespace trainyard::matrix
