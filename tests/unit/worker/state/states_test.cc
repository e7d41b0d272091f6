#include "worker/state/states.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "worker/device/cpu_device.h"
#include "worker/model/gpt2.h"
#include "worker/state/units.h"

namespace trainyard::engine {
namespace {

Model small_model() {
  return build_gpt2(
             {.layers = 3, .hidden = 66, .heads = 3, .ffn = 101, .vocab = 67, .max_positions = 31})
      .value();
}

/// The whole model on one stage.
layout::StageMap one_stage(const Model& model) {
  return {.layer_end = {static_cast<int>(model.layers.size())}};
}

/// Cut into `stages`, in units of 64 KiB.
layout::Layout layout_of(const Model& model, DType compute, const layout::Mesh& mesh, int stage,
                         const layout::StageMap& stages) {
  return make_layout(model, make_units(model, compute, 64 << 10, stages), {.zero_stage = stage},
                     mesh)
      .value();
}

layout::Layout layout_of(const Model& model, DType compute, int ranks, int stage) {
  return layout_of(model, compute, {.fsdp = ranks}, stage, one_stage(model));
}

TEST(UnitsTest, AreInTheOrderInWhichBackwardCompletesThem) {
  const Model model = small_model();
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t bytes : {1, 64 << 10, 1 << 30}) {
      const std::vector<layout::Unit> units = make_units(model, compute, bytes, one_stage(model));
      std::vector<int> lowest;
      for (const layout::Unit& unit : units)
        lowest.push_back(unit.layers.front());
      EXPECT_TRUE(std::is_sorted(lowest.rbegin(), lowest.rend()));
      std::multiset<int> seen;
      for (const layout::Unit& unit : units) {
        EXPECT_EQ(unit.stages, std::vector<int>{0});
        for (const int param : unit.tensors) {
          seen.insert(param);
          const ParamSpec& spec = model.params[static_cast<size_t>(param)];
          const bool vector = spec.tensor.shape.size() == 1;
          EXPECT_EQ(unit.dtype, vector ? DType::kFloat32 : compute) << spec.name();
          EXPECT_TRUE(!spec.tied || unit.tensors.size() == 1);
          for (size_t l = 0; l < model.layers.size(); ++l) {
            for (const Node& node : model.layers[l].nodes) {
              const bool uses = std::count(node.params.begin(), node.params.end(), param) > 0;
              const auto named =
                  std::count(unit.layers.begin(), unit.layers.end(), static_cast<int>(l));
              EXPECT_TRUE(!uses || named == 1) << spec.name();
            }
          }
        }
      }
      EXPECT_EQ(seen.size(), model.params.size());
      EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), model.params.size());
    }
  }
}

TEST(UnitsTest, EndWhereAStageEnds) {
  const Model model = small_model();  // embeddings, three blocks, classifier
  for (const int64_t bytes : {1, 64 << 10, 1 << 30}) {
    const layout::StageMap stage_map{.layer_end = {2, 3, 5}};
    int tied = 0;
    for (const layout::Unit& unit : make_units(model, DType::kBFloat16, bytes, stage_map)) {
      std::set<int> stages;
      for (const int layer : unit.layers)
        stages.insert(layer < 2 ? 0 : layer < 3 ? 1 : 2);
      EXPECT_EQ(unit.stages, std::vector<int>(stages.begin(), stages.end()));
      if (stages.size() == 1) continue;
      EXPECT_EQ(unit.stages, (std::vector<int>{0, 2}));
      EXPECT_EQ(model.params[static_cast<size_t>(unit.tensors.front())].name(), "wte");
      ++tied;
    }
    EXPECT_EQ(tied, 1);
  }
}

/// One rank's weights and states, each element of which has a number of its own.
struct Rank {
  Rank(const layout::Layout& layout, const layout::Coordinate& at)
      : weights(*Weights::create(layout, at, *device)),
        states(*States::create(layout, at, *weights, device->memory())) {}
  std::unique_ptr<Device> device = *make_cpu_device();
  std::unique_ptr<Weights> weights;
  std::unique_ptr<States> states;
};

TEST(StatesTest, RanksOwnEveryElementOnceAndNoTwoTensorsShareMemory) {
  const Model model = small_model();
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    for (const auto& [ranks, stage] : {std::pair{1, 1}, {2, 2}, {2, 3}, {3, 1}, {5, 3}}) {
      const layout::Layout layout = layout_of(model, compute, ranks, stage);
      std::vector<int64_t> owned(model.params.size());
      for (int r = 0; r < ranks; ++r) {
        Rank rank(layout, {.fsdp = r});
        float number = 1;
        const auto each = [&](auto use) {
          number = 1;
          for (int p = 0; p < static_cast<int>(model.params.size()); ++p) {
            for (const std::span<float> part :
                 {rank.states->master(p), rank.states->m(p), rank.states->v(p)}) {
              EXPECT_EQ(static_cast<int64_t>(part.size()), rank.states->owned(p).size());
              for (float& value : part)
                use(value, number++);
            }
          }
        };
        each([](float& value, float wanted) { value = wanted; });
        each([](const float& value, float wanted) { ASSERT_EQ(value, wanted); });
        for (size_t p = 0; p < model.params.size(); ++p)
          owned[p] += rank.states->owned(static_cast<int>(p)).size();
      }
      for (size_t p = 0; p < model.params.size(); ++p)
        EXPECT_EQ(owned[p], model.params[p].elements()) << model.params[p].name();
    }
  }
}

