// Two ranks that meet by an emulated NCCL, of which one has a call into NCCL, CUDA or cuBLASLt that
// fails or hangs, or enqueues what is never done: both come to their end, and tell whose fault it
// was. Faults that only NCCL has are those of nccl_transport_test.cc.

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/numeric/cuda_engine/faulty_ranks.h"
#include "tests/numeric/cuda_engine/nccl_ranks.h"

namespace trainyard::engine {
namespace {

using simt::call_faults;
using simt::CallFault;
using ::testing::AnyOf;
using testing::CallCase;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::End;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kFaulty;
using ::testing::Not;
using testing::Patience;

/// Where something hangs.
constexpr Patience kShort{.gpu = std::chrono::milliseconds(300),
                          .nccl = std::chrono::milliseconds(1500),
                          .host = std::chrono::milliseconds(5000)};

/// One step, and its end as of worker/rank's train loop.
Result<std::string> train(Device& device, comm::Communicator& world, const comm::Groups& host,
                          const Patience& patience) {
  TRAINYARD_ASSIGN(const auto transport,
                   testing::fake_nccl_transport(device, world, patience.nccl));
  std::optional<comm::Groups> groups;
  std::unique_ptr<Engine> engine;
  api::EngineSpec spec = testing::faulty_spec();
  spec.runtime.transport = api::Transport::kNccl;
  const auto run = [&]() -> Result<std::string> {
    TRAINYARD_ASSIGN(groups, host.on_device([&](comm::Communicator& group, comm::GroupUse use) {
      return transport->make(group, use);
    }));
    TRAINYARD_TRY(transport->open());
    TRAINYARD_ASSIGN(engine, Engine::create({.spec = spec, .device = &device, .groups = &*groups}));
    TRAINYARD_ASSIGN(const testing::Trained trained, testing::train_engine(*engine, 1));
    return trained.hash;
  };
  Result<std::string> hash = run();
  if (!hash) (groups ? *groups : host).abort(hash.error());
  const Status closed = transport->close();
  if (hash && !closed) hash = Result<std::string>(closed.error());
  if (!hash && !device.is_stuck() && !transport->is_stuck()) (void)device.wait();
  // What a process that ends does not come to: it frees nothing then.
  const bool hangs = call_faults().fault == CallFault::kHang;
  if (hangs ? world.rank() != kFaulty : device.is_stuck() || transport->is_stuck())
    simt::release_call_faults();
  while (transport->is_stuck())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return hash;
}

std::vector<End> run(const Patience& patience = {}) {
  return testing::run_faulty(
      patience, [&](Device& device, comm::Communicator& world, const comm::Groups& host) {
        return train(device, world, host, patience);
      });
}

bool is_nccls(const CallCase& one) { return one.function.starts_with("nccl"); }

class NcclCallFaultsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::begin_nccl();
    simt::emulation_options().print_errors = false;
  }
  void TearDown() override {
    simt::reset_call_faults();
    testing::expect_clean_nccl();
  }
  /// The calls of the rank with the fault, of a run without one: those of NCCL and the others.
  struct Cases {
    std::vector<CallCase> of_nccl, others;
    std::string hash;
  };
  static Cases cases(CallFault fault) {
    static const std::map<CallFault, Cases> all = [] {
      testing::plant({}, kFaulty);
      const std::vector<End> ends = run();
      EXPECT_EQ(ends[0].error + ends[1].error, "");
      groups_ = call_faults().calls["ncclGroupStart"];
      std::map<CallFault, Cases> found;
      for (const CallFault of : {CallFault::kError, CallFault::kNeverDone, CallFault::kHang}) {
        Cases& cases = found[of];
        cases.hash = ends[0].hash;
        for (CallCase& one : testing::call_cases({of}))
          (is_nccls(one) ? cases.of_nccl : cases.others).push_back(std::move(one));
      }
      testing_support::reset_fake_nccl();
      return found;
    }();
    return all.at(fault);
  }
  /// Whether the other rank may have ended well before.
  static bool is_at_end(const CallCase& one) {
    const bool groups = one.function == "ncclGroupStart" || one.function == "ncclGroupEnd";
    return one.function == "ncclCommFinalize" || one.function == "ncclCommDestroy" ||
           (groups && one.at + 1 == groups_) || testing::frees(one.function) ||
           testing::polls(one.function);
  }
  static void expect_nothing_left(const CallCase& planted) {
    EXPECT_EQ(testing_support::fake_nccl().complaint, "");
    EXPECT_EQ(testing_support::fake_nccl().live_comms, 0);
    if (testing::frees(planted.function)) testing::end_process();
    EXPECT_EQ(simt::live_allocations() + simt::live_host_allocations(), 0);
    testing_support::reset_fake_nccl();
  }
  /// How both ranks say that they ended where something hangs.
  static void expect_ends(const CallCase& planted,
                          const ::testing::Matcher<const std::vector<std::string>&>& told) {
    const std::vector<std::string> ends = testing::patient_ends(
        [&](int times) {
          testing::plant(planted, kFaulty);
          auto errors = testing::errors_of(run(kShort.times(times)));
          EXPECT_EQ(call_faults().waits_forever, "");
          expect_nothing_left(planted);
          return errors;
        },
        told);
    EXPECT_THAT(ends, told);
  }

