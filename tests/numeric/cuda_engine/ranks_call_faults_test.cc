// Two ranks of which one has a call into CUDA or cuBLASLt that fails, hangs, or enqueues what is
// never done: both come to their end, and the other one tells whose fault it was.

#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/numeric/cuda_engine/faulty_ranks.h"
#include "worker/comm/staged_communicator.h"

namespace trainyard::engine {
namespace {

using simt::call_faults;
using simt::CallFault;
using ::testing::AnyOf;
using testing::CallCase;
using ::testing::ElementsAre;
using testing::End;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kFaulty;
using ::testing::Not;
using testing::Patience;

/// Where a GPU never does something, and nothing else is that late: the emulation computes within
/// the calls.
constexpr Patience kShortOfGpu{.gpu = std::chrono::milliseconds(300)};
/// Where a rank hangs in a call, which its peer waits for.
constexpr Patience kShortOfPeer{.host = std::chrono::milliseconds(2000)};

Result<std::string> train(Device& device, const comm::Groups& host) {
  TRAINYARD_ASSIGN(const comm::Groups groups,
                   host.on_device([&](comm::Communicator& group, comm::GroupUse) {
                     return comm::StagedCommunicator::make(group, device);
                   }));
  const auto run = [&]() -> Result<std::string> {
    TRAINYARD_ASSIGN(
        const auto engine,
        Engine::create({.spec = testing::faulty_spec(), .device = &device, .groups = &groups}));
    auto trained = testing::train_engine(*engine, 1);
    if (!trained) groups.abort(trained.error());
    // What a process that ends does not come to: it frees nothing then.
    if (device.is_stuck()) simt::release_call_faults();
    if (!trained) return trained.error();
    return trained->hash;
  };
  Result<std::string> hash = run();
  if (!hash) groups.abort(hash.error());
  return hash;
}

std::vector<End> run(const Patience& patience = {}) {
  return testing::run_faulty(patience,
                             [](Device& device, comm::Communicator&, const comm::Groups& host) {
                               return train(device, host);
                             });
}

class RanksCallFaultsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::begin_emulation();
    simt::emulation_options().print_errors = false;
  }
  void TearDown() override {
    simt::reset_call_faults();
    testing::expect_clean_emulation();
  }
  /// The calls of the rank with the fault, of a run without one.
  static std::vector<CallCase> cases(CallFault fault, std::string& hash) {
    testing::plant({}, kFaulty);
    const std::vector<End> ends = run();
    EXPECT_EQ(ends[0].error + ends[1].error, "");
    hash = ends[0].hash;
    return testing::call_cases({fault});
  }
  static void expect_nothing_left(const CallCase& planted) {
    if (testing::frees(planted.function)) testing::end_process();
    EXPECT_EQ(simt::live_allocations() + simt::live_host_allocations(), 0);
  }
};

TEST_F(RanksCallFaultsTest, AnErrorOfAnyCallEndsBothRanksByName) {
  std::string hash;
  const std::vector<CallCase> all = cases(CallFault::kError, hash);
  ASSERT_GT(all.size(), 200U);
  for (const CallCase& planted : testing::drawn("errors of ranks", all, 5)) {
    SCOPED_TRACE(planted.name());
    testing::plant(planted, kFaulty);
    const std::vector<End> ends = run();
    EXPECT_TRUE(call_faults().has_happened || testing::polls(planted.function));
    const bool recovers =
        testing::frees(planted.function) || planted.function.ends_with("ConfigGetAttribute");
    if (recovers || !call_faults().has_happened) {
      for (const End& end : ends)
        EXPECT_EQ(end.error + end.hash, hash);
    } else {
      EXPECT_THAT(ends[1].error, AnyOf(HasSubstr("unknown error"), HasSubstr("status 14")));
      EXPECT_THAT(ends[0].error, HasSubstr("rank 1"));
      EXPECT_THAT(ends[0].error, AnyOf(HasSubstr("unknown error"), HasSubstr("status 14")));
    }
    expect_nothing_left(planted);
  }
}

TEST_F(RanksCallFaultsTest, WhatIsNeverDoneEndsBothRanksByName) {
  std::string hash;
  const std::vector<CallCase> all = cases(CallFault::kNeverDone, hash);
  ASSERT_GT(all.size(), 100U);
  for (const CallCase& planted : testing::drawn("never done of ranks", all, 3)) {
    SCOPED_TRACE(planted.name());
    testing::plant(planted, kFaulty);
    const std::vector<End> ends = run(kShortOfGpu);
    EXPECT_TRUE(call_faults().has_happened);
    EXPECT_THAT(ends[1].error, HasSubstr("within 0.3 s; a kernel hangs"));
    EXPECT_THAT(ends[0].error, HasSubstr("rank 1"));
    EXPECT_THAT(ends[0].error, HasSubstr("within 0.3 s; a kernel hangs"));
    EXPECT_EQ(call_faults().waits_forever, "");
    expect_nothing_left(planted);
  }
}

TEST_F(RanksCallFaultsTest, ACallThatHangsEndsThePeerByName) {
  std::string hash;
  std::vector<CallCase> all = cases(CallFault::kHang, hash);
  // What is called at the end has no peer that waits, and of polls there may be fewer.
  std::erase_if(all, [](const CallCase& one) {
    return testing::frees(one.function) || testing::polls(one.function);
  });
  ASSERT_GT(all.size(), 100U);
  for (const CallCase& planted : testing::drawn("hangs of ranks", all, 1)) {
    SCOPED_TRACE(planted.name());
    const auto told = ElementsAre(HasSubstr("rank 1"), Not(IsEmpty()));
    const std::vector<std::string> ends = testing::patient_ends(
        [&](int times) {
          testing::plant(planted, kFaulty);
          auto errors = testing::errors_of(run(kShortOfPeer.times(times)));
          expect_nothing_left(planted);
          return errors;
        },
        told);
    EXPECT_THAT(ends, told);
  }
}

TEST_F(RanksCallFaultsTest, RunsMakeEveryCallOfTheSources) {
  if (!testing::has_listed_lines()) return;
  call_faults().records_places = true;
  for (const End& end : run())
    EXPECT_EQ(end.error, "");
  EXPECT_EQ(testing::calls_not_made({"worker/device/cuda_copy_stream.cc"}), "");
}

}  // namespace
}  // namespace trainyard::engine