TEST(StatesTest, MastersAreTheWeightsWhereTheseAreFp32) {
  const Model model = small_model();
  const layout::Layout layout = layout_of(model, DType::kBFloat16, 2, 1);
  Rank rank(layout, {.fsdp = 1});
  for (int p = 0; p < static_cast<int>(model.params.size()); ++p) {
    const auto* data = static_cast<std::byte*>(rank.weights->data(p));
    const auto* master = reinterpret_cast<std::byte*>(rank.states->master(p).data());
    if (rank.states->owned(p).size() == 0) continue;
    const bool same = data + 4 * rank.states->owned(p).begin == master;
    EXPECT_EQ(same, rank.weights->dtype(p) == DType::kFloat32) << p;
  }
}

TEST(StatesTest, WhatIsCutIsThereWhileItIsLent) {
  const Model model = small_model();
  const layout::Layout layout = layout_of(model, DType::kBFloat16, 3, 3);
  Rank rank(layout, {.fsdp = 1});
  const int unit = 0;
  const auto own = rank.weights->owned_unit(unit);
  ASSERT_GT(own.size(), 0U);
  std::fill(own.begin(), own.end(), std::byte{7});
  std::vector<std::byte> buffer(static_cast<size_t>(layout.elements(unit)) *
                                static_cast<size_t>(size_of(layout.unit(unit).dtype)));
  EXPECT_DEATH(rank.weights->unit(unit), "");
  rank.weights->lend(unit, buffer);
  const auto begin = layout.shard(unit, {.fsdp = 1}).begin * size_of(layout.unit(unit).dtype);
  EXPECT_EQ(rank.weights->unit(unit).data(), buffer.data());
  EXPECT_EQ(std::count(buffer.begin(), buffer.end(), std::byte{7}), std::ssize(own));
  EXPECT_EQ(buffer[static_cast<size_t>(begin)], std::byte{7}) << "this rank's part is in its place";
  rank.weights->lend(unit, {});
  EXPECT_DEATH(rank.weights->unit(unit), "") << "freed";

  std::vector<int64_t> sums(static_cast<size_t>(layout.elements(unit)));
  EXPECT_DEATH(rank.states->sums(unit), "");
  rank.states->lend(unit, sums.data());
  EXPECT_EQ(rank.states->sums(unit).data(), sums.data());
  rank.states->lend(unit, nullptr);
  EXPECT_DEATH(rank.states->sums(unit), "");
  EXPECT_EQ(std::ssize(rank.states->owned_sums(unit)), layout.shard(unit, {.fsdp = 1}).size());
}

TEST(StatesTest, ARankHasMemoryForTheUnitsOfItsStageAlone) {
  const Model model = small_model();
  int64_t elements = 0;
  for (const ParamSpec& param : model.params)
    elements += (param.elements() + 63) / 64 * 64;
  const int64_t table = (model.params[0].elements() + 63) / 64 * 64;  // wte, on both ends
  for (const int stage : {1, 3}) {
    const layout::Layout layout =
        layout_of(model, DType::kFloat32, {.pp = 3, .fsdp = 2}, stage, {.layer_end = {2, 3, 5}});
    int64_t weights = 0;
    int64_t moments = 0;
    int64_t sums = 0;
    for (int pp = 0; pp < 3; ++pp) {
      for (int fsdp = 0; fsdp < 2; ++fsdp) {
        const Rank rank(layout, {.pp = pp, .fsdp = fsdp});
        weights += rank.weights->bytes();
        moments += rank.states->moment_bytes();
        sums += rank.states->sum_bytes();
        for (int p = 0; p < static_cast<int>(model.params.size()); ++p) {
          const bool held = layout.holds(layout.unit_of(p), {.pp = pp, .fsdp = fsdp});
          EXPECT_TRUE(held || rank.states->master(p).empty());
        }
      }
    }
    const int64_t whole = stage == 1 ? 2 : 1;  // parts, or all of it on each of two ranks
    EXPECT_EQ(weights, whole * 4 * (elements + table));
    EXPECT_EQ(sums, whole * 8 * (elements + table));
    EXPECT_EQ(moments, 8 * (elements + table));
  }
}

}  // namespace
}  // namespace trainyard::engine
