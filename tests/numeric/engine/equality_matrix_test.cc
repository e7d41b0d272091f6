// One state hash over ranks, transports, micro-batch splits, threads and instruction sets, and what
// must change it. The whole product is `trainyard matrix`; the test takes a covering part of it.

#include <set>

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_kernel_set.h"
#include "worker/matrix/matrix.h"

namespace trainyard::matrix {
namespace {

void expect_one_hash(const MatrixOptions& options) {
  const auto result = run_matrix(options, [](const Row& row) {
    for (const std::string& fault : row.faults) {
      ADD_FAILURE() << "ranks " << row.cell.ranks << " " << comm::name_of(row.cell.transport)
                    << " micro " << row.cell.micro_sequences << " threads " << row.cell.threads
                    << " " << kernels::name_of(row.cell.isa) << ": " << fault;
    }
  });
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_FALSE(result->rows.empty());
  if (result->hashes.size() == 2) {
    EXPECT_NE(result->hashes[0], result->hashes[1]) << "bf16 must differ from fp32";
  }
}

TEST(EqualityMatrixTest, RanksTransportsAndSplitsGiveOneHash) {
  expect_one_hash({.isas = {kernels::best_isa()}});
}

TEST(EqualityMatrixTest, InstructionSetsAndThreadsGiveOneHash) {
  expect_one_hash({.ranks = {1, 3},
                   .transports = {comm::TransportKind::kLocal},
                   .micro_sequences = {4},
                   .steps = 3});
}

std::string hash_of(const api::EngineSpec& spec, const std::vector<int32_t>& stream) {
  const auto facts =
      train_world(spec, {.isa = kernels::best_isa(), .micro_sequences = 4}, 3, stream);
  EXPECT_TRUE(facts) << facts.error().message;
  return facts ? facts->front().state_hash : "";
}

TEST(EqualityMatrixTest, OneChangedSampleSeedOrGrainChangesTheHash) {
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

  api::EngineSpec dropout = spec;
  dropout.model.dropout = 0.0;
  hashes.insert(hash_of(dropout, stream));

  api::EngineSpec clip = spec;
  clip.optimizer.gradient_clip = 0;
  hashes.insert(hash_of(clip, stream));
  EXPECT_EQ(hashes.size(), 6U);
}

}  // namespace
}  // namespace trainyard::matrix
