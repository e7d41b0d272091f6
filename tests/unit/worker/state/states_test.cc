#include "worker/state/states.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "worker/model/gpt2.h"

namespace trainyard::engine {
namespace {

Model small_model() {
  return build_gpt2(
             {.layers = 3, .hidden = 66, .heads = 3, .ffn = 101, .vocab = 67, .max_positions = 31})
      .value();
}

std::vector<layout::TensorSpec> tensors_of(const Model& model) {
  std::vector<layout::TensorSpec> tensors;
  for (const ParamSpec& param : model.params)
    tensors.push_back(param.tensor);
  return tensors;
}

TEST(UnitsTest, AreInTheOrderInWhichBackwardCompletesThem) {
  const Model model = small_model();
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t bytes : {1, 64 << 10, 1 << 30}) {
      const Units units = make_units(model, compute, bytes);
      std::vector<int> lowest;
      for (const std::vector<int>& layers : units.layers)
        lowest.push_back(layers.front());
      EXPECT_TRUE(std::is_sorted(lowest.rbegin(), lowest.rend()));
      std::multiset<int> seen;
      for (size_t unit = 0; unit < units.params.size(); ++unit) {
        for (const int param : units.params[unit]) {
          seen.insert(param);
          const ParamSpec& spec = model.params[static_cast<size_t>(param)];
          const bool vector = spec.tensor.shape.size() == 1;
          EXPECT_EQ(units.dtype[unit], vector ? DType::kFloat32 : compute) << spec.name();
          EXPECT_TRUE(spec.tie_group.empty() || units.params[unit].size() == 1);
          for (size_t l = 0; l < model.layers.size(); ++l) {
            for (const Node& node : model.layers[l].nodes) {
              const bool uses = std::count(node.params.begin(), node.params.end(), param) > 0;
              const std::vector<int>& layers = units.layers[unit];
              const auto named = std::count(layers.begin(), layers.end(), static_cast<int>(l));
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

/// One rank's weights and states, each element of which has a number of its own.
struct Rank {
  Rank(const layout::Layout& layout, const Units& units, int rank)
      : weights(*Weights::create(layout, rank, units, memory)),
        states(*States::create(layout, rank, *weights, memory)) {}
  HeapMemorySource memory;
  std::unique_ptr<Weights> weights;
  std::unique_ptr<States> states;
};

TEST(StatesTest, RanksOwnEveryElementOnceAndNoTwoTensorsShareMemory) {
  const Model model = small_model();
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    const Units units = make_units(model, compute, 64 << 10);
    for (const auto& [ranks, stage] : {std::pair{1, 1}, {2, 2}, {2, 3}, {3, 1}, {5, 3}}) {
      const auto layout =
          layout::Layout::make(tensors_of(model), units.params, {.fsdp = ranks}, stage);
      ASSERT_TRUE(layout) << layout.error().message;
      std::vector<int64_t> owned(model.params.size());
      for (int r = 0; r < ranks; ++r) {
        Rank rank(*layout, units, r);
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
  const Units units = make_units(model, DType::kBFloat16, 64 << 10);
  const auto layout = layout::Layout::make(tensors_of(model), units.params, {.fsdp = 2}, 1);
  ASSERT_TRUE(layout) << layout.error().message;
  Rank rank(*layout, units, 1);
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
  const Units units = make_units(model, DType::kBFloat16, 64 << 10);
  const auto layout = layout::Layout::make(tensors_of(model), units.params, {.fsdp = 3}, 3);
  ASSERT_TRUE(layout) << layout.error().message;
  Rank rank(*layout, units, 1);
  const int unit = 0;
  const auto own = rank.weights->owned_unit(unit);
  ASSERT_GT(own.size(), 0U);
  std::fill(own.begin(), own.end(), std::byte{7});
  std::vector<std::byte> buffer(static_cast<size_t>(layout->elements(unit)) *
                                static_cast<size_t>(size_of(rank.weights->unit_dtype(unit))));
  EXPECT_DEATH(rank.weights->unit(unit), "");
  rank.weights->lend(unit, buffer);
  const auto begin = layout->shard(unit, 1).begin * size_of(rank.weights->unit_dtype(unit));
  EXPECT_EQ(rank.weights->unit(unit).data(), buffer.data());
  EXPECT_EQ(std::count(buffer.begin(), buffer.end(), std::byte{7}), std::ssize(own));
  EXPECT_EQ(buffer[static_cast<size_t>(begin)], std::byte{7}) << "this rank's part is in its place";
  rank.weights->lend(unit, {});
  EXPECT_DEATH(rank.weights->unit(unit), "") << "freed";

  std::vector<int64_t> sums(static_cast<size_t>(layout->elements(unit)));
  EXPECT_DEATH(rank.states->sums(unit), "");
  rank.states->lend(unit, sums.data());
  EXPECT_EQ(rank.states->sums(unit).data(), sums.data());
  rank.states->lend(unit, nullptr);
  EXPECT_DEATH(rank.states->sums(unit), "");
  EXPECT_EQ(std::ssize(rank.states->owned_sums(unit)), layout->shard(unit, 1).size());
}

}  // namespace
}  // namespace trainyard::engine
