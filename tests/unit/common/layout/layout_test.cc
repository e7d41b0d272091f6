#include "common/layout/layout.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "common/layout/mesh.h"

namespace trainyard::layout {
namespace {

TEST(MeshTest, RankAndCoordinateAreInverse) {
  const Mesh mesh{.pp = 2, .dp = 3, .fsdp = 2, .cp = 2, .tp = 4};
  for (int rank = 0; rank < mesh.size(); ++rank) {
    EXPECT_EQ(rank_of(mesh, coordinate_of(mesh, rank)), rank);
  }
  EXPECT_EQ(coordinate_of(mesh, 1).tp, 1) << "tp varies fastest";
}

TEST(MeshTest, RefusesProductsThatDoNotDivide) {
  const auto mesh = mesh_of({.tensor = 2, .pipeline = 2}, 6);
  ASSERT_FALSE(mesh);
  EXPECT_EQ(mesh.error().code, ErrorCode::kInvalidConfig);
  EXPECT_EQ(mesh.error().message,
            "engine.parallelism: found tensor 2 x pipeline 2 x context 1 = 4, wanted a divisor of "
            "the 6 ranks");
}

TEST(MeshTest, SharesAmongTheLargestDivisorUpToShard) {
  const api::ParallelMode one = api::ParallelMode::kDataParallel;
  const struct {
    api::ParallelismSpec parallelism;
    int world;
    Mesh mesh;
  } cases[] = {
      {{}, 1, {}},
      {{}, 6, {.fsdp = 6}},
      {{.zero_stage = 3}, 6, {.fsdp = 6}},
      {{.zero_stage = 0}, 6, {.dp = 6}},
      {{.mode = one, .zero_stage = 0}, 6, {.fsdp = 6}},
      {{.shard = 2}, 6, {.dp = 3, .fsdp = 2}},
      {{.shard = 4}, 8, {.dp = 2, .fsdp = 4}},
      {{.shard = 4}, 6, {.dp = 2, .fsdp = 3}},
      {{.shard = 4}, 5, {.dp = 5}},
      {{.shard = 4}, 3, {.fsdp = 3}},
      {{.shard = 1}, 4, {.dp = 4}},
      {{.tensor = 2, .pipeline = 2, .context = 3, .shard = 2}, 24, {2, 1, 2, 3, 2}},
      {{.tensor = 2, .sequence_parallel = true}, 4, {.fsdp = 2, .tp = 2, .slices = true}},
      {{.sequence_parallel = true}, 4, {.fsdp = 4}},
  };
  for (const auto& it : cases) {
    const auto mesh = mesh_of(it.parallelism, it.world);
    ASSERT_TRUE(mesh) << mesh.error().message;
    EXPECT_EQ(*mesh, it.mesh) << "shard " << it.parallelism.shard << " of " << it.world;
  }
}

TEST(MeshTest, DescribesTheAxesAndWhatWasAskedFor) {
  const struct {
    api::ParallelismSpec parallelism;
    int world;
    const char* text;
  } cases[] = {
      {{}, 1, "1 rank"},
      {{}, 4, "shard 4, ZeRO-1"},
      {{.zero_stage = 0}, 4, "dp 4, ZeRO-0"},
      {{.mode = api::ParallelMode::kDataParallel, .zero_stage = 0}, 4, "dp 4, DataParallel"},
      {{.shard = 2, .zero_stage = 3}, 4, "dp 2 x shard 2, ZeRO-3"},
      {{.shard = 4, .zero_stage = 2}, 6, "dp 2 x shard 3 (4 asked for), ZeRO-2"},
      {{.shard = 4}, 5, "dp 5 x shard 1 (4 asked for), ZeRO-1"},
      {{.shard = 4}, 1, "shard 1 (4 asked for), ZeRO-1"},
      {{.tensor = 2, .pipeline = 2}, 8, "pp 2 x shard 2 x tp 2, ZeRO-1"},
      {{.tensor = 2, .sequence_parallel = true}, 4, "shard 2 x tp 2 (sequence parallel), ZeRO-1"},
      {{.context = 3, .context_mode = api::ContextMode::kRing}, 6, "shard 2 x cp 3 (ring), ZeRO-1"},
  };
  for (const auto& it : cases)
    EXPECT_EQ(describe(it.parallelism, *mesh_of(it.parallelism, it.world)), it.text);
}

TEST(EvenShareTest, PartsAreDisjointCoveringAndBalanced) {
  for (int64_t total = 0; total < 40; ++total) {
    for (int64_t parts = 1; parts < 12; ++parts) {
      int64_t end = 0;
      for (int64_t i = 0; i < parts; ++i) {
        const Range share = even_share(total, parts, i);
        EXPECT_EQ(share.begin, end);
        end = share.end;
        EXPECT_LE(share.size(), total / parts + 1);
        EXPECT_GE(share.size(), total / parts);
      }
      EXPECT_EQ(end, total);
    }
  }
}

/// How many ranks hold each element of a matrix or vector, by element.
std::vector<int> holders_of(const TensorSpec& tensor,
                            const std::vector<std::vector<Rectangle>>& by_rank) {
  // A vector is a matrix of one column.
  const auto second = [](const std::vector<int64_t>& values, int64_t of_a_vector) {
    return values.size() > 1 ? values[1] : of_a_vector;
  };
  const int64_t columns = second(tensor.shape, 1);
  std::vector<int> holders(static_cast<size_t>(tensor.shape[0] * columns), 0);
  for (const auto& slices : by_rank) {
    for (const Rectangle& slice : slices) {
      for (int64_t r = 0; r < slice.shape[0]; ++r) {
        for (int64_t c = 0; c < second(slice.shape, 1); ++c)
          ++holders[static_cast<size_t>((slice.offset[0] + r) * columns + second(slice.offset, 0) +
                                        c)];
      }
    }
  }
  return holders;
}

TEST(RectanglesTest, AreTheRangeInOrderAndEachContiguous) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{12}, {4, 3}, {3, 1}, {1, 5}, {2, 3, 4}}) {
    int64_t total = 1;
    for (const int64_t size : shape)
      total *= size;
    for (int64_t begin = 0; begin <= total; ++begin) {
      for (int64_t end = begin; end <= total; ++end) {
        int64_t next = begin;
        const std::vector<Rectangle> found = rectangles(shape, {begin, end});
        EXPECT_LE(found.size(), 2 * shape.size() - 1);
        for (const Rectangle& slice : found) {
          // Its elements in row-major order.
          for (int64_t i = 0; i < slice.elements(); ++i, ++next) {
            int64_t rest = i;
            int64_t element = 0;
            int64_t stride = 1;
            for (size_t axis = shape.size(); axis-- > 0;) {
              element += (slice.offset[axis] + rest % slice.shape[axis]) * stride;
              rest /= slice.shape[axis];
              stride *= shape[axis];
            }
            ASSERT_EQ(element, next) << begin << " to " << end;
          }
        }
        EXPECT_EQ(next, end);
      }
    }
  }
}

