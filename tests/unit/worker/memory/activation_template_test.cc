#include "worker/memory/activation_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/memory/step_plan.h"
#include "worker/model/family.h"
#include "worker/model/recompute.h"
#include "worker/program/schedules/schedules.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kTokens = 32;

/// Two blocks between embedding and head.
Model small_model() {
  api::ModelSpec spec{.layers = 2, .hidden = 64, .heads = 2, .kv_heads = 2, .ffn = 256};
  spec.vocab = 1000;
  spec.max_positions = kTokens;
  return *build_model(spec);
}
constexpr int kLayers = 4;
using Part = ActivationTemplate::Part;
using Kind = InstructionKind;
using ::testing::ElementsAre;

OpExtent extent(bool trains) {
  return {.rows = 2 * kTokens, .tokens_per_sample = kTokens, .trains = trains};
}

/// Bytes of fp32 per row.
constexpr int64_t bytes_of(int64_t columns) { return 2 * kTokens * columns * 4; }

TEST(ActivationTemplateTest, KeepsWhatBackwardReadsAndNothingOfTheHead) {
  const Model model = small_model();
  const auto all = ActivationTemplate::make(model, {.layer_end = {kLayers}}, 0, extent(true), {});
  // Per block two residual values, two normed ones, q, k and v, the heads, the FFN twice; the
  // statistics of two norms and of the attention. The embedding's output is the first block's
  // input.
  const int64_t block = bytes_of(2 * 64 + 2 * 64 + 3 * 64 + 64 + 2 * 256) + bytes_of(2 * 2 + 2);
  EXPECT_EQ(all.kept_bytes(0), 2 * block + bytes_of(64));
  EXPECT_GE(all.transient_bytes(), bytes_of(padded_vocab(1000))) << "the gradient of the logits";
  EXPECT_NE(all.saved(kLayers - 1, 1, 0, Kind::kForward).part, Part::kKept)
      << "as the loss goes forward in its own backward";
  EXPECT_EQ(all.value(0, 0, Kind::kForward).part, Part::kKept);
  EXPECT_EQ(all.value(0, 0, Kind::kForward).offset, all.value(1, 0, Kind::kForward).offset)
      << "one buffer";
  EXPECT_NE(all.gradient(1, 0).part, Part::kKept);
}

TEST(ActivationTemplateTest, AForwardProgramKeepsNothing) {
  const Model model = small_model();
  OpExtent forward = extent(false);
  const auto evaluating = ActivationTemplate::make(model, {.layer_end = {kLayers}}, 0, forward, {});
  EXPECT_EQ(evaluating.kept_bytes(0), 0);
  const int64_t logits = bytes_of(padded_vocab(1000));  // of these few rows all at once
  EXPECT_GE(evaluating.transient_bytes(), logits);
  EXPECT_LT(evaluating.transient_bytes(), logits + bytes_of(64) * 3) << "and not their gradient";
  forward.has_targets = false;
  const auto sampling = ActivationTemplate::make(model, {.layer_end = {kLayers}}, 0, forward, {});
  EXPECT_LT(sampling.transient_bytes(), logits) << "those of the last row are not here";
}

TEST(ActivationTemplateTest, TypesAreThoseOfTheDevice) {
  const Model model = small_model();
  constexpr DType kHalf = DType::kBFloat16;
  const auto kept = [&](const kernels::DeviceFormats& formats) {
    OpExtent of = extent(true);
    of.formats = formats;
    return ActivationTemplate::make(model, {.layer_end = {kLayers}}, 0, of, {}).kept_bytes(0);
  };
  const int64_t statistics = bytes_of(2 * 2 + 2);
  const int64_t residual = 2 * bytes_of(2 * 64) + bytes_of(64);
  const int64_t all = kept({});
  EXPECT_EQ(kept({.residual = kHalf}), all - residual / 2);
  EXPECT_EQ(kept({.compute = kHalf}),
            residual + 2 * statistics + (all - residual - 2 * statistics) / 2);
  EXPECT_EQ(kept({.compute = kHalf, .residual = kHalf}),
            2 * statistics + (all - 2 * statistics) / 2);
}

