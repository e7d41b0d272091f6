#include "common/layout/layout.h"

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
  const auto mesh = mesh_for_world(6, 4, 1, 1, 1);
  ASSERT_FALSE(mesh);
  EXPECT_EQ(mesh.error().code, ErrorCode::kInvalidConfig);
  EXPECT_NE(mesh.error().message.find("tensor 4"), std::string::npos);
  EXPECT_FALSE(mesh_for_world(6, 1, 1, 1, 4));
  ASSERT_TRUE(mesh_for_world(6, 1, 1, 1, 0));
  EXPECT_EQ(mesh_for_world(6, 1, 1, 1, 0)->fsdp, 6);
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

/// Every element of a 2-D tensor is held by exactly replica_count ranks.
void expect_covering(const TensorSpec& tensor, const Mesh& mesh, Sharding sharding, int64_t block) {
  std::vector<int> holders(static_cast<size_t>(tensor.shape[0] * tensor.shape[1]), 0);
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const auto parts = slices(tensor, mesh, rank, sharding, block);
    ASSERT_TRUE(parts) << parts.error().message;
    for (const Slice& slice : *parts) {
      for (int64_t r = 0; r < slice.shape[0]; ++r) {
        for (int64_t c = 0; c < slice.shape[1]; ++c) {
          ++holders[static_cast<size_t>((slice.offset[0] + r) * tensor.shape[1] + slice.offset[1] +
                                        c)];
        }
      }
    }
  }
  const int expected = replica_count(tensor, mesh, sharding);
  for (const int count : holders)
    ASSERT_EQ(count, expected);
}

TEST(LayoutTest, SlicesCoverEveryTensorWithTheStatedReplicas) {
  const TensorSpec qkv{
      .name = "qkv", .shape = {36, 7}, .tensor_axis = 0, .segments = 3, .chunks = 4};
  const TensorSpec row{.name = "row", .shape = {5, 13}, .tensor_axis = 1, .chunks = 4};
  const TensorSpec replicated{.name = "ln", .shape = {11, 1}};
  const TensorSpec tied{.name = "wte", .shape = {10, 3}, .pipeline_owners = {0, 1}};
  for (const int tp : {1, 2, 4}) {
    for (const int fsdp : {1, 2, 3}) {
      for (const int pp : {1, 2}) {
        const Mesh mesh{.pp = pp, .dp = 2, .fsdp = fsdp, .cp = 1, .tp = tp};
        for (const auto sharding : {Sharding::kReplicated, Sharding::kRows}) {
          for (const TensorSpec& tensor : {qkv, row, replicated, tied}) {
            expect_covering(tensor, mesh, sharding, 2);
          }
        }
      }
    }
  }
}

TEST(LayoutTest, TensorSizeMustDivideTheChunks) {
  const TensorSpec qkv{
      .name = "qkv", .shape = {36, 7}, .tensor_axis = 0, .segments = 3, .chunks = 4};
  const auto parts = slices(qkv, Mesh{.tp = 3}, 0, Sharding::kReplicated);
  ASSERT_FALSE(parts);
  EXPECT_NE(parts.error().message.find("3 must divide the 4 chunks"), std::string::npos);
}

}  // namespace
}  // namespace trainyard::layout
