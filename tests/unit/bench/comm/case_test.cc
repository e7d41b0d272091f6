#include "bench/comm/case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/comm/member.h"
#include "bench/comm/pattern.h"
#include "bench/comm/world.h"
#include "worker/comm/host/reduce.h"

namespace trainyard::bench {
namespace {

using comm::Operation;
using comm::ReduceOp;

TEST(CaseTest, LinesSurviveTheRoundTripAndNonsenseIsRefused) {
  const Case one{Operation::kReduceScatter, 4096, DType::kBFloat16, ReduceOp::kMax, 3, 20, true};
  const auto decoded = decode_case(encode(one));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(encode(*decoded), encode(one));
  for (const char* line :
       {"", "all_reduce", "all_reduce 8 F32 sum 0 0 0", "nothing 8 F32 sum 0 1 0",
        "all_reduce -8 F32 sum 0 1 0", "all_reduce 8 F33 sum 0 1 0"}) {
    EXPECT_FALSE(decode_case(line).has_value()) << line;
  }
}

TEST(CaseTest, AMembersErrorIsHandedOn) {
  const auto sample = decode_sample("error rank 1 is lost");
  ASSERT_FALSE(sample.has_value());
  EXPECT_EQ(sample.error().message, "rank 1 is lost");
  EXPECT_FALSE(decode_sample("sample 1 2").has_value());
  const auto right = decode_sample(encode(Sample{1.5, 2.5, 10, 11, 12}));
  ASSERT_TRUE(right.has_value());
  EXPECT_EQ(right->p99_us, 2.5);
  EXPECT_EQ(right->wrong, 12);
}

TEST(CaseTest, RolesSurviveTheRoundTrip) {
  const MemberRole role{"tcp", 1, 3, {2, 0}};
  const auto decoded = decode_role(encode(role));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(encode(*decoded), encode(role));
  EXPECT_TRUE(decode_role({"raw", "0", "2", ""}).has_value());
  EXPECT_TRUE(decode_role({"raw-bounded", "1", "2", ""}).has_value());
  EXPECT_FALSE(decode_role({"tcp", "3", "3", ""}).has_value());
  EXPECT_FALSE(decode_role({"udp", "0", "2", ""}).has_value());
  EXPECT_FALSE(decode_role({"tcp", "0", "2"}).has_value());
}

TEST(WorldTest, AMemberThatEndsIsNamedByItsRankAndHowItEnded) {
  const auto error_of = [](const char* script) {
    const auto world = start_world("shm", {{"/bin/sh", "-c", script, "sh"}, 2, {}});
    EXPECT_FALSE(world.has_value());
    return world ? Error{} : world.error();
  };
  const Error exited = error_of("exit 3");
  EXPECT_EQ(exited.code, ErrorCode::kInternal);
  EXPECT_EQ(exited.message, "rank 0 of world shm ended with exit code 3 and gave no answer");
  // By its second argument the script knows which rank it is.
  EXPECT_EQ(error_of("test $2 = 0 && echo 127.0.0.1:1 && exec cat; kill -9 $$").message,
            "rank 1 of world shm was ended by signal 9 (Killed) and gave no answer");
  EXPECT_EQ(error_of("echo error it may not listen; exec cat").message,
            "rank 0 of world shm: it may not listen");
  const auto missing = start_world("tcp", {{"/nowhere/trainyard"}, 2, {}});
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().message, "start rank 0 of world tcp: No such file or directory");
}

TEST(CaseTest, BusFactorsAreThoseOfTheLinks) {
  EXPECT_DOUBLE_EQ(bus_factor(Operation::kAllReduce, 2), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(Operation::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Operation::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Operation::kBroadcast, 4), 1.0);
}

TEST(PatternTest, CombinationsAreExactInEveryTypeAndForUpTo64Ranks) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64, DType::kInt8,
        DType::kUint8, DType::kUint16, DType::kInt32, DType::kUint32, DType::kInt64}) {
    for (const ReduceOp reduce :
         {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProd, ReduceOp::kLor}) {
      auto found = pattern_of(0, 30, dtype, reduce);
      for (int rank = 1; rank < 64; ++rank) {
        const auto next = pattern_of(rank, 30, dtype, reduce);
        comm::combine_of(dtype, reduce)(found.data(), next.data(), 30);
      }
      const auto wanted = combined_pattern(64, 30, dtype, reduce);
      EXPECT_EQ(differing_elements(found.data(), wanted.data(), 30, dtype), 0)
          << name_of(dtype) << ' ' << comm::name_of(reduce);
    }
  }
}

TEST(PatternTest, DifferingElementsAreCounted) {
  auto found = pattern_of(0, 10, DType::kInt32, ReduceOp::kSum);
  const auto wanted = found;
  found[4] ^= std::byte{1};
  found[5] ^= std::byte{1};
  found[39] ^= std::byte{1};
  EXPECT_EQ(differing_elements(found.data(), wanted.data(), 10, DType::kInt32), 2);
}

}  // namespace
}  // namespace trainyard::bench
