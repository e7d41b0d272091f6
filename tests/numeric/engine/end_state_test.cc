// The end states of today's training are those of yesterday's, whatever compiler built it:
// tests/fixtures/end_states.json, with which tools/check_end_states compares `trainyard matrix`.

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/cpu/isa.h"
#include "tests/support/paths.h"
#include "worker/matrix/matrix.h"
#include "worker/matrix/world.h"

namespace trainyard::matrix {
namespace {

const std::string kPath = testing_support::source_path("tests/fixtures/end_states.json");

nlohmann::json pinned_states() {
  std::ifstream file(kPath);
  EXPECT_TRUE(file) << kPath << " is missing";
  return nlohmann::json::parse(file);
}

TEST(EndStateTest, IsThePinnedOneAfterThreeAndFiveSteps) {
  const nlohmann::json pinned = pinned_states();
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
          << (cut ? "cut, " : "") << steps << " steps: if bits were meant to change, edit " << kPath
          << " and say so in the change log";
    }
  }
}

/// With default numerics the sequences of the test above fit into one grain and one block of keys.
TEST(EndStateTest, IsThePinnedOneWhereSequencesAreLongerThanDefaultGrains) {
  const nlohmann::json pinned = pinned_states();
  for (const api::NumberFormat compute : {api::NumberFormat::kFP32, api::NumberFormat::kBF16}) {
    api::EngineSpec spec = prime_spec(compute);
    spec.model.layers = 1;
    spec.model.max_positions = 1101;
    spec.data.sequence_length = spec.model.max_positions;
    spec.batch = {.global_sequences = 3, .micro_sequences = 1};
    const std::vector<int32_t> stream = make_token_stream(8192, spec.model.vocab, 99);
    const std::string& expected =
        pinned["long"]["2"][compute == api::NumberFormat::kBF16 ? "bf16" : "fp32"];
    for (const int ranks : {1, 3}) {
      const auto facts = train_world(spec, {.ranks = ranks}, 2, stream);
      ASSERT_TRUE(facts) << facts.error().message;
      EXPECT_EQ(facts->front().state_hash, expected) << ranks << " ranks; " << kPath;
    }
  }
}

}  // namespace
}  // namespace trainyard::matrix
