// Groups by an emulated NCCL, without an engine: what operations leave, and what becomes of an
// error or a hang at every call into the library.

#include "worker/comm/nccl_transport.h"

#include <algorithm>
#include <latch>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/numeric/cuda_engine/call_faults.h"
#include "tests/numeric/cuda_engine/nccl_ranks.h"
#include "tests/support/extent.h"
#include "tests/support/paths.h"

namespace trainyard::engine {
namespace {

using comm::GroupUse;
using comm::ReduceOp;
using comm::StepCommunicator;
using ::testing::HasSubstr;
using testing_support::fake_nccl;
using testing_support::NcclFault;

constexpr int64_t kElements = 12;

/// What a rank of a test has: numbers on its GPU, and a group for each use.
struct Member {
  Device* device = nullptr;
  std::unique_ptr<MemoryBlock> block;
  std::unique_ptr<comm::DeviceTransport> transport;
  std::unique_ptr<comm::Communicator> hosts[3];
  std::unique_ptr<StepCommunicator> all;
  std::unique_ptr<StepCommunicator> exchanges;
  std::unique_ptr<StepCommunicator> pair;  ///< null where there are more than two ranks
  comm::Communicator* world = nullptr;
  int rank = 0;

  /// Opens all of it.
  Status open(comm::Communicator& of_all, std::chrono::milliseconds deadline) {
    world = &of_all;
    rank = of_all.rank();
    TRAINYARD_ASSIGN(block, device->memory().allocate(kElements * 8));
    TRAINYARD_ASSIGN(transport, testing::fake_nccl_transport(*device, of_all, deadline));
    std::vector<int> everyone(static_cast<size_t>(of_all.size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    for (auto& host : hosts) {
      TRAINYARD_ASSIGN(host, of_all.sub_group(everyone));
    }
    TRAINYARD_ASSIGN(all, transport->make(*hosts[0], GroupUse::kCollectives));
    TRAINYARD_ASSIGN(exchanges, transport->make(*hosts[1], GroupUse::kExchanges));
    if (of_all.size() == 2) {
      TRAINYARD_ASSIGN(pair, transport->make(*hosts[2], GroupUse::kMessages));
    }
    return transport->open();
  }

  std::span<std::byte> bytes() const { return block->bytes(); }
  void put(std::vector<int64_t> numbers) const {
    device->copy({bytes().data(), reinterpret_cast<const std::byte*>(numbers.data()),
                  numbers.size() * sizeof(int64_t)});
  }
  std::vector<int64_t> get() const {
    std::vector<int64_t> numbers(kElements);
    device->copy({reinterpret_cast<std::byte*>(numbers.data()), bytes().data(),
                  static_cast<size_t>(kElements) * sizeof(int64_t)});
    EXPECT_TRUE(device->wait());
    return numbers;
  }
};

std::vector<int64_t> numbers_from(int64_t first) {
  std::vector<int64_t> numbers(kElements);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

class NcclTransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (simt::has_race_checker()) simt::emulation_options().print_errors = true;
    testing::begin_nccl();
  }
  void TearDown() override { testing::expect_clean_nccl(); }

  static void with_members(int ranks, std::chrono::milliseconds deadline,
                           const std::function<void(Member&, Status opened)>& use) {
    simt::emulation_options().devices = ranks;
    const api::EngineSpec spec = testing::small_spec(api::NumberFormat::kFP32);
    comm::testing::run_world(comm::TransportKind::kLocal, ranks, [&](comm::Communicator& world) {
      const auto device = testing::cuda_device(spec, world.rank());
      ASSERT_TRUE(device) << device.error().message;
      Member member;
      member.device = device->get();
      Status opened = member.open(world, deadline);
      use(member, std::move(opened));
    });
  }
  static void with_members(int ranks, const std::function<void(Member&)>& use) {
    with_members(ranks, testing::kNcclPatience, [&](Member& member, const Status& opened) {
      ASSERT_TRUE(opened) << opened.error().message;
      use(member);
      const Status closed = member.transport->close();
      EXPECT_TRUE(closed) << closed.error().message;
    });
  }
};

TEST_F(NcclTransportTest, SumsOfIntegersAreThoseOfAnyTransport) {
  with_members(3, [](Member& member) {
    member.put(numbers_from(int64_t{1000} * member.rank));
    ASSERT_TRUE(member.all->all_reduce(member.bytes(), DType::kInt64, ReduceOp::kSum)->wait());
    const std::vector<int64_t> sums = member.get();
    for (int64_t i = 0; i < kElements; ++i)
      EXPECT_EQ(sums[static_cast<size_t>(i)], 3000 + 3 * i);
    member.put(numbers_from(int64_t{1000} * member.rank));
    ASSERT_TRUE(member.all->all_reduce(member.bytes(), DType::kInt64, ReduceOp::kMax)->wait());
    EXPECT_EQ(member.get(), numbers_from(2000));
    ASSERT_TRUE(member.all->all_reduce(member.bytes(), DType::kInt64, ReduceOp::kMin)->wait());
    EXPECT_EQ(member.get(), numbers_from(2000));
  });
}

TEST_F(NcclTransportTest, EqualAndUnequalPartsAreSummedAndGathered) {
  with_members(3, [](Member& member) {
    const auto r = static_cast<size_t>(member.rank);
    for (const std::vector<int64_t>& counts :
         {std::vector<int64_t>{4, 4, 4}, std::vector<int64_t>{7, 0, 5}}) {
      const int64_t begin =
          std::accumulate(counts.begin(), counts.begin() + member.rank, int64_t{0});
      member.put(numbers_from(int64_t{1000} * member.rank));
      ASSERT_TRUE(member.all->reduce_scatter(member.bytes(), counts, DType::kInt64, ReduceOp::kSum)
                      ->wait());
      const std::vector<int64_t> sums = member.get();
      for (int64_t i = begin; i < begin + counts[r]; ++i)
        EXPECT_EQ(sums[static_cast<size_t>(i)], 3000 + 3 * i);
      std::vector<int64_t> own(kElements, -1);
      std::iota(own.begin() + begin, own.begin() + begin + counts[r], 7 * begin);
      member.put(own);
      ASSERT_TRUE(member.all->all_gather(member.bytes(), counts, DType::kInt64)->wait());
      std::vector<int64_t> gathered;
      int64_t at = 0;
      for (const int64_t count : counts) {
        for (int64_t i = 0; i < count; ++i)
          gathered.push_back(7 * at + i);
        at += count;
      }
      EXPECT_EQ(member.get(), gathered);
    }
    const comm::Counters counters = member.all->counters();
    EXPECT_EQ(counters.of(comm::Operation::kReduceScatter).operations, 2);
    EXPECT_EQ(counters.of(comm::Operation::kAllGather).operations, 2);
    EXPECT_GT(counters.bytes_sent, 0);
  });
}

TEST_F(NcclTransportTest, PartsGoFromEveryRankToEveryRank) {
  with_members(3, [](Member& member) {
    member.put(numbers_from(int64_t{1000} * member.rank));
    const size_t half = member.bytes().size() / 2;
    ASSERT_TRUE(
        member.exchanges
            ->all_to_all(member.bytes().first(half), member.bytes().subspan(half), DType::kInt32)
            ->wait());
    const std::vector<int64_t> numbers = member.get();
    for (int64_t i = 0; i < kElements / 2; ++i) {
      const int64_t of = i / 2;
      EXPECT_EQ(numbers[static_cast<size_t>(kElements / 2 + i)],
                1000 * of + int64_t{2} * member.rank + i % 2);
    }
    const comm::OperationCounters counters =
        member.exchanges->counters().of(comm::Operation::kAllToAll);
    EXPECT_EQ(counters.operations, 2);  // beside that which opens the groups
    EXPECT_EQ(counters.bytes_sent, 4 * 8);
    EXPECT_EQ(counters.bytes_received, 4 * 8);
  });
}

TEST_F(NcclTransportTest, PartsThatAreNotEqualAreRefused) {
  std::latch both_are_open(2);
  with_members(2, testing::kNcclPatience, [&](Member& member, const Status& opened) {
    ASSERT_TRUE(opened);
    both_are_open.arrive_and_wait();
    if (member.rank == 1) return;
    const Status status =
        member.exchanges
            ->all_to_all(member.bytes().first(24), member.bytes().subspan(24, 24), DType::kInt64)
            ->wait();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidConfig);
    EXPECT_THAT(status.error().message,
                HasSubstr("found 24 bytes to send and 24 to receive, wanted as many, in 2 equal"));
    EXPECT_FALSE(member.transport->close());
  });
}

/// Both ranks send before they receive: channels are apart, and have streams of their own.
TEST_F(NcclTransportTest, MessagesArriveInOrderBesideCollectives) {
  with_members(2, [](Member& member) {
    member.put(numbers_from(int64_t{100} * member.rank));
    const std::span<std::byte> head = member.bytes().first(16);
    const std::span<std::byte> tail = member.bytes().subspan(32, 16);
    if (member.rank == 0) {
      const comm::WorkPtr first = member.pair->send(head, 1);
      const comm::WorkPtr second = member.pair->send(tail, 1);
      const comm::WorkPtr sum =
          member.all->all_reduce(member.bytes().last(8), DType::kInt64, ReduceOp::kSum);
      ASSERT_TRUE(sum->wait() && second->wait() && first->wait());
      EXPECT_TRUE(sum->done());
    } else {
      ASSERT_TRUE(
          member.all->all_reduce(member.bytes().last(8), DType::kInt64, ReduceOp::kSum)->wait());
      ASSERT_TRUE(member.pair->receive(tail, 0)->wait());
      ASSERT_TRUE(member.pair->receive(head, 0)->wait());
      const std::vector<int64_t> numbers = member.get();
      EXPECT_EQ(numbers[4], 0);
      EXPECT_EQ(numbers[0], 4);
      EXPECT_EQ(numbers[11], 11 + 111);
    }
  });
}

TEST_F(NcclTransportTest, SumsWhoseBitsDependOnAnOrderAreRefused) {
  std::latch both_are_open(2);
  with_members(2, testing::kNcclPatience, [&](Member& member, const Status& opened) {
    ASSERT_TRUE(opened);
    both_are_open.arrive_and_wait();
    if (member.rank == 1) return;
    const Status sum =
        member.all->all_reduce(member.bytes(), DType::kFloat32, ReduceOp::kSum)->wait();
    ASSERT_FALSE(sum);
    EXPECT_EQ(sum.error().code, ErrorCode::kInvalidConfig);
    EXPECT_THAT(sum.error().message, HasSubstr("all_reduce of F32 by sum"));
    const std::vector<int64_t> counts = {kElements, 1};
    EXPECT_FALSE(member.all->all_gather(member.bytes(), counts, DType::kInt64)->wait());
    EXPECT_FALSE(member.transport->close());
  });
}

TEST_F(NcclTransportTest, OneRankOfAGroupMeetsNobody) {
  with_members(1, [](Member& member) {
    member.put(numbers_from(5));
    EXPECT_TRUE(member.all->all_reduce(member.bytes(), DType::kInt64, ReduceOp::kSum)->wait());
    EXPECT_EQ(member.get(), numbers_from(5));
    EXPECT_TRUE(fake_nccl().calls["ncclCommInitRankConfig"] == 0);
  });
}

TEST_F(NcclTransportTest, RefusesLibrariesByName) {
  const auto missing = comm::nccl::load("libnccl-none.so.2");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(missing.error().message, HasSubstr("no NCCL (libnccl-none.so.2"));
  EXPECT_THAT(missing.error().message, HasSubstr("package libnccl2"));
  EXPECT_THAT(missing.error().message, HasSubstr("LD_LIBRARY_PATH"));
  const auto other = comm::nccl::load("libm.so.6");
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, HasSubstr("libm.so.6 has no ncclGetVersion"));
  EXPECT_TRUE(comm::nccl::check_version(21800));
  const Status old = comm::nccl::check_version(21705);
  ASSERT_FALSE(old);
  EXPECT_THAT(old.error().message, HasSubstr("is of version 2.17, wanted"));
}

TEST_F(NcclTransportTest, AnOldLibraryEndsAllRanks) {
  fake_nccl().version = 21203;
  with_members(2, testing::kNcclPatience, [](Member&, const Status& opened) {
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message, HasSubstr("is of version 2.12"));
  });
}