TEST(ActivationTemplateTest, GradientsAndMessagesAreOfTheTypesOfTheDevice) {
  const Model model = small_model();
  const layout::StageMap stages{.layer_end = {2, kLayers}};
  constexpr int64_t kRows = 2 * kTokens;
  for (int bits = 0; bits < 8; ++bits) {
    const auto type = [&](int bit) {
      return (bits >> bit & 1) != 0 ? DType::kBFloat16 : DType::kFloat32;
    };
    OpExtent of = extent(true);
    of.formats = {.compute = type(0), .residual = type(1), .gradient = type(2)};
    const int64_t compute = kRows * size_of(type(0));
    const int64_t residual = kRows * size_of(type(1));
    const int64_t gradient = kRows * size_of(type(2));
    SCOPED_TRACE(bits);
    // Weight passes of a block read the gradients of what its products leave (q, k and v, the FFN,
    // two branches) and of its normed values; the embedding's that of the stream.
    const int64_t read = (3 * 64 + 256 + 2 * 64) * compute + (2 * 64 + 64) * gradient;
    const auto first = ActivationTemplate::make(model, stages, 0, of, {});
    EXPECT_EQ(first.transient_bytes(), read);
    EXPECT_EQ(first.outgoing_bytes(0), 64 * residual);
    const auto last = ActivationTemplate::make(model, stages, 1, of, {});
    EXPECT_EQ(last.outgoing_bytes(1), 64 * gradient);
    const auto apart = ActivationTemplate::make(model, stages, 0, of, {.weights_apart = true});
    EXPECT_EQ(apart.owed_bytes(0), read);
    EXPECT_EQ(apart.transient_bytes(), 256 * gradient) << "of the activation's output";
  }
}

/// Works in place; backward reads what it leaves.
class InPlace final : public Op {
 public:
  BackwardUses backward_uses() const override { return {.output_in_backward_input = true}; }
  bool is_cheap() const override { return true; }
  void forward(const OpArgs&) const override {}
};

/// The small model, whose projections to queries, keys and values are turned in place.
Model turning_model() {
  enum : int { kQkv = 2, kAttention = 2 };
  Model model = small_model();
  for (int block = 1; block + 1 < kLayers; ++block) {
    Layer& layer = model.layers[static_cast<size_t>(block)];
    Value turned = layer.values[kQkv];
    turned.alias_of = kQkv;
    const auto value = static_cast<int>(layer.values.size());
    layer.values.push_back(turned);
    layer.nodes[kAttention].inputs = {value};
    layer.nodes.insert(layer.nodes.begin() + kAttention,
                       {std::make_unique<InPlace>(), {kQkv}, {value}, {}});
  }
  return model;
}

TEST(ActivationTemplateTest, AnOpInPlaceTakesNoMemory) {
  const Model model = turning_model();
  enum : int { kQkv = 2, kTurned = 11 };
  for (const auto recompute : {api::Recompute::kNone, api::Recompute::kSelective}) {
    const auto plain = ActivationTemplate::make(small_model(), {.layer_end = {kLayers}}, 0,
                                                extent(true), {.recompute = recompute});
    const auto all = ActivationTemplate::make(model, {.layer_end = {kLayers}}, 0, extent(true),
                                              {.recompute = recompute});
    EXPECT_EQ(all.kept_bytes(0), plain.kept_bytes(0));
    EXPECT_EQ(all.transient_bytes(), plain.transient_bytes());
    for (const Kind by : {Kind::kForward, Kind::kBackwardInput})
      EXPECT_EQ(all.value(1, kTurned, by).offset, all.value(1, kQkv, by).offset);
    EXPECT_EQ(all.gradient(1, kTurned).offset, all.gradient(1, kQkv).offset);
  }
}

TEST(ActivationTemplateTest, AStageReceivesItsInputInABufferOfItsOwn) {
  const Model model = small_model();
  const layout::StageMap stages{.layer_end = {2, kLayers}, .per_rank = 2};
  const auto all = ActivationTemplate::make(model, stages, 0, extent(true), {});
  ASSERT_EQ(all.stages(), 2);
  EXPECT_EQ(all.stage_of(1), 0);
  EXPECT_EQ(all.stage_of(2), 1);
  EXPECT_EQ(all.value(2, 0, Kind::kForward).part, Part::kKept);
  // What the first stage sends it does not read again.
  EXPECT_NE(all.value(1, model.layers[1].output, Kind::kForward).part, Part::kKept);
}