Result<Layout> small_layout(int ranks) {
  return Layout::make({{.name = "a", .shape = {70, 3}},
                       {.name = "b", .shape = {5}},
                       {.name = "c", .shape = {33, 9}},
                       {.name = "d", .shape = {1, 2}}},
                      {{.tensors = {2, 1}}, {.tensors = {3}}, {.tensors = {0}}}, {.fsdp = ranks},
                      1);
}

TEST(LayoutTest, PartsOfAUnitAreEqualAndBeginAtMultiplesOf64) {
  for (int ranks = 1; ranks <= 7; ++ranks) {
    const auto layout = small_layout(ranks);
    ASSERT_TRUE(layout) << layout.error().message;
    EXPECT_EQ(layout->elements(0), 320 + 64);
    EXPECT_EQ(layout->place(1), (Range{320, 325}));
    EXPECT_EQ(layout->elements(2), 256);
    for (int unit = 0; unit < layout->units(); ++unit) {
      const int64_t elements = layout->elements(unit);
      const int64_t blocks = elements / 64;
      const int64_t part = 64 * ((blocks + ranks - 1) / ranks);
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range shard = layout->shard(unit, {.fsdp = rank});
        EXPECT_EQ(shard.begin, next);
        EXPECT_EQ(shard.begin % kTensorAlignment, 0);
        EXPECT_EQ(layout->part_sizes(unit)[static_cast<size_t>(rank)], shard.size());
        EXPECT_EQ(shard.size(), std::clamp<int64_t>(elements - rank * part, 0, part))
            << "rank " << rank << " of " << ranks;
        next = shard.end;
      }
      EXPECT_EQ(next, layout->elements(unit));
    }
  }
}