/// A library of the names alone: each function of the table is the one of its name.
TEST_F(NcclTransportTest, TheTableIsFilledByName) {
  const auto api = comm::nccl::load(testing_support::test_program_path("libnccl_names.so"));
  ASSERT_TRUE(api) << api.error().message;
  int version = 0;
  EXPECT_EQ(api->get_version(&version), 101);
  EXPECT_EQ(api->get_unique_id(nullptr), 102);
  EXPECT_EQ(api->comm_init(nullptr, 0, {}, 0, nullptr), 103);
  EXPECT_EQ(api->comm_async_error(nullptr, nullptr), 104);
  EXPECT_EQ(api->comm_finalize(nullptr), 105);
  EXPECT_EQ(api->comm_destroy(nullptr), 106);
  EXPECT_EQ(api->comm_abort(nullptr), 107);
  EXPECT_EQ(std::string(api->error_string(0)), "ncclGetErrorString");
  EXPECT_EQ(std::string(api->last_error(nullptr)), "ncclGetLastError");
  EXPECT_EQ(api->group_start(), 110);
  EXPECT_EQ(api->group_end(), 111);
  EXPECT_EQ(api->all_reduce(nullptr, nullptr, 0, 0, 0, nullptr, nullptr), 112);
  EXPECT_EQ(api->reduce_scatter(nullptr, nullptr, 0, 0, 0, nullptr, nullptr), 113);
  EXPECT_EQ(api->all_gather(nullptr, nullptr, 0, 0, nullptr, nullptr), 114);
  EXPECT_EQ(api->broadcast(nullptr, nullptr, 0, 0, 0, nullptr, nullptr), 115);
  EXPECT_EQ(api->reduce(nullptr, nullptr, 0, 0, 0, 0, nullptr, nullptr), 116);
  EXPECT_EQ(api->send(nullptr, 0, 0, 0, nullptr, nullptr), 117);
  EXPECT_EQ(api->receive(nullptr, 0, 0, 0, nullptr, nullptr), 118);
}

