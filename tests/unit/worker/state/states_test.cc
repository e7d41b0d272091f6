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
  Rank(const layout::Layout& layout, const layout::Coordinate& at, DType sums = DType::kInt64)
      : weights(*Weights::create(layout, at, *device)),
        states(*States::create(layout, at, *weights, device->memory(), Purpose::kTrain, sums)) {}
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

  std::vector<std::byte> sums(static_cast<size_t>(8 * layout.elements(unit)));
  EXPECT_DEATH(rank.states->sums(unit), "");
  rank.states->lend(unit, sums.data());
  EXPECT_EQ(rank.states->sums(unit).data, sums.data());
  EXPECT_EQ(rank.states->sums(unit).bytes().size(), sums.size());
  rank.states->lend(unit, nullptr);
  EXPECT_DEATH(rank.states->sums(unit), "");
  EXPECT_EQ(rank.states->owned_sums(unit).size, layout.shard(unit, {.fsdp = 1}).size());
}

TEST(StatesTest, WhatCopiesRoundLiesApartFromTheSumsOfItsOwnShare) {
  const Model model = small_model();
  for (const int dp : {1, 2, 3, 5}) {
    for (const int pp : {1, 2}) {
      if (dp == 1 && pp == 1) continue;
      const layout::Layout layout = layout_of(
          model, DType::kBFloat16, {.pp = pp, .dp = dp, .fsdp = 2}, 1,
          pp == 1 ? layout::StageMap{.layer_end = {5}} : layout::StageMap{.layer_end = {3, 5}});
      for (int rank = 0; rank < pp * dp * 2; ++rank) {
        const layout::Coordinate at = layout::coordinate_of({.pp = pp, .dp = dp, .fsdp = 2}, rank);
        Rank owner(layout, at);
        for (int unit = 0; unit < layout.units(); ++unit) {
          if (!layout.holds(unit, at) || !layout.has_copies(unit, at)) continue;
          const std::span<std::byte> sums = owner.states->owned_sums(unit).bytes();
          const auto rounded = owner.states->rounded(unit);
          const auto bytes = std::as_bytes(rounded);
          EXPECT_TRUE(bytes.data() >= sums.data() &&
                      bytes.data() + bytes.size() <= sums.data() + sums.size());
          const int64_t first = layout.shard(unit, at).begin;
          const layout::Range share = layout.rounded_part(unit, at);
          const std::byte* const floats = bytes.data() + 4 * (share.begin - first);
          const std::byte* const exact = sums.data() + 8 * (share.begin - first);
          EXPECT_TRUE(floats + 4 * share.size() <= exact || exact + 8 * share.size() <= floats)
              << "unit " << unit << " of rank " << rank << " of " << dp << " x " << pp;
          for (const int param : layout.unit(unit).tensors) {
            const auto of_param = owner.states->rounded_of(param);
            EXPECT_EQ(std::ssize(of_param), layout.owned(param, at).size());
            if (of_param.empty()) continue;
            EXPECT_EQ(of_param.data() - rounded.data(), (owner.states->owned_sums_of(param).data -
                                                         owner.states->owned_sums(unit).data) /
                                                            8);
          }
        }
      }
    }
  }
}

TEST(StatesTest, Fp32SumsTakeHalfTheMemoryAndAreNotRounded) {
  const Model model = small_model();
  for (const int stage : {1, 2}) {
    const layout::Layout layout =
        layout_of(model, DType::kBFloat16, {.dp = 2, .fsdp = 2}, stage, {.layer_end = {5}});
    const layout::Coordinate at = {.dp = stage - 1, .fsdp = 1};
    Rank exact(layout, at);
    Rank fp32(layout, at, DType::kFloat32);
    EXPECT_EQ(2 * fp32.states->sum_bytes(), exact.states->sum_bytes());
    EXPECT_EQ(fp32.states->moment_bytes(), exact.states->moment_bytes());
    for (int unit = 0; unit < layout.units(); ++unit) {
      const SumSpan sums = fp32.states->owned_sums(unit);
      EXPECT_EQ(sums.type, DType::kFloat32);
      EXPECT_EQ(std::ssize(sums.bytes()), 4 * layout.shard(unit, at).size());
      EXPECT_EQ(std::as_bytes(fp32.states->rounded(unit)).data(), sums.data);
      for (const int param : layout.unit(unit).tensors) {
        const kernels::GradientSum of_param = fp32.states->owned_sums_of(param).from(0);
        EXPECT_EQ(of_param.exact, nullptr);
        EXPECT_EQ(of_param.sum, fp32.states->rounded_of(param).data());
      }
    }
  }
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
