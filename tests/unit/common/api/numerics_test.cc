#include "common/api/numerics.h"

#include <gtest/gtest.h>

namespace trainyard::api {
namespace {

/// Of a checkpoint's configuration with six heads.
EngineSpec stored_with(const NumericsSpec& numerics) {
  EngineSpec engine;
  engine.model.heads = 6;
  engine.numerics = numerics;
  return engine;
}

TEST(NumericsTest, NamesTheFieldsThatCutSums) {
  EXPECT_EQ(describe({.mode = NumericsMode::kCanonical,
                      .grain_tokens = 1024,
                      .key_block = 128,
                      .tensor_chunks = 12}),
            "Canonical, grainTokens 1024, keyBlock 128, tensorChunks 12");
  EXPECT_EQ(describe({.mode = NumericsMode::kCanonical, .tensor_chunks = 0, .grain_sequences = 4}),
            "Canonical, grainSequences 4, tensorChunks 0");
  EXPECT_EQ(describe({.mode = NumericsMode::kFast, .tensor_chunks = 2}), "Fast");
}

TEST(NumericsAsTrainedTest, ARunFromBeforeKeyBlockHadBlocksOfItsGrain) {
  const NumericsSpec numerics = as_trained(stored_with({.grain_tokens = 64}));
  EXPECT_EQ(numerics.grain_tokens, 64);
  EXPECT_EQ(numerics.key_block, 64);
  EXPECT_EQ(numerics.tensor_chunks, 6) << "a chunk for each head";
}

TEST(NumericsAsTrainedTest, ItsGrainWas128WhereItNamesNone) {
  const NumericsSpec numerics = as_trained(stored_with({.mode = NumericsMode::kFast}));
  EXPECT_EQ(numerics.mode, NumericsMode::kFast);
  EXPECT_EQ(numerics.grain_tokens, 128);
  EXPECT_EQ(numerics.key_block, 128);
  EXPECT_EQ(numerics.tensor_chunks, 6);
}

TEST(NumericsAsTrainedTest, WhatACheckpointNamesIsKept) {
  const NumericsSpec named{.grain_tokens = 96, .key_block = 32, .tensor_chunks = 0};
  EXPECT_EQ(as_trained(stored_with(named)), named);
}

TEST(NumericsAsTrainedTest, AGpuCutsNothingUnlessACheckpointSaysSo) {
  EngineSpec engine = stored_with({.grain_sequences = 4});
  engine.device = DeviceKind::kCuda;
  EXPECT_EQ(as_trained(engine), (NumericsSpec{.tensor_chunks = 0, .grain_sequences = 4}));
  engine.numerics.mode = NumericsMode::kFast;
  engine.numerics.tensor_chunks = 2;
  EXPECT_EQ(as_trained(engine).tensor_chunks, std::nullopt) << "fp32 sums have no pieces";
}

}  // namespace
}  // namespace trainyard::api