/// Every kind of operation once.
Status work_through(Member& member) {
  const std::span<std::byte> data = member.bytes();
  const std::vector<int64_t> equal = {6, 6};
  const std::vector<int64_t> unequal = {5, 7};
  member.put(numbers_from(member.rank));
  TRAINYARD_TRY(member.all->all_reduce(data, DType::kInt64, ReduceOp::kSum)->wait());
  for (const auto& counts : {equal, unequal}) {
    TRAINYARD_TRY(member.all->reduce_scatter(data, counts, DType::kInt64, ReduceOp::kSum)->wait());
    TRAINYARD_TRY(member.all->all_gather(data, counts, DType::kInt64)->wait());
  }
  TRAINYARD_TRY(
      member.exchanges
          ->all_to_all(data.first(data.size() / 2), data.last(data.size() / 2), DType::kInt64)
          ->wait());
  for (const int sender : {0, 1}) {
    TRAINYARD_TRY((member.rank == sender ? member.pair->send(data, 1 - sender)
                                         : member.pair->receive(data, sender))
                      ->wait());
  }
  TRAINYARD_TRY(member.device->wait());
  return member.transport->close();
}

struct Case {
  std::string function;
  NcclFault fault;
  int at = 0;
  /// Fails before, so that the function is called at all.
  std::string first_fails;
  /// Of the calls that end a run, before which the other rank may have ended well.
  bool at_end = false;

