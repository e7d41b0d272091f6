// One state hash over ways of dividing the states, transports, micro-batch splits, threads and
// instruction sets, and what must change it. `trainyard matrix` takes more ranks.

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_kernel_set.h"
#include "tests/support/extent.h"
#include "worker/matrix/covering.h"
#include "worker/matrix/matrix.h"

namespace trainyard::matrix {
namespace {

/// The cells that ran.
std::vector<Row> expect_one_hash(const MatrixOptions& options) {
  const auto result = run_matrix(options, [](const Row& row) {
    for (const std::string& fault : row.faults) {
      ADD_FAILURE() << row.cell.mesh().dp << " x " << row.cell.mesh().fsdp << ", stage "
                    << row.cell.zero_stage << " " << comm::name_of(row.cell.transport) << " micro "
                    << row.cell.micro_sequences << " threads " << row.cell.cpu.threads << " "
                    << kernels::name_of(row.cell.cpu.isa) << ": " << fault;
    }
  });
  if (!result) {
    ADD_FAILURE() << result.error().message;
    return {};
  }
  EXPECT_FALSE(result->rows.empty());
  for (const std::vector<std::string>& of_model : result->hashes) {
    if (of_model.size() == 2 && !of_model[0].empty()) {
      EXPECT_NE(of_model[0], of_model[1]) << "bf16 must differ from fp32";
    }
  }
  return result->rows;
}

TEST(EqualityMatrixTest, LayoutsTransportsSplitsAndInstructionSetsGiveOneHash) {
  expect_one_hash({.ranks = testing_support::runs_everything() ? std::vector{1, 2, 3, 4, 5, 6}
                                                               : std::vector{1, 2, 4, 5},
                   .chunks = {1},
                   .layers = {2},
                   .cut = true});
}

TEST(EqualityMatrixTest, SoDoSumsThatAreNotCut) {
  expect_one_hash({.ranks = {1, 3},
                   .pipelines = {1, 3},
                   .chunks = {1},
                   .layers = {2},
                   .transports = {comm::TransportKind::kLocal},
                   .steps = 3});
}

TEST(EqualityMatrixTest, SoDoDecodersOfLlamasKind) {
  for (const api::ModelFamily family : {api::ModelFamily::kLlama, api::ModelFamily::kQwen3}) {
    expect_one_hash({.ranks = {1, 3},
                     .pipelines = {1, 3},
                     .chunks = {1},
                     .layers = {2},
                     .family = family,
                     .transports = {comm::TransportKind::kLocal},
                     .micro_sequences = {1, 4},
                     .threads = {1},
                     .steps = 2,
                     .cut = family == api::ModelFamily::kQwen3});
  }
}

// Of the FLOPs that a formula counts key by key, too.
TEST(EqualityMatrixTest, SoDoWindowsAndDocumentsThatSeeNothingOfEachOther) {
  for (const bool isolate : {false, true}) {
    expect_one_hash({.ranks = {1, 4},
                     .zero_stages = {3},
                     .pipelines = {1, 2},
                     .chunks = {1},
                     .layers = {2},
                     .family = isolate ? api::ModelFamily::kGPT2 : api::ModelFamily::kMistral,
                     .transports = {comm::TransportKind::kLocal},
                     .micro_sequences = {1, 4},
                     .tensors = {2},
                     .slices = {2},
                     .contexts = {2},
                     .steps = 2,
                     .cut = true,
                     .window = isolate ? 0 : 11,
                     .isolate = isolate});
  }
}

TEST(EqualityMatrixTest, SoDoRanksThatShareEverySequence) {
  const std::vector<Row> rows = expect_one_hash({.ranks = {1, 8},
                                                 .zero_stages = {1, 3},
                                                 .pipelines = {2},
                                                 .chunks = {1},
                                                 .layers = {2},
                                                 .transports = {comm::TransportKind::kLocal},
                                                 .isas = {kernels::best_isa()},
                                                 .contexts = {2, 4},
                                                 .rings = {3},
                                                 .steps = 2});
  EXPECT_TRUE(std::ranges::any_of(rows, [](const Row& row) {
    return row.cell.context == 2 && row.cell.tensor == 1 && row.cell.mesh().fsdp == 2;
  }));
  EXPECT_TRUE(std::ranges::any_of(
      rows, [](const Row& row) { return row.cell.context == 2 && row.cell.tensor == 2; }));
  EXPECT_TRUE(std::ranges::any_of(rows, [](const Row& row) { return row.cell.context == 4; }));
  EXPECT_TRUE(std::ranges::any_of(rows, [](const Row& row) { return row.cell.ring; }));
}

TEST(EqualityMatrixTest, SeveralStagesOnEachRankGiveTheHashOfOneProcess) {
  MatrixOptions options{.ranks = {3, 4}, .pipelines = {2, 3, 4}, .chunks = {2, 3}, .steps = 3};
  if (testing_support::runs_everything()) {
    options.ranks = {2, 3, 4, 6, 8};
  } else {
    options.isas = {kernels::best_isa()};
  }
  expect_one_hash(options);
}

TEST(EqualityMatrixTest, StagesOfManyLayersGiveOneHash) {
  // What is computed again must not be written over a gradient that has been received.
  expect_one_hash({.ranks = {2},
                   .zero_stages = {1},
                   .pipelines = {2},
                   .chunks = {1},
                   .layers = {10},
                   .transports = {comm::TransportKind::kLocal},
                   .micro_sequences = {4},
                   .threads = {1},
                   .isas = {kernels::best_isa()},
                   .steps = 1});
}

TEST(LayoutsTest, AreEveryCutIntoCopiesAndShardsAtEveryStage) {
  const auto layouts = layouts_of(6, {0, 1, 2, 3});
  std::string all;
  for (const Cell& cell : layouts) {
    all += std::to_string(cell.mesh().dp) + "x" + std::to_string(cell.mesh().fsdp) + ":" +
           std::to_string(cell.zero_stage) +
           (cell.mode == api::ParallelMode::kDataParallel ? "d " : " ");
  }
  EXPECT_EQ(all, "6x1:0 1x6:0d 3x2:1 2x3:1 1x6:1 3x2:2 2x3:2 1x6:2 3x2:3 2x3:3 1x6:3 ");
}

TEST(CoveringArrayTest, HasEveryPairAndFewRows) {
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{
           {1}, {3}, {2, 2}, {5, 1, 3}, {2, 35, 4, 3, 3, 2}, {3, 3, 3, 3}}) {
    const auto rows = covering_array(sizes);
    for (size_t a = 0; a < sizes.size(); ++a) {
      for (size_t b = a; b < sizes.size(); ++b) {
        std::set<std::pair<int, int>> pairs;
        for (const std::vector<int>& row : rows)
          pairs.insert({row[a], row[b]});
        EXPECT_EQ(std::ssize(pairs), a == b ? sizes[a] : sizes[a] * sizes[b]);
      }
    }
    EXPECT_LE(rows.size(), product(sizes).size());
  }
  EXPECT_LE(covering_array({2, 35, 4, 3, 3, 2}).size(), 160U) << "the largest two have 140 pairs";
}

std::string hash_of(const api::EngineSpec& spec, const std::vector<int32_t>& stream) {
  const auto facts = train_world(spec, {.micro_sequences = 4}, 3, stream);
  EXPECT_TRUE(facts) << facts.error().message;
  return facts ? facts->front().state_hash : "";
}

TEST(EqualityMatrixTest, OneChangedSampleSeedOrCutChangesTheHash) {
  const api::EngineSpec spec = prime_spec(api::NumberFormat::kFP32);
  const std::vector<int32_t> stream = make_token_stream(4096, spec.model.vocab, 99);
  std::set<std::string> hashes = {hash_of(spec, stream)};

  std::vector<int32_t> other = stream;
  other[100] = (other[100] + 1) % static_cast<int32_t>(spec.model.vocab);
  hashes.insert(hash_of(spec, other));

  api::EngineSpec seed = spec;
  seed.seed += 1;
  hashes.insert(hash_of(seed, stream));

  api::EngineSpec grain = spec;
  grain.numerics.grain_tokens = 7;
  hashes.insert(hash_of(grain, stream));

  api::EngineSpec block = spec;
  block.numerics.key_block = 7;
  hashes.insert(hash_of(block, stream));

  for (const int64_t chunks : {1, 2, 3}) {
    api::EngineSpec cut = spec;
    cut.numerics.tensor_chunks = chunks;
    hashes.insert(hash_of(cut, stream));
  }

  api::EngineSpec isolated = spec;
  isolated.data.documents = api::Documents::kIsolate;
  hashes.insert(hash_of(isolated, stream));

  api::EngineSpec dropout = spec;
  dropout.model.dropout = 0.0;
  hashes.insert(hash_of(dropout, stream));

  api::EngineSpec clip = spec;
  clip.optimizer.gradient_clip = 0;
  hashes.insert(hash_of(clip, stream));
  EXPECT_EQ(hashes.size(), 11U);
}

}  // namespace
}  // namespace trainyard::matrix