TEST(LayoutTest, EveryElementHasOneOwner) {
  for (int ranks = 1; ranks <= 7; ++ranks) {
    const auto layout = small_layout(ranks);
    ASSERT_TRUE(layout) << layout.error().message;
    for (const auto& [tensor, shape] :
         {std::pair{0, std::pair{70, 3}}, std::pair{2, std::pair{33, 9}}}) {
      const TensorSpec spec{.shape = {shape.first, shape.second}};
      std::vector<std::vector<Rectangle>> by_rank;
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        by_rank.push_back(layout->owned_slices(tensor, {.fsdp = rank}));
        const Range owned = layout->owned(tensor, {.fsdp = rank});
        EXPECT_EQ(owned.begin, owned.size() > 0 ? next : owned.begin);
        next += owned.size();
      }
      EXPECT_EQ(next, layout->place(tensor).size());
      for (const int count : holders_of(spec, by_rank))
        ASSERT_EQ(count, 1);
    }
  }
}

TEST(LayoutTest, CopiesShareOutWhatIsStored) {
  const Mesh mesh{.dp = 3, .fsdp = 2};
  const auto layout =
      Layout::make({{.name = "a", .shape = {70, 3}}, {.name = "b", .shape = {1, 2}}},
                   {{.tensors = {0, 1}}}, mesh, 1);
  ASSERT_TRUE(layout) << layout.error().message;
  for (const auto& [tensor, shape] : {std::pair{0, std::vector<int64_t>{70, 3}}, {1, {1, 2}}}) {
    std::vector<std::vector<Rectangle>> by_rank;
    for (int rank = 0; rank < mesh.size(); ++rank)
      by_rank.push_back(layout->stored_slices(tensor, coordinate_of(mesh, rank)));
    for (const int count : holders_of({.shape = shape}, by_rank))
      ASSERT_EQ(count, 1);
  }
  EXPECT_TRUE(layout->counts(0, {.dp = 0, .fsdp = 1}));
  EXPECT_FALSE(layout->counts(0, {.dp = 1, .fsdp = 0})) << "of copies one counts";
}

// Three stages: a table that the first and the last use, and a unit for each of them.
class StagesTest : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  StagesTest()
      : mesh_{.pp = 3, .dp = std::get<0>(GetParam()), .fsdp = std::get<1>(GetParam())},
        layout_(*Layout::make({{.name = "table", .shape = {70, 3}},
                               {.name = "a", .shape = {64, 9}},
                               {.name = "b", .shape = {5}},
                               {.name = "c", .shape = {1, 2}}},
                              {{.tensors = {3}, .stages = {2}},
                               {.tensors = {1}, .stages = {1}},
                               {.tensors = {0}, .stages = {0, 2}},
                               {.tensors = {2}, .stages = {0}}},
                              mesh_, 1)) {}
  static constexpr int kTableUnit = 2;
  Mesh mesh_;
  Layout layout_;
};

TEST_P(StagesTest, ARankHoldsTheUnitsOfItsStage) {
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    const Coordinate at = coordinate_of(mesh_, rank);
    EXPECT_EQ(layout_.holds(0, at), at.pp == 2);
    EXPECT_EQ(layout_.holds(1, at), at.pp == 1);
    EXPECT_EQ(layout_.holds(kTableUnit, at), at.pp != 1);
    for (int unit = 0; unit < layout_.units(); ++unit) {
      const bool held = layout_.holds(unit, at);
      EXPECT_EQ(layout_.elements(unit, at), held ? layout_.elements(unit) : 0);
      EXPECT_EQ(layout_.shard(unit, at).size(),
                held ? layout_.part_sizes(unit)[static_cast<size_t>(at.fsdp)] : 0);
    }
  }
}