 private:
  static inline int64_t groups_ = 0;
};

TEST_F(NcclCallFaultsTest, AnErrorOfAnyCallEndsBothRanksByName) {
  const Cases all = cases(CallFault::kError);
  ASSERT_GT(all.of_nccl.size(), 20U);
  ASSERT_GT(all.others.size(), 200U);
  std::vector<CallCase> some = testing::drawn("errors by NCCL", all.others, 2);
  for (const CallCase& planted : testing::drawn("errors of NCCL", all.of_nccl, 2))
    some.push_back(planted);
  for (const CallCase& planted : some) {
    SCOPED_TRACE(planted.name());
    testing::plant(planted, kFaulty);
    const std::vector<End> ends = run();
    EXPECT_TRUE(call_faults().has_happened || testing::polls(planted.function));
    const bool recovers = (testing::frees(planted.function) && !is_nccls(planted)) ||
                          planted.function.ends_with("ConfigGetAttribute");
    if (recovers || !call_faults().has_happened) {
      for (const End& end : ends)
        EXPECT_EQ(end.error + end.hash, all.hash);
    } else {
      ::testing::Matcher<std::string> is_named =
          AnyOf(HasSubstr("unknown error"), HasSubstr("status 14"));
      if (is_nccls(planted))
        is_named = HasSubstr("rank 1: NCCL: " + testing::called_name(planted.function));
      EXPECT_THAT(ends[1].error, is_named);
      if (!is_at_end(planted) || !ends[0].error.empty()) {
        EXPECT_THAT(ends[0].error, HasSubstr("rank 1"));
        EXPECT_THAT(ends[0].error, is_named);
      }
    }
    expect_nothing_left(planted);
  }
}

/// What its own GPU does not do a rank finds when it waits for it, or its peer, which waits in
/// NCCL. What NCCL itself has enqueued an abort ends: see NcclFaultTest.
TEST_F(NcclCallFaultsTest, WhatIsNeverDoneEndsBothRanks) {
  if (testing::is_watched()) return;  // and what is done would be as late
  const Cases all = cases(CallFault::kNeverDone);
  ASSERT_GT(all.others.size(), 100U);
  std::vector<CallCase> some = testing::drawn("never done by NCCL", all.others, 1);
  // The first use of the groups, which is before there is an engine.
  some.push_back({CallFault::kNeverDone, "cudaEventRecord", 0});
  for (const CallCase& planted : some) {
    SCOPED_TRACE(planted.name());
    expect_ends(planted, Each(AnyOf(HasSubstr(" s; a kernel hangs"),
                                    HasSubstr("of ranks 0 and 1 made no progress for "))));
  }
}

TEST_F(NcclCallFaultsTest, ACallThatHangsEndsBothRanks) {
  if (testing::is_watched()) return;
  Cases all = cases(CallFault::kHang);
  for (std::vector<CallCase>* const of : {&all.of_nccl, &all.others}) {
    std::erase_if(*of, [](const CallCase& one) { return is_at_end(one); });
    ASSERT_GT(of->size(), 10U);
    for (const CallCase& planted : testing::drawn("hangs by NCCL", *of, 1)) {
      SCOPED_TRACE(planted.name());
      if (is_nccls(planted)) {
        expect_ends(planted,
                    Each(HasSubstr("rank 1: NCCL: " + testing::called_name(planted.function) +
                                   " has not returned within ")));
      } else {
        expect_ends(planted, ElementsAre(AnyOf(HasSubstr("rank 1"), HasSubstr("ranks 0 and 1")),
                                         Not(IsEmpty())));
      }
    }
  }
}

}  // namespace
}  // namespace trainyard::engine
