#include "kernels/cpu/cpu_kernel_set.h"

#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::kernels {
namespace {

using testing::HasSubstr;

TEST(CpuKernelSetTest, OffersEveryAvailableInstructionSet) {
  for (const Isa isa : available_isas()) {
    auto set = make_cpu_kernel_set(isa, 2);
    ASSERT_TRUE(set) << set.error().message;
    EXPECT_EQ((*set)->scratch_bytes(), 2 * kScratchBytesPerThread);
    EXPECT_EQ((*set)->counters().gemm_flops, 0);
  }
}

TEST(CpuKernelSetTest, TheBestIsTheLastAvailableAndGenericIsAlwaysThere) {
  EXPECT_EQ(available_isas().front(), Isa::kGeneric);
  EXPECT_EQ(available_isas().back(), best_isa());
}

TEST(CpuKernelSetTest, RefusesAnInstructionSetTheProcessorLacksByName) {
  const ProcessorFeatures old_processor = {.avx2 = true, .avx512 = false};
  const ProcessorFeatures skylake = {.avx2 = true, .avx512 = true, .avx512_bf16 = false};
  const ProcessorFeatures foreign_processor = {};
  for (const auto& [isa, features, best] :
       {std::tuple(Isa::kAmx, old_processor, Isa::kAvx2),
        std::tuple(Isa::kAvx512, old_processor, Isa::kAvx2),
        std::tuple(Isa::kAvx512Bf16, skylake, Isa::kAvx512),
        std::tuple(Isa::kAvx512, foreign_processor, Isa::kGeneric),
        std::tuple(Isa::kAvx2, foreign_processor, Isa::kGeneric)}) {
    const auto set = make_cpu_kernel_set(isa, 1, features);
    ASSERT_FALSE(set);
    EXPECT_EQ(set.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(set.error().message, HasSubstr(std::string(name_of(isa))));
    EXPECT_THAT(set.error().message, HasSubstr("use " + std::string(name_of(best))));
  }
}

TEST(CpuKernelSetTest, OffersWhatTheProcessorHasSlowestFirst) {
  using testing::ElementsAre;
  EXPECT_THAT(available_isas({}), ElementsAre(Isa::kGeneric));
  EXPECT_THAT(available_isas({.avx2 = true}), ElementsAre(Isa::kGeneric, Isa::kAvx2));
  EXPECT_THAT(available_isas({.avx2 = true, .avx512 = true}),
              ElementsAre(Isa::kGeneric, Isa::kAvx2, Isa::kAvx512));
  EXPECT_THAT(available_isas({.avx512 = true}), ElementsAre(Isa::kGeneric, Isa::kAvx512));
  EXPECT_THAT(available_isas({.avx2 = true, .avx512 = true, .avx512_bf16 = true}),
              ElementsAre(Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16));
  EXPECT_THAT(available_isas({.avx2 = true, .avx512 = true, .avx512_bf16 = true, .amx = true}),
              ElementsAre(Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx));
  EXPECT_THAT(available_isas({.avx512_bf16 = true}), ElementsAre(Isa::kGeneric))
      << "its other kernels are those of AVX-512";
  EXPECT_THAT(available_isas({.avx512 = true, .amx = true}),
              ElementsAre(Isa::kGeneric, Isa::kAvx512))
      << "its other kernels are those of AVX-512 BF16";
}

TEST(CpuKernelSetTest, WhatIsNotThereIsReplacedByTheBestThatIs) {
  const ProcessorFeatures old_processor = {.avx2 = true, .avx512 = false};
  EXPECT_EQ(isa_or_best(Isa::kAvx512, old_processor), Isa::kAvx2);
  EXPECT_EQ(isa_or_best(Isa::kGeneric, old_processor), Isa::kGeneric);
  EXPECT_EQ(isa_or_best(Isa::kAvx2, {}), Isa::kGeneric);
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