TEST_P(StagesTest, CopiesOfATiedTableAreThoseOfBothItsStages) {
  for (int unit = 0; unit < layout_.units(); ++unit) {
    for (int fsdp = 0; fsdp < mesh_.fsdp; ++fsdp) {
      std::vector<int> counting;
      int next = 0;  // world ranks in ascending order are the members of their group
      for (int rank = 0; rank < mesh_.size(); ++rank) {
        const Coordinate at = coordinate_of(mesh_, rank);
        if (at.fsdp != fsdp || !layout_.holds(unit, at)) continue;
        EXPECT_EQ(layout_.copies(unit, at),
                  (Copies{.count = unit == kTableUnit ? 2 * mesh_.dp : mesh_.dp, .index = next++}));
        if (layout_.counts(unit, at)) counting.push_back(rank);
      }
      EXPECT_EQ(counting.size(), 1U) << "hashed once";
    }
  }
}

TEST_P(StagesTest, EachOwnedElementIsRoundedByOneOfItsCopies) {
  for (int unit = 0; unit < layout_.units(); ++unit) {
    for (int fsdp = 0; fsdp < mesh_.fsdp; ++fsdp) {
      int64_t next = -1;  // world ranks in ascending order are the members of their group
      for (int rank = 0; rank < mesh_.size(); ++rank) {
        const Coordinate at = coordinate_of(mesh_, rank);
        if (at.fsdp != fsdp || !layout_.holds(unit, at)) continue;
        const Range part = layout_.shard(unit, at);
        const Range share = layout_.rounded_part(unit, at);
        const Copies copies = layout_.copies(unit, at);
        EXPECT_EQ(share.begin, next < 0 ? part.begin : next);
        EXPECT_EQ(layout_.rounded_sizes(unit, at)[static_cast<size_t>(copies.index)], share.size());
        EXPECT_EQ(std::ssize(layout_.rounded_sizes(unit, at)), copies.count);
        EXPECT_TRUE(copies.count == 1 || 2 * share.size() <= part.size());
        next = share.end;
        if (copies.index + 1 == copies.count) {
          EXPECT_EQ(share.end, part.end);
        }
        for (const int tensor : layout_.unit(unit).tensors) {
          const int64_t begin = layout_.place(tensor).begin;
          const Range owned = layout_.owned(tensor, at);
          const Range rounded = layout_.rounded(tensor, at);
          if (rounded.size() == 0) continue;
          EXPECT_EQ(begin + rounded.begin, std::max(begin + owned.begin, share.begin));
          EXPECT_EQ(begin + rounded.end, std::min(begin + owned.end, share.end));
        }
      }
    }
  }
}