  /// Who has the fault: the second, where both make the call.
  int rank() const { return function == "ncclGetUniqueId" ? 0 : 1; }
};

bool is_operation(const std::string& function) {
  const auto& all = testing_support::nccl_functions();
  return std::find(all.begin(), all.end(), function) - all.begin() >= 12;
}

/// At every call that a rank makes; of polls, which come as often as threads happen to run, at the
/// first ones.
std::vector<Case> cases(const std::map<std::string, int>& calls) {
  std::vector<Case> all;
  for (const std::string& function : testing_support::nccl_functions()) {
    const bool is_late = function == "ncclCommAbort" || function == "ncclGetErrorString" ||
                         function == "ncclGetLastError";
    const auto found = calls.find(function);
    int times = found == calls.end() ? 0 : found->second;
    if (function == "ncclGetUniqueId") times = 3;  // the other rank's, one per group
    if (function == "ncclCommGetAsyncError") times = std::min(times, 6);
    if (function == "ncclCommGetAsyncError again") times = std::min(times, 1);
    if (is_late) times = 1;
    EXPECT_GT(times, 0) << function << " is never called";
    const bool groups = function == "ncclGroupStart" || function == "ncclGroupEnd";
    const bool ends = function == "ncclCommFinalize" || function == "ncclCommDestroy";
    for (int at = 0; at < times; ++at) {
      const std::string first = is_late ? "ncclAllGather" : "";
      const bool at_end = ends || (groups && at == times - 1);
      all.push_back({function, NcclFault::kError, at, first, at_end});
      all.push_back({function, NcclFault::kHang, at, first, at_end});
      if (function == "ncclCommInitRankConfig" || function == "ncclCommFinalize" ||
          is_operation(function)) {
        all.push_back({function, NcclFault::kNeverReady, at, "", at_end});
      }
      if (is_operation(function)) {
        all.push_back({function, NcclFault::kNeverDone, at, ""});
        all.push_back({function, NcclFault::kAsyncError, at, ""});
        all.push_back({function, NcclFault::kLateError, at, ""});
      }
    }
  }
  return all;
}

