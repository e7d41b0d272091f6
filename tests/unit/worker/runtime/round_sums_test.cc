#include "worker/runtime/round_sums.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_kernel_set.h"

namespace trainyard::engine {
namespace {

class RoundSumsTest : public testing::Test {
 protected:
  RoundSumsTest() : kernels_(*kernels::make_cpu_kernel_set(kernels::best_isa(), 2)) {
    const auto bytes = static_cast<size_t>(kernels_->scratch_bytes());
    scratch_.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})));
    kernels_->set_scratch({scratch_.get(), bytes});
  }

  /// Of `elements` sums those of `shard` are rounded in place.
  void expect_images(int64_t elements, layout::Range shard) {
    std::mt19937_64 engine(static_cast<uint64_t>(elements + shard.begin));
    std::vector<int64_t> sums(static_cast<size_t>(elements));
    for (int64_t& sum : sums)
      sum = static_cast<int64_t>(engine()) >> (engine() % 40);
    const std::vector<int64_t> before = sums;
    auto* images = reinterpret_cast<float*>(sums.data());
    constexpr double kScale = 0x1p-20 / 3;
    round_sums(*kernels_, sums, shard, kScale, {images, sums.size()}, staging_);
    for (int64_t i = shard.begin; i < shard.end; ++i) {
      float image;
      std::memcpy(&image, images + i, sizeof(image));
      const auto sum = static_cast<double>(before[static_cast<size_t>(i)]);
      ASSERT_EQ(image, static_cast<float>(sum * kScale))
          << i << " of [" << shard.begin << ", " << shard.end << ")";
    }
    // What comes after the images is another's: sums that are not of the shard stay.
    for (int64_t i = shard.end; i < elements; ++i)
      ASSERT_EQ(sums[static_cast<size_t>(i)], before[static_cast<size_t>(i)]);
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  std::unique_ptr<kernels::KernelSet> kernels_;
  std::unique_ptr<std::byte, Free> scratch_;
  std::vector<float> staging_ = std::vector<float>(kRoundElements);
};

/// How many pieces a shard has, none of whose images may reach its own sums or pass the buffer.
int pieces_of(layout::Range shard) {
  int pieces = 0;
  int64_t at = shard.begin;
  for (; at < shard.end; ++pieces) {
    const RoundedPiece piece = rounded_piece(at, shard.end);
    EXPECT_GT(piece.count, 0);
    const int64_t room = piece.apart ? (8 * at - 4 * at) / 4 : kRoundElements;
    EXPECT_LE(piece.count, room) << "from " << at;
    at += std::max<int64_t>(piece.count, 1);
  }
  EXPECT_EQ(at, shard.end);
  return pieces;
}

// Whether the threads of a kernel would in fact meet depends on their pace: the pieces must not
// let them.
TEST_F(RoundSumsTest, ImagesOfAPieceReachNoneOfItsSums) {
  constexpr int64_t kEnd = 40 * kRoundElements + 7;
  for (const int64_t begin : {int64_t{0}, int64_t{1}, kRoundElements - 1, kRoundElements,
                              kRoundElements + 1, 5 * kRoundElements + 3})
    EXPECT_LE(pieces_of({begin, kEnd}), 8) << "twice as many elements each time";
}

TEST_F(RoundSumsTest, EachSumIsRounded) {
  constexpr int64_t kAtOnce = kRoundElements;
  for (const int64_t elements : {int64_t{0}, int64_t{1}, kAtOnce - 1, kAtOnce, kAtOnce + 1,
                                 2 * kAtOnce, 2 * kAtOnce + 5, 9 * kAtOnce + 17})
    expect_images(elements, {0, elements});
}

TEST_F(RoundSumsTest, AShardInTheMiddleKeepsWhatFollowsIt) {
  constexpr int64_t kAll = 7 * kRoundElements + 3;
  for (const layout::Range shard :
       {layout::Range{1, 40}, layout::Range{100, 3 * kRoundElements},
        layout::Range{kRoundElements - 1, kAll - 9}, layout::Range{kRoundElements, kAll},
        layout::Range{3 * kRoundElements + 1, kAll - 1}, layout::Range{kAll, kAll}})
    expect_images(kAll, shard);
}

}  // namespace
}  // namespace trainyard::engine