TEST_P(StagesTest, EveryElementIsStoredOnceAndHasOneOwnerThatCounts) {
  for (const auto& [tensor, shape] :
       {std::pair{0, std::vector<int64_t>{70, 3}}, {1, {64, 9}}, {2, {5}}, {3, {1, 2}}}) {
    std::vector<std::vector<Rectangle>> stored;
    for (int rank = 0; rank < mesh_.size(); ++rank)
      stored.push_back(layout_.stored_slices(tensor, coordinate_of(mesh_, rank)));
    for (const int count : holders_of({.shape = shape}, stored))
      ASSERT_EQ(count, 1);
    int64_t owned = 0;
    for (const auto& [rank, slices] : layout_.owners(tensor)) {
      const Coordinate at = coordinate_of(mesh_, rank);
      EXPECT_TRUE(layout_.counts(layout_.unit_of(tensor), at));
      EXPECT_EQ(slices, layout_.owned_slices(tensor, at));
      EXPECT_EQ(layout_.owned(tensor, at).begin, owned);
      EXPECT_GT(layout_.owned(tensor, at).size(), 0);
      owned = layout_.owned(tensor, at).end;
    }
    EXPECT_EQ(owned, layout_.place(tensor).size());
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, StagesTest,
                         testing::Combine(testing::Values(1, 2), testing::Values(1, 2, 4)));

// Context ranks add to parts of every gradient: they hold copies, beside those of data ranks, and
// no rank rounds, stores or counts what another one does.
TEST(LayoutTest, ContextRanksHoldCopies) {
  const Mesh mesh{.pp = 2, .dp = 2, .fsdp = 2, .cp = 3};
  const Layout layout =
      *Layout::make({{.name = "a", .shape = {70, 9}}, {.name = "tied", .shape = {41, 9}}},
                    {{.tensors = {0}, .stages = {1}}, {.tensors = {1}, .stages = {0, 1}}}, mesh, 3);
  for (const int unit : {0, 1}) {
    const int64_t elements = layout.place(unit).size();
    std::vector<std::vector<Rectangle>> stored;
    std::vector<int> rounded(static_cast<size_t>(elements), 0);
    int counting = 0;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const Coordinate at = coordinate_of(mesh, rank);
      stored.push_back(layout.stored_slices(unit, at));
      if (!layout.holds(unit, at)) continue;
      const int of_stage = at.dp * 3 + at.cp;
      EXPECT_EQ(layout.copies(unit, at),
                (Copies{.count = unit == 0 ? 6 : 12,
                        .index = unit == 0 ? of_stage : at.pp * 6 + of_stage}));
      const std::vector<int64_t> sizes = layout.rounded_sizes(unit, at);
      EXPECT_EQ(sizes.at(static_cast<size_t>(layout.copies(unit, at).index)),
                layout.rounded_part(unit, at).size());
      const Range own = layout.rounded(unit, at);
      for (int64_t element = own.begin; element < own.end; ++element)
        ++rounded[static_cast<size_t>(element)];
      counting += layout.counts(unit, at) ? 1 : 0;
    }
    EXPECT_EQ(counting, mesh.fsdp);
    EXPECT_EQ(rounded, std::vector<int>(static_cast<size_t>(elements), 1));
    for (const int count : holders_of(layout.tensor(unit), stored))
      ASSERT_EQ(count, 1);
  }
  const Layout copies =
      *Layout::make({{.name = "a", .shape = {70, 9}}}, {{.tensors = {0}}}, {.cp = 2}, 1);
  EXPECT_FALSE(copies.sharding().parts) << "the shard axis has one rank beside copies";
}

// Rows of three segments, columns of one, and a vector that every tensor rank has.
class TensorCutTest : public testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  TensorCutTest()
      : mesh_{.dp = std::get<0>(GetParam()),
              .fsdp = std::get<1>(GetParam()),
              .tp = std::get<2>(GetParam())} {
    const Layout first =
        *Layout::make({{.name = "rows", .shape = {21, 9}, .cut = {.segments = {12, 5, 4}}},
                       {.name = "columns", .shape = {7, 13}, .cut = {.axis = 1, .segments = {13}}},
                       {.name = "whole", .shape = {70}}},
                      {{.tensors = {0, 2}}, {.tensors = {1}}}, mesh_, 1);
    for (int tp = 0; tp < mesh_.tp; ++tp)
      by_tensor_rank_.push_back(first.at_tensor_rank(tp));
  }
  const Layout& layout_of(const Coordinate& at) const {
    return by_tensor_rank_[static_cast<size_t>(at.tp)];
  }
  static constexpr int kTensors = 3;
  Mesh mesh_;
  std::vector<Layout> by_tensor_rank_;
};

TEST_P(TensorCutTest, EveryElementIsStoredOnceAndHasOneOwnerThatCounts) {
  for (int tensor = 0; tensor < kTensors; ++tensor) {
    std::vector<std::vector<Rectangle>> stored;
    std::vector<std::vector<Rectangle>> counting;
    for (int rank = 0; rank < mesh_.size(); ++rank) {
      const Coordinate at = coordinate_of(mesh_, rank);
      stored.push_back(layout_of(at).stored_slices(tensor, at));
    }
    int last = -1;
    for (const Owner& owner : by_tensor_rank_.back().owners(tensor)) {
      EXPECT_GT(owner.rank, last);
      last = owner.rank;
      const Coordinate at = coordinate_of(mesh_, owner.rank);
      EXPECT_FALSE(layout_of(at).repeats(tensor));
      EXPECT_EQ(owner.slices, layout_of(at).owned_slices(tensor, at));
      counting.push_back(owner.slices);
    }
    for (const int count : holders_of(by_tensor_rank_[0].tensor(tensor), stored))
      ASSERT_EQ(count, 1);
    for (const int count : holders_of(by_tensor_rank_[0].tensor(tensor), counting))
      ASSERT_EQ(count, 1);
  }
}