ActivationTemplate template_of(const Model& model, const ActivationTemplate::Backward& backward) {
  return ActivationTemplate::make(model, {.layer_end = {kLayers}}, 0, extent(true), backward);
}

TEST(RecomputeTest, FullKeepsTheInputsOfLayersAlone) {
  const Model model = small_model();
  const auto all = template_of(model, {.recompute = api::Recompute::kFull});
  EXPECT_EQ(all.kept_bytes(0), 3 * bytes_of(64)) << "of two blocks and the head";
  // All nodes of a block but the product that ends it and what adds that to the stream.
  EXPECT_THAT(all.recomputed(1), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(all.recomputed(0), ElementsAre()) << "its output is the block's input";
  EXPECT_THAT(all.recomputed(kLayers - 1), ElementsAre()) << "it goes forward in its backward";
  for (const Kind by : {Kind::kForward, Kind::kRecompute, Kind::kBackwardInput}) {
    EXPECT_EQ(all.value(1, 1, by).part, Part::kTransient);
    EXPECT_EQ(all.saved(1, 2, 0, by).part, Part::kTransient) << "the attention's statistics";
  }
  EXPECT_EQ(all.value(1, 0, Kind::kRecompute).part, Part::kKept);
  EXPECT_LT(all.kept_bytes(0) + all.transient_bytes(),
            template_of(model, {}).kept_bytes(0) + template_of(model, {}).transient_bytes());
}

TEST(RecomputeTest, SelectiveRunsNormsAndActivationsAgainFromWhatIsKept) {
  const Model model = small_model();
  const auto all = template_of(model, {.recompute = api::Recompute::kSelective});
  // Two residual values, q, k and v, the heads, the FFN once; the attention's statistics.
  const int64_t block = bytes_of(2 * 64 + 3 * 64 + 64 + 256) + bytes_of(2);
  EXPECT_EQ(all.kept_bytes(0), 2 * block + bytes_of(64));
  EXPECT_THAT(all.recomputed(1), ElementsAre(0, 5, 7)) << "two norms and the activation";
  EXPECT_EQ(all.value(1, 2, Kind::kBackwardInput).part, Part::kKept);
}

TEST(RecomputeTest, AnOpInPlaceRunsAgainWithWhatItWorksOnOrNotAtAll) {
  const Model model = turning_model();
  EXPECT_THAT(recomputed_nodes(model.layers[1], api::Recompute::kFull),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(recomputed_nodes(model.layers[1], api::Recompute::kSelective), ElementsAre(0, 6, 8))
      << "to turn what is kept once more would be wrong";
  const auto all = ActivationTemplate::make(model, {.layer_end = {kLayers}}, 0, extent(true),
                                            {.recompute = api::Recompute::kFull});
  enum : int { kQkv = 2, kTurned = 11 };
  EXPECT_EQ(all.value(1, kTurned, Kind::kRecompute).offset,
            all.value(1, kQkv, Kind::kRecompute).offset);
}

TEST(RecomputeTest, WhatAWeightPassOfItsOwnReadsIsOwedFromRecomputationOn) {
  const Model model = small_model();
  const auto all = template_of(model, {.weights_apart = true, .recompute = api::Recompute::kFull});
  EXPECT_EQ(all.kept_bytes(0), 3 * bytes_of(64));
  enum : int { kNorm1 = 1, kQkv, kHeads };
  EXPECT_EQ(all.value(1, kNorm1, Kind::kForward).part, Part::kTransient);
  EXPECT_EQ(all.value(1, kNorm1, Kind::kRecompute).part, Part::kOwed);
  EXPECT_EQ(all.value(1, kHeads, Kind::kBackwardWeight).part, Part::kOwed);
  EXPECT_EQ(all.value(1, kQkv, Kind::kBackwardInput).part, Part::kTransient) << "B alone reads it";
  EXPECT_EQ(all.gradient(1, kQkv).part, Part::kOwed);
  const auto none = template_of(model, {.weights_apart = true});
  EXPECT_EQ(none.value(1, kNorm1, Kind::kBackwardWeight).part, Part::kKept);
  EXPECT_GT(none.owed_bytes(0), 0) << "gradients";
  EXPECT_EQ(template_of(model, {}).owed_bytes(0), 0);
}

TEST(RecomputeTest, AForwardProgramComputesNothingAgain) {
  const auto all = ActivationTemplate::make(small_model(), {.layer_end = {kLayers}}, 0,
                                            extent(false), {.recompute = api::Recompute::kFull});
  EXPECT_EQ(all.kept_bytes(0), 0);
  EXPECT_THAT(all.recomputed(1), ElementsAre());
}

TEST(SlotsTest, WhatIsOwedTakesASlotFromItsBackwardOn) {
  const Schedule schedule = zero_bubble_h1({.layer_end = {1, 2, 3, 4}}, 8, 1);
  EXPECT_EQ(Slots(schedule, 4).count(1), 4);
  EXPECT_EQ(Slots(schedule, 4, Kind::kBackwardInput).count(1), 2);
}

TEST(SlotsTest, AMicroBatchTakesTheLowestSlotFromItsForwardToItsLastPass) {
  // Two in flight; the second ends first.
  const Slots slots({{Kind::kForward, 0},
                     {Kind::kForward, 1},
                     {Kind::kBackwardInput, 1},
                     {Kind::kBackwardWeight, 1},
                     {Kind::kForward, 2},
                     {Kind::kBackwardInput, 0},
                     {Kind::kBackwardInput, 2},
                     {Kind::kBackwardWeight, 0},
                     {Kind::kForward, 3},
                     {Kind::kBackwardWeight, 2},
                     {Kind::kBackwardInput, 3},
                     {Kind::kBackwardWeight, 3}},
                    1);
  EXPECT_EQ(slots.count(0), 2);
  EXPECT_EQ(slots.slot(0, 0), 0);
  EXPECT_EQ(slots.slot(1, 0), 1);
  EXPECT_EQ(slots.slot(2, 0), 1);
  EXPECT_EQ(slots.slot(3, 0), 0);
  EXPECT_EQ(Slots(naive({}, 4096, 0), 1).count(0), 1);
}

TEST(SlotsTest, StagesOfARankHaveTheirOwn) {
  const Slots slots({{Kind::kForward, 0, 0},
                     {Kind::kForward, 1, 0},
                     {Kind::kForward, 0, 1},
                     {Kind::kForward, 1, 1}},
                    2);
  EXPECT_EQ(slots.count(0), 1) << "without a backward pass each ends with its F";
  EXPECT_EQ(slots.slot(1, 1), 0);
}

TEST(ProgramMemoryTest, KeptPartsOfMicroBatchesInFlightLieSideBySide) {
  const Model model = small_model();
  const auto all = ActivationTemplate::make(model, {.layer_end = {kLayers}}, 0, extent(true), {});
  const Schedule both = {{Kind::kForward, 0},       {Kind::kForward, 1},
                         {Kind::kBackwardInput, 0}, {Kind::kBackwardWeight, 0},
                         {Kind::kBackwardInput, 1}, {Kind::kBackwardWeight, 1}};
  const ProgramMemory memory(all, both, UnitBuffers());
  EXPECT_EQ(memory.arena_bytes(), 2 * all.kept_bytes(0) + all.transient_bytes());
  const auto input = all.value(1, 0, Kind::kForward);
  EXPECT_EQ(memory.offset(input, 1, 1) - memory.offset(input, 0, 1), all.kept_bytes(0));
  const auto logits = all.saved(kLayers - 1, 1, 0, Kind::kForward);
  EXPECT_EQ(memory.offset(logits, 1, kLayers - 1), memory.offset(logits, 0, kLayers - 1));
  EXPECT_GE(memory.offset(logits, 0, kLayers - 1), 2 * all.kept_bytes(0));
}

}  // namespace
}  // namespace trainyard::engine
