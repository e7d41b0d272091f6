// The operator killed at its writes, one by one: just before the request reaches the API server,
// and after the server has carried it out, before the answer. A few, drawn by TRAINYARD_TEST_SEED;
// with TRAINYARD_LONG_TESTS=1 every one.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/extent.h"
#include "tests/support/proxy_lanes.h"

namespace trainyard::apiserver {
namespace {

using testing_support::Fault;
using testing_support::GangWorkload;
using testing_support::ProxiedOperator;
using testing_support::ProxiedRequest;
using Kind = Fault::Kind;

/// Of all crashes.
constexpr size_t kSample = 16;

struct Crash {
  int64_t write = 0;
  Kind kind = Kind::kCrashBefore;

  std::string name() const {
    return fmt::format("{}-{}", kind == Kind::kCrashBefore ? "before" : "after", write);
  }
};

class ProxyCrashTest : public testing_support::ProxyTest {
 protected:
  /// The writes of a job's life that nothing disturbs.
  int64_t count_writes(ProxiedOperator& subject, const std::string& lane) {
    subject.proxy().script({});
    const Status lived = GangWorkload(admin(), lane, "undisturbed").run();
    EXPECT_TRUE(lived.has_value()) << lived.error().message << subject.log();
    const std::vector<ProxiedRequest> requests = subject.proxy().requests();
    return std::count_if(requests.begin(), requests.end(),
                         [](const ProxiedRequest& request) { return request.write > 0; });
  }

  /// The life of one job with one crash; a complaint or nothing.
  std::string live(ProxiedOperator& subject, const std::string& lane, const Crash& crash) {
    const auto what = std::make_shared<std::string>("nothing");
    subject.proxy().script([=](const ProxiedRequest& request) {
      if (request.write != crash.write) return Fault::none();
      *what = request.method + " " + request.resource;
      return Fault::of(crash.kind);
    });
    const auto began = std::chrono::steady_clock::now();
    const Status lived = GangWorkload(admin(), lane, crash.name()).run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    const int64_t met = subject.proxy().faults();  // after it, nobody changes `what`
    std::cout << fmt::format("{:<10} {:<28} {:4.1f} s\n", crash.name(), met > 0 ? *what : "-",
                             took.count());
    if (met > 0) ++crashes_;
    if (lived) return "";
    return fmt::format("killed {} ({}): {}\n", crash.name(), *what, lived.error().message);
  }

  std::atomic<int64_t> crashes_ = 0;
};

/// All, or those that the seed draws.
std::vector<Crash> choose(int64_t writes) {
  std::vector<Crash> crashes;
  for (int64_t write = 1; write <= writes; ++write) {
    crashes.push_back({write, Kind::kCrashBefore});
    crashes.push_back({write, Kind::kCrashAfter});
  }
  if (testing_support::runs_everything()) return crashes;
  std::mt19937_64 random(testing_support::test_seed());
  std::shuffle(crashes.begin(), crashes.end(), random);
  crashes.resize(std::min(crashes.size(), kSample));
  return crashes;
}

TEST_F(ProxyCrashTest, AJobLivesRightWhereverTheOperatorDies) {
  // A lane keeps its operator from crash to crash.
  std::vector<std::string> names;
  std::vector<std::unique_ptr<ProxiedOperator>> operators;
  for (int lane = 0; lane < kLanes; ++lane) {
    names.push_back(make_lane(std::to_string(lane)));
    operators.push_back(make_operator(names.back()));
    operators.back()->start();
  }
  const int64_t writes = count_writes(*operators.front(), names.front());
  ASSERT_GE(writes, 15);
  const std::vector<Crash> crashes = choose(writes);
  std::cout << fmt::format("{} writes; {} of {} crashes\n", writes, crashes.size(), 2 * writes);
  in_lanes(std::ssize(crashes), [&](int lane, int64_t item) {
    const auto at = static_cast<size_t>(lane);
    const std::string complaint =
        live(*operators[at], names[at], crashes[static_cast<size_t>(item)]);
    return complaint.empty() ? "" : complaint + operators[at]->log();
  });
  for (const auto& subject : operators)
    EXPECT_EQ(subject->stop(), "") << subject->log();
  // The last writes of a life vary by one or two.
  EXPECT_GE(crashes_, std::ssize(crashes) * 3 / 4);
}

}  // namespace
}  // namespace trainyard::apiserver