TEST_P(TensorCutTest, ATensorRankHasItsPartOfEachSegment) {
  for (int tp = 0; tp < mesh_.tp; ++tp) {
    const Layout& layout = by_tensor_rank_[static_cast<size_t>(tp)];
    std::vector<Rectangle> wanted;
    int64_t begin = 0;
    for (const int64_t segment : {12, 5, 4}) {
      const Range part = even_share(segment, mesh_.tp, tp);
      if (part.size() > 0)
        wanted.push_back({.offset = {begin + part.begin, 0}, .shape = {part.size(), 9}});
      begin += segment;
    }
    if (mesh_.tp == 1) wanted = {{.offset = {0, 0}, .shape = {21, 9}}};
    EXPECT_EQ(layout.slices(0), wanted);
    const Range columns = even_share(13, mesh_.tp, tp);
    EXPECT_EQ(
        layout.slices(1),
        (std::vector<Rectangle>{{.offset = {0, columns.begin}, .shape = {7, columns.size()}}}));
    EXPECT_EQ(layout.slices(2), (std::vector<Rectangle>{{.offset = {0}, .shape = {70}}}));
    EXPECT_EQ(layout.repeats(2), tp > 0);
    EXPECT_FALSE(layout.repeats(0));
  }
}

// What is summed over tensor ranks has a copy on each of them, and no rank rounds, stores or counts
// what another one does.
TEST_P(TensorCutTest, OfAUnitThatIsSummedOverTensorRanksTheyHaveCopies) {
  const Layout first =
      *Layout::make({{.name = "rows", .shape = {21, 9}, .cut = {.segments = {12, 5, 4}}},
                     {.name = "whole", .shape = {170}}},
                    {{.tensors = {0}}, {.tensors = {1}, .summed_over_tensor = true}}, mesh_, 1);
  std::vector<std::vector<Rectangle>> stored;
  std::vector<int> rounded(170, 0);
  int counting = 0;
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    const Coordinate at = coordinate_of(mesh_, rank);
    const Layout layout = first.at_tensor_rank(at.tp);
    EXPECT_EQ(layout.copies(1, at),
              (Copies{.count = mesh_.dp * mesh_.tp, .index = at.dp * mesh_.tp + at.tp}));
    EXPECT_EQ(layout.copies(0, at), (Copies{.count = mesh_.dp, .index = at.dp}));
    EXPECT_FALSE(layout.repeats(1));
    const Range own = layout.rounded(1, at);
    for (int64_t element = own.begin; element < own.end; ++element)
      ++rounded[static_cast<size_t>(element)];
    std::vector<int64_t> sizes;
    for (int dp = 0; dp < mesh_.dp; ++dp) {
      for (int tp = 0; tp < mesh_.tp; ++tp)
        sizes.push_back(layout.rounded_part(1, {.dp = dp, .fsdp = at.fsdp, .tp = tp}).size());
    }
    EXPECT_EQ(layout.rounded_sizes(1, at), sizes);
    stored.push_back(layout.stored_slices(1, at));
    counting += layout.counts(1, at) ? 1 : 0;
  }
  EXPECT_EQ(counting, mesh_.fsdp);
  EXPECT_EQ(rounded, std::vector<int>(170, 1));
  for (const int count : holders_of(first.tensor(1), stored))
    ASSERT_EQ(count, 1);
  for (const Owner& owner : first.owners(1))
    EXPECT_EQ(coordinate_of(mesh_, owner.rank).tp, 0);
}

INSTANTIATE_TEST_SUITE_P(Meshes, TensorCutTest,
                         testing::Combine(testing::Values(1, 2), testing::Values(1, 3),
                                          testing::Values(1, 2, 4)));

}  // namespace
}  // namespace trainyard::layout
