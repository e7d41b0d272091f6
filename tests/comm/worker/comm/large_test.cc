// Many ranks, and more bytes than 32 bits count: both in full in `make test-long`, less elsewhere.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <sys/mman.h>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/unique_fd.h"
#include "tests/comm/worker/comm/reference.h"
#include "tests/comm/worker/comm/world.h"
#include "tests/support/extent.h"

namespace trainyard::comm {
namespace {

using testing::contribution;
using testing::message_of;
using testing::References;
using testing::run_world;
using testing::uneven_counts;

class LargeTest : public ::testing::TestWithParam<TransportKind> {};
INSTANTIATE_TEST_SUITE_P(Transports, LargeTest,
                         ::testing::Values(TransportKind::kShm, TransportKind::kTcp),
                         [](const auto& shape) { return std::string(name_of(shape.param)); });

TEST_P(LargeTest, ManyRanksReduceScatterAndGather) {
  const int ranks = testing_support::runs_everything() ? 32 : 12;
  constexpr int64_t kCount = 20'011;
  References references;
  run_world(GetParam(), ranks, [&](Communicator& c) {
    for (const DType dtype : {DType::kInt64, DType::kFloat32}) {
      const auto counts = uneven_counts(kCount, ranks, 7);
      const auto wanted = references.get(dtype, ReduceOp::kSum, kCount, ranks, 7);
      auto whole = contribution(dtype, kCount, c.rank(), 7);
      auto cut = whole;
      Status status = c.all_reduce(whole, dtype, ReduceOp::kSum)->wait();
      ASSERT_TRUE(status) << message_of(status);
      EXPECT_TRUE(whole == wanted) << name_of(dtype);
      status = c.reduce_scatter(cut, counts, dtype, ReduceOp::kSum)->wait();
      ASSERT_TRUE(status) << message_of(status);
      status = c.all_gather(cut, counts, dtype)->wait();
      ASSERT_TRUE(status) << message_of(status);
      EXPECT_TRUE(cut == wanted) << name_of(dtype);
    }
    const Status status = c.barrier()->wait();
    EXPECT_TRUE(status) << message_of(status);
  });
}

/// `bytes` of address space that show one piece of memory again and again.
class RepeatedMemory {
 public:
  static constexpr size_t kPiece = size_t{16} << 20U;

  explicit RepeatedMemory(size_t bytes) : bytes_((bytes + kPiece - 1) / kPiece * kPiece) {
    const UniqueFd fd(::memfd_create("piece", MFD_CLOEXEC));
    void* const at = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!fd.valid() || ::ftruncate(fd.get(), kPiece) != 0 || at == MAP_FAILED) return;
    at_ = static_cast<std::byte*>(at);
    for (size_t offset = 0; offset < bytes_; offset += kPiece) {
      if (::mmap(at_ + offset, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(),
                 0) == MAP_FAILED) {
        valid_ = false;
      }
    }
  }
  ~RepeatedMemory() {
    if (at_ != nullptr) ::munmap(at_, bytes_);
  }
  RepeatedMemory(const RepeatedMemory&) = delete;
  RepeatedMemory& operator=(const RepeatedMemory&) = delete;

  bool valid() const { return valid_ && at_ != nullptr; }
  std::byte* data() const { return at_; }
  std::span<std::byte> piece() const { return {at_, kPiece}; }

 private:
  size_t bytes_;
  std::byte* at_ = nullptr;
  bool valid_ = true;
};

TEST_P(LargeTest, MoreBytesThan32BitsCountAreGatheredWhole) {
  // Cut to 32 bits, the first count is small, and most of the piece would stay zero.
  const int log2 = testing_support::runs_everything() ? 32 : 26;
  const std::vector<int64_t> counts = {(int64_t{1} << log2) + 4096, 17};
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const auto pattern =
      contribution(DType::kUint8, static_cast<int64_t>(RepeatedMemory::kPiece), 0, 3);
  run_world(GetParam(), 2, [&](Communicator& c) {
    const RepeatedMemory memory(static_cast<size_t>(total));
    ASSERT_TRUE(memory.valid());
    const size_t own = c.rank() == 0 ? 0 : static_cast<size_t>(counts[0]);
    const size_t known = std::min(RepeatedMemory::kPiece,
                                  static_cast<size_t>(counts[static_cast<size_t>(c.rank())]));
    std::memcpy(memory.data() + own, pattern.data() + own % RepeatedMemory::kPiece, known);
    const Status status =
        c.all_gather({memory.data(), static_cast<size_t>(total)}, counts, DType::kUint8)->wait();
    ASSERT_TRUE(status) << message_of(status);
    EXPECT_TRUE(std::ranges::equal(memory.piece(), pattern)) << "rank " << c.rank();
  });
}

}  // namespace
}  // namespace trainyard::comm