/// Both ranks come to their ends, and what each of them says.
class NcclFaultTest : public NcclTransportTest {
 protected:
  static std::vector<std::string> ends_of(const Case& c, std::chrono::milliseconds deadline) {
    testing_support::reset_fake_nccl();
    fake_nccl().fault_rank = c.rank();
    fake_nccl().fault_function = c.function;
    fake_nccl().fault_at = c.at;
    fake_nccl().fault = c.fault;
    fake_nccl().first_fails = c.first_fails;
    std::vector<std::string> ends(2);
    std::latch all_ended(2);
    with_members(2, deadline, [&](Member& member, Status opened) {
      Status ended = std::move(opened);
      if (ended) ended = work_through(member);
      if (!ended) member.world->abort(ended.error());  // as an engine does
      if (!ended && member.transport) (void)member.transport->close();
      ends[static_cast<size_t>(member.rank)] = ended ? "none" : ended.error().message;
      all_ended.arrive_and_wait();
      if (member.rank == c.rank()) {
        testing_support::release_nccl_faults();
        const bool never = c.function == "ncclCommAbort" && c.fault == NcclFault::kError;
        EXPECT_TRUE(!never || member.transport->is_stuck());
        while (!never && member.transport && member.transport->is_stuck())
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    return ends;
  }
};

/// Of an operation that nothing follows, so that no call meets the error.
TEST_F(NcclFaultTest, AnErrorThatComesLaterIsAskedFor) {
  const std::vector<std::string> ends =
      ends_of({"ncclRecv", NcclFault::kLateError, 5}, testing::kNcclPatience);
  for (const std::string& end : ends)
    EXPECT_THAT(end, HasSubstr("rank 1: NCCL: an operation of ranks 0 and 1: error 6"));
}

TEST_F(NcclFaultTest, ACallThatHangsIsNamed) {
  const auto told =
      ::testing::Each(HasSubstr("rank 1: NCCL: ncclAllReduce has not returned within "));
  const std::vector<std::string> ends = testing::patient_ends(
      [](int times) {
        return ends_of({"ncclAllReduce", NcclFault::kHang, 1}, std::chrono::seconds(2) * times);
      },
      told);
  EXPECT_THAT(ends, told);
}

/// So that a call which is added has its turn, too: tools/cuda_calls lists them.
TEST_F(NcclFaultTest, RunsMakeEveryCallOfTheSources) {
  if (!testing::has_listed_lines()) return;
  simt::call_faults().records_places = true;
  const std::vector<std::string> clean = ends_of({"", NcclFault::kNone}, testing::kNcclPatience);
  EXPECT_EQ(clean, (std::vector<std::string>{"none", "none"}));
  for (const std::string& end :
       ends_of({"ncclAllGather", NcclFault::kError, 0}, testing::kNcclPatience))
    EXPECT_THAT(end, HasSubstr("rank 1: NCCL: ncclAllGather"));
  EXPECT_EQ(testing::calls_not_made({"worker/comm/"}), "");
}

TEST_F(NcclFaultTest, AnErrorOrAHangAtAnyCallEndsBothRanksByName) {
  const std::chrono::milliseconds deadline(simt::has_race_checker() ? 3000 : 500);
  const std::vector<std::string> clean = ends_of({"", NcclFault::kNone}, testing::kNcclPatience);
  ASSERT_EQ(clean, (std::vector<std::string>{"none", "none"}));
  const std::vector<Case> all = cases(fake_nccl().calls);
  EXPECT_GT(all.size(), 60u);
  for (size_t i = 0; i < all.size(); ++i) {
    const Case& c = all[i];
    const auto index = static_cast<int64_t>(i);
    const bool is_drawn = testing_support::runs_everything() && testing::is_watched()
                              ? index % 10 == 0
                              : testing_support::in_sample("nccl faults", index, 10);
    if (!is_drawn) continue;
    const std::string name =
        c.function + " #" + std::to_string(c.at) + ", fault " + std::to_string(int(c.fault));
    SCOPED_TRACE(name);
    const bool waits = c.fault == NcclFault::kHang || c.fault == NcclFault::kNeverReady ||
                       c.fault == NcclFault::kNeverDone;
    const std::vector<std::string> ends = ends_of(c, waits ? deadline : testing::kNcclPatience);
    EXPECT_EQ("", fake_nccl().complaint);
    if (c.function == "ncclCommAbort" && c.fault == NcclFault::kError) {
      EXPECT_THAT(ends[1], HasSubstr("ncclCommAbort failed, too"));
    } else {
      EXPECT_EQ(0, fake_nccl().live_comms);
    }
    const std::string& own = ends[static_cast<size_t>(c.rank())];
    const std::string& other = ends[static_cast<size_t>(1 - c.rank())];
    const std::string named = "rank " + std::to_string(c.rank()) + ": NCCL: ";
    EXPECT_THAT(own, HasSubstr("NCCL: "));
    // On a machine that is busy either rank may be the first to run out of its time.
    const bool is_named = c.fault == NcclFault::kError || c.fault == NcclFault::kAsyncError;
    if (is_named) {
      EXPECT_THAT(own, HasSubstr(named));
    }
    if (c.fault == NcclFault::kError) {
      EXPECT_THAT(
          own, HasSubstr(testing::called_name(c.first_fails.empty() ? c.function : c.first_fails)));
    }
    if (c.at_end) continue;
    EXPECT_THAT(other, HasSubstr(is_named ? named : "NCCL: "));
    if (HasFailure()) return;
  }
  testing_support::reset_fake_nccl();
}

}  // namespace
}  // namespace trainyard::engine
