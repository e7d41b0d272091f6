// What a device on an emulated GPU does beside an engine's steps: streams that wait for each other
// by moments, in any order, and sums of other ranks.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <stop_token>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/numeric/cuda_engine/one_rank.h"
#include "worker/device/copy_stream.h"
#include "worker/device/side_stream.h"

namespace trainyard::engine {
namespace {

using testing::small_spec;
using testing::tiny;

constexpr int kSlots = 6;
/// Only a wait that never ends comes to it.
constexpr std::chrono::milliseconds kDeadline{10'000};

/// Streams run in an order that the seed draws.
class CudaStreamsTest : public testing::CudaEngineTest {
 protected:
  using Values = std::array<int32_t, kSlots>;

  /// Under several seeds, on a device with a slot per value, all 0.
  void with_slots(const std::function<void(Device&, int32_t* slots, std::mt19937&)>& use) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(seed);
      simt::emulation_options().seed = seed;
      const auto device = testing::cuda_device(tiny(small_spec(GetParam())), 0, 0, true, kDeadline);
      ASSERT_TRUE(device) << device.error().message;
      const auto block = *(*device)->memory().allocate(sizeof(Values));
      std::mt19937 random(static_cast<uint32_t>(seed));
      use(**device, reinterpret_cast<int32_t*>(block->bytes().data()), random);
      ASSERT_TRUE((*device)->wait());
    }
  }
  static std::vector<int> shuffled(std::mt19937& random) {
    std::vector<int> order(kSlots);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    return order;
  }
  static cudaStream_t stream_of(const SideStream& side) {
    return static_cast<cudaStream_t>(side.handle());
  }
  static void write(Device& device, int32_t* slot, int32_t value) {
    device.copy({reinterpret_cast<std::byte*>(slot), reinterpret_cast<const std::byte*>(&value),
                 sizeof(value)});
  }
};
INSTANTIATE_TEST_SUITE_P(Precision, CudaStreamsTest, ::testing::Values(api::NumberFormat::kBF16));

TEST_P(CudaStreamsTest, ACopyStreamWaitsForMomentsInAnyOrder) {
  with_slots([](Device& device, int32_t* slots, std::mt19937& random) {
    const auto copies = *device.copy_stream();
    const auto host = *device.host_memory().allocate(sizeof(Values));
    const auto* const found = reinterpret_cast<const int32_t*>(host->bytes().data());
    std::vector<std::unique_ptr<CopyStream::Moment>> moments;
    for (int i = 0; i < kSlots; ++i) {
      write(device, slots + i, i + 1);
      moments.push_back(*copies->now());
    }
    for (const int i : shuffled(random)) {
      ASSERT_TRUE(copies->after(*moments[static_cast<size_t>(i)]));
      const auto bytes = static_cast<size_t>(i + 1) * sizeof(int32_t);
      const CopyRange range{host->bytes().data(), reinterpret_cast<const std::byte*>(slots), bytes};
      ASSERT_TRUE(copies->copy(std::span(&range, 1), {}));
      for (int before = 0; before <= i; ++before)
        EXPECT_EQ(found[before], before + 1) << "after moment " << i;
    }
  });
}

/// Work that is held up holds up the moments behind it alone.
TEST_P(CudaStreamsTest, ACopyStreamDoesNotWaitForWhatComesAfterAMoment) {
  with_slots([](Device& device, int32_t* slots, std::mt19937& /*random*/) {
    const auto copies = *device.copy_stream();
    const auto side = *device.side_stream();
    const auto host = *device.host_memory().allocate(sizeof(Values));
    const auto* const found = reinterpret_cast<const int32_t*>(host->bytes().data());
    const CopyRange range{host->bytes().data(), reinterpret_cast<const std::byte*>(slots),
                          sizeof(int32_t)};
    const CopyRange next{host->bytes().data() + sizeof(int32_t),
                         reinterpret_cast<const std::byte*>(slots + 1), sizeof(int32_t)};
    const auto gate = simt::make_gate();
    ASSERT_EQ(simt::enqueue_work(
                  stream_of(*side), "the test", [] {}, gate),
              cudaSuccess);
    const auto opened = *side->now();
    write(device, slots, 1);
    const auto before = *copies->now();
    ASSERT_TRUE(side->device_after(*opened));
    write(device, slots + 1, 2);
    const auto after = *copies->now();
    ASSERT_TRUE(copies->after(*before));
    ASSERT_TRUE(copies->copy(std::span(&range, 1), {}));
    EXPECT_EQ(found[0], 1);

    std::stop_source stopped;
    stopped.request_stop();
    ASSERT_TRUE(copies->after(*after));
    ASSERT_TRUE(copies->after(*before)) << "has passed already, and changes nothing";
    for (int poll = 0; poll < 20; ++poll)
      EXPECT_FALSE(copies->copy(poll == 0 ? std::span(&next, 1) : std::span<const CopyRange>(),
                                stopped.get_token()));
    EXPECT_EQ(found[1], 0);
    simt::open_gate(*gate);
    ASSERT_TRUE(copies->copy({}, {}));
    EXPECT_EQ(found[1], 2);
  });
}

TEST_P(CudaStreamsTest, ASideStreamWaitsForMomentsInAnyOrder) {
  with_slots([](Device& device, int32_t* slots, std::mt19937& random) {
    const auto side = *device.side_stream();
    const auto host = *device.host_memory().allocate(sizeof(Values));
    auto* const found = reinterpret_cast<int32_t*>(host->bytes().data());
    ASSERT_TRUE(side->enter());
    std::vector<SideStream::MomentPtr> moments;
    for (int i = 0; i < kSlots; ++i) {
      write(device, slots + i, i + 1);
      moments.push_back(*side->device_now());
    }
    for (const int i : shuffled(random)) {
      ASSERT_TRUE(side->after(*moments[static_cast<size_t>(i)]));
      ASSERT_EQ(cudaMemcpyAsync(found + i, slots + i, sizeof(int32_t), cudaMemcpyDefault,
                                stream_of(*side)),
                cudaSuccess);
    }
    ASSERT_TRUE(side->device_after(**side->now()));
    ASSERT_TRUE(device.wait());
    for (int i = 0; i < kSlots; ++i)
      EXPECT_EQ(found[i], i + 1);
  });
}

TEST_P(CudaStreamsTest, ADeviceWaitsForMomentsOfASideStreamInAnyOrder) {
  with_slots([](Device& device, int32_t* slots, std::mt19937& random) {
    const auto side = *device.side_stream();
    ASSERT_TRUE(side->enter());
    ASSERT_TRUE(side->after(**side->device_now()));  // slots are clear
    std::vector<SideStream::MomentPtr> moments;
    for (int i = 0; i < kSlots; ++i) {
      ASSERT_EQ(cudaMemsetAsync(slots + i, i + 1, sizeof(int32_t), stream_of(*side)), cudaSuccess);
      moments.push_back(*side->now());
    }
    Values found{};
    for (const int i : shuffled(random)) {
      ASSERT_TRUE(side->device_after(*moments[static_cast<size_t>(i)]));
      device.copy({reinterpret_cast<std::byte*>(&found[static_cast<size_t>(i)]),
                   reinterpret_cast<const std::byte*>(slots + i), sizeof(int32_t)});
    }
    ASSERT_TRUE(device.wait());
    for (int i = 0; i < kSlots; ++i)
      EXPECT_EQ(found[static_cast<size_t>(i)], 0x01010101 * (i + 1));
    for (const int i : shuffled(random))
      EXPECT_TRUE(*moments[static_cast<size_t>(i)]->passed()) << i;
  });
}

/// The later moment is asked for and waited for first.
TEST_P(CudaStreamsTest, AMomentPassesOnceWhatComesBeforeItIsDone) {
  with_slots([](Device& device, int32_t* slots, std::mt19937& /*random*/) {
    const auto side = *device.side_stream();
    ASSERT_TRUE(side->enter());
    const auto before = *side->now();
    const auto gate = simt::make_gate();
    ASSERT_EQ(simt::enqueue_work(
                  stream_of(*side), "the test", [] {}, gate),
              cudaSuccess);
    const auto after = *side->now();
    const auto passes = [](const SideStream::Moment& moment) {
      bool has_passed = false;
      for (int poll = 0; poll < 1000 && !has_passed; ++poll)
        has_passed = *moment.passed();
      return has_passed;
    };
    EXPECT_FALSE(*after->passed());
    EXPECT_TRUE(passes(*before)) << "nothing comes before it";
    EXPECT_FALSE(*after->passed());

    ASSERT_TRUE(side->device_after(*before));
    write(device, slots, 1);
    const auto written = *side->device_now();
    ASSERT_TRUE(side->device_after(*after));
    write(device, slots, 2);
    const auto written_again = *side->device_now();
    EXPECT_FALSE(*written_again->passed());
    EXPECT_TRUE(passes(*written));
    EXPECT_FALSE(device.wait(std::chrono::milliseconds(0)));
    EXPECT_FALSE(*written_again->passed());
    simt::open_gate(*gate);
    EXPECT_TRUE(passes(*written_again));
    EXPECT_TRUE(*after->passed());
    EXPECT_TRUE(*written->passed());
    int32_t found = 0;
    device.copy({reinterpret_cast<std::byte*>(&found), reinterpret_cast<const std::byte*>(slots),
                 sizeof(found)});
    ASSERT_TRUE(device.wait());
    EXPECT_EQ(found, 2);
  });
}

/// Adds sums of a type, and puts them in place. The element behind the last stays as it is.
template <typename T>
void expect_sums(Device& device, DType type) {
  std::mt19937_64 random(7);
  for (const int64_t count : {1, 7, 255, 257, 1023}) {
    const size_t bytes = static_cast<size_t>(count + 1) * sizeof(T);
    const auto block = *device.memory().allocate(2 * static_cast<int64_t>(bytes));
    std::byte* const x_on_gpu = block->bytes().data();
    std::byte* const sums_on_gpu = x_on_gpu + bytes;
    std::vector<T> x(static_cast<size_t>(count + 1));
    std::vector<T> sums(x.size());
    for (std::vector<T>* const values : {&x, &sums}) {
      for (T& value : *values)
        value = static_cast<T>(static_cast<double>(static_cast<int64_t>(random()) >> 2) * 0.37);
    }
    device.copy({x_on_gpu, reinterpret_cast<const std::byte*>(x.data()), bytes});
    for (const bool overwrite : {false, true}) {
      device.copy({sums_on_gpu, reinterpret_cast<const std::byte*>(sums.data()), bytes});
      device.kernels().accumulate({x_on_gpu, type}, {sums_on_gpu, type}, count, overwrite);
      std::vector<T> found(x.size());
      device.copy({reinterpret_cast<std::byte*>(found.data()), sums_on_gpu, bytes});
      ASSERT_TRUE(device.wait());
      std::vector<T> expected = sums;
      for (size_t i = 0; i < static_cast<size_t>(count); ++i)
        expected[i] = overwrite ? x[i] : sums[i] + x[i];
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), bytes), 0)
          << count << (overwrite ? " put" : " added");
    }
  }
}

TEST_P(CudaStreamsTest, SumsOfOtherRanksAreAddedToTheBit) {
  simt::emulation_options().seed = 5;
  with_device(tiny(small_spec(GetParam())), [](Device& device) {
    expect_sums<float>(device, DType::kFloat32);
    expect_sums<int64_t>(device, DType::kInt64);
  });
}

}  // namespace
}  // namespace trainyard::engine
