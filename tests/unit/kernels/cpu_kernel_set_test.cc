#include "kernels/cpu/cpu_kernel_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::kernels {
namespace {

using testing::HasSubstr;

TEST(CpuKernelSetTest, OffersEveryAvailableInstructionSet) {
  for (const Isa isa : available_isas()) {
    auto set = make_cpu_kernel_set(isa, 2);
    ASSERT_TRUE(set) << set.error().message;
    EXPECT_EQ((*set)->isa(), isa);
    EXPECT_EQ((*set)->threads(), 2);
    EXPECT_GT((*set)->scratch_bytes(), 0);
    EXPECT_EQ((*set)->counters().gemm_flops, 0);
  }
}

TEST(CpuKernelSetTest, TheBestIsTheLastAvailableAndGenericIsAlwaysThere) {
  EXPECT_EQ(available_isas().front(), Isa::kGeneric);
  EXPECT_EQ(available_isas().back(), best_isa());
}

TEST(CpuKernelSetTest, RefusesAnInstructionSetTheProcessorLacksByName) {
  bool refused = false;
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (is_available(isa)) continue;
    const auto set = make_cpu_kernel_set(isa, 1);
    ASSERT_FALSE(set);
    EXPECT_EQ(set.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(set.error().message, HasSubstr(std::string(name_of(isa))));
    refused = true;
  }
  if (!refused) GTEST_SKIP() << "this processor has every instruction set";
}

TEST(CpuKernelSetTest, RefusesAThreadCountOutOfRange) {
  for (const int threads : {-1, 0, 1025}) {
    const auto set = make_cpu_kernel_set(Isa::kGeneric, threads);
    ASSERT_FALSE(set);
    EXPECT_EQ(set.error().code, ErrorCode::kInvalidConfig);
    EXPECT_THAT(set.error().message, HasSubstr(std::to_string(threads)));
  }
}

}  // namespace
}  // namespace trainyard::kernels
