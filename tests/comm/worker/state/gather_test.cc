#include "worker/state/gather.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "worker/device/cpu_device.h"

namespace trainyard::engine {
namespace {

using comm::Communicator;
using comm::TransportKind;

constexpr int64_t kLarge = (int64_t{4} << 20) * 2 + 100;  // two pieces and a bit

/// Two stages, of which the first and the last use tensor 0; two copies of two parts each.
layout::Layout small_layout(const layout::Mesh& mesh) {
  return layout::Layout::make({{.name = "table", .shape = {70, 3}},
                               {.name = "first", .shape = {kLarge}},
                               {.name = "last", .shape = {5}}},
                              {{.tensors = {2}, .stages = {1}},
                               {.tensors = {1}, .stages = {0}},
                               {.tensors = {0}, .stages = {0, 1}}},
                              mesh, 1)
      .value();
}

TEST(GatherTest, RankZeroReadsEveryTensorInOrderAndCopiesSendNothing) {
  const layout::Mesh mesh{.pp = 2, .dp = 2, .fsdp = 2};
  const layout::Layout layout = small_layout(mesh);
  const std::vector<int64_t> sizes = {210, kLarge, 5};
  comm::testing::run_world(TransportKind::kLocal, mesh.size(), [&](Communicator& world) {
    const layout::Coordinate at = layout::coordinate_of(mesh, world.rank());
    const auto device = *make_cpu_device();
    std::vector<float> buffer;
    for (int tensor = 0; tensor < 3; ++tensor) {
      const layout::Range range = layout.owned(tensor, at);
      std::vector<float> own(static_cast<size_t>(range.size()));
      std::iota(own.begin(), own.end(), static_cast<float>(range.begin));
      int64_t next = 0;
      const Status status = gather_pieces(world, layout, tensor, *device, own, buffer,
                                          [&](std::span<const float> piece) {
                                            EXPECT_LE(piece.size_bytes(), size_t{16} << 20);
                                            for (const float value : piece)
                                              ASSERT_EQ(value, static_cast<float>(next++));
                                          });
      EXPECT_TRUE(status) << status.error().message;
      EXPECT_EQ(next, world.rank() == 0 ? sizes[static_cast<size_t>(tensor)] : 0);
    }
    if (at.dp == 1) {
      EXPECT_EQ(world.counters().operations, 0) << "a copy";
    }
  });
}

TEST(GatherTest, PartsOfTensorRanksArriveInTheOrderOfTheWholeTensor) {
  const layout::Mesh mesh{.dp = 2, .fsdp = 2, .tp = 2};
  constexpr int64_t kRows = (int64_t{2} << 20) / 4 + 7;  // two pieces
  const std::vector<std::vector<int64_t>> shapes = {{kRows, 4}, {kRows, 4}, {9}};
  const layout::Layout first =
      layout::Layout::make(
          {{.name = "rows", .shape = shapes[0], .cut = {.segments = {kRows - 5, 5}}},
           {.name = "columns", .shape = shapes[1], .cut = {.axis = 1, .segments = {4}}},
           {.name = "whole", .shape = shapes[2]}},
          {{.tensors = {0, 1}}, {.tensors = {2}}}, mesh, 1)
          .value();
  comm::testing::run_world(TransportKind::kLocal, mesh.size(), [&](Communicator& world) {
    const layout::Coordinate at = layout::coordinate_of(mesh, world.rank());
    const layout::Layout layout = first.at_tensor_rank(at.tp);
    const auto device = *make_cpu_device();
    std::vector<float> buffer;
    for (int tensor = 0; tensor < 3; ++tensor) {
      const std::vector<int64_t>& shape = shapes[static_cast<size_t>(tensor)];
      const int64_t width = shape.size() > 1 ? shape[1] : 1;
      std::vector<float> own;
      for (const layout::Rectangle& slice : layout.owned_slices(tensor, at)) {
        const int64_t columns = slice.elements() / slice.shape[0];
        for (int64_t i = 0; i < slice.elements(); ++i) {
          const int64_t column = (shape.size() > 1 ? slice.offset[1] : 0) + i % columns;
          own.push_back(static_cast<float>((slice.offset[0] + i / columns) * width + column));
        }
      }
      int64_t next = 0;
      const Status status = gather_pieces(world, layout, tensor, *device, own, buffer,
                                          [&](std::span<const float> piece) {
                                            for (const float value : piece)
                                              ASSERT_EQ(value, static_cast<float>(next++));
                                          });
      EXPECT_TRUE(status) << status.error().message;
      EXPECT_EQ(next, world.rank() == 0 ? shape[0] * width : 0);
    }
  });
}

}  // namespace
}  // namespace trainyard::engine
