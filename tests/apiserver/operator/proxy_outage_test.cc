// An API server that is away for a while: the operator asks no more than its back-off allows, and
// is back soon after the server is.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/proxy_lanes.h"

namespace trainyard::apiserver {
namespace {

using std::chrono::seconds;
using testing_support::Fault;
using testing_support::FaultProxy;
using testing_support::GangWorkload;
using testing_support::Greeting;
using testing_support::ProxiedRequest;

constexpr seconds kOutage{6};
/// TrainingJobs, pods, nodes.
constexpr int64_t kReflectors = 3;
/// Reconciles that something wakes, besides those that a failure brings back.
constexpr int64_t kWakes = 10;

/// How many requests an outage of so many seconds may meet.
using Allowed = std::function<int64_t(double outage_s)>;

/// How many tries a doubling back-off allows in the outage, the first one among them, where no
/// jitter stretches it.
int64_t tries_with(double first_seconds, double outage_s) {
  return 1 + static_cast<int64_t>(std::floor(std::log2(outage_s / first_seconds + 1)));
}

/// client-go's: 800 ms and 5 ms, doubled. A call that meets a dead connection makes a second one.
int64_t backing_off(double outage_s) {
  return 2 * kReflectors * tries_with(0.8, outage_s) + tries_with(0.005, outage_s) + kWakes;
}

/// Who was told to come in two seconds comes when they are over: one thread for each reflector and
/// one that reconciles, and each may have had a request under way.
int64_t told_two_seconds(double outage_s) {
  return (kReflectors + 1) * (1 + static_cast<int64_t>(outage_s / 2)) + kWakes;
}

struct Outage {
  std::string name;
  std::function<void(FaultProxy&)> begin;
  std::function<void(FaultProxy&)> end;
  /// Of requests, or of connections where none is served.
  Allowed allowed;
};

Outage unreachable(const std::string& name, Greeting greeting) {
  return {name, [=](FaultProxy& proxy) { proxy.go_down(greeting); },
          [](FaultProxy& proxy) { proxy.come_up(); }, backing_off};
}

/// Watches that are open go on; everything that is asked anew gets this answer.
Outage answering(const std::string& name, const Fault& fault, const Allowed& allowed) {
  return {name,
          [=](FaultProxy& proxy) { proxy.script([=](const ProxiedRequest&) { return fault; }); },
          [](FaultProxy& proxy) { proxy.script({}); }, allowed};
}

std::vector<Outage> outages() {
  return {unreachable("Reset", Greeting::kReset), unreachable("TlsRefused", Greeting::kRefuseTls),
          answering("Unavailable", Fault::answer(503, "ServiceUnavailable"), backing_off),
          answering("TooMany", Fault::answer(429, "TooManyRequests"), backing_off),
          answering("TooManyForTwoSeconds", Fault::answer(429, "TooManyRequests", seconds(2)),
                    told_two_seconds)};
}

class ProxyOutageTest : public testing_support::ProxyTest {
 protected:
  /// A job loses a pod while its operator sees no API server; a complaint or nothing.
  std::string suffer(const Outage& outage, const std::string& lane) {
    const auto subject = make_operator(lane);
    FaultProxy& proxy = subject->proxy();
    subject->start();
    const GangWorkload job(admin(), lane, "train");
    const auto complain = [&](const std::string& what) {
      return outage.name + ": " + what + "\n" + subject->log();
    };
    if (const Status made = job.create(); !made) return complain(made.error().message);
    const auto began = std::chrono::steady_clock::now();
    outage.begin(proxy);
    const auto victim = job.delete_a_pod();
    if (!victim) return complain(victim.error().message);
    std::this_thread::sleep_for(kOutage);  // an outage lasts
    const int64_t asked = proxy.turned_away() + proxy.faults();
    outage.end(proxy);
    const auto healed = std::chrono::steady_clock::now();
    const double outage_s = std::chrono::duration<double>(healed - began).count();
    const int64_t allowed = outage.allowed(outage_s);
    if (const Status runs = job.await_running(4, 1, 0); !runs)
      return complain(runs.error().message);
    const std::chrono::duration<double> recovery = std::chrono::steady_clock::now() - healed;
    std::cout << fmt::format(
        "{:<21} {:>2} requests in {:.1f} s, {} allowed; right after {:.1f} s\n", outage.name, asked,
        outage_s, allowed, recovery.count());
    if (asked == 0) return complain("nothing was asked");
    if (asked > allowed)
      return complain(fmt::format("{} requests, {} are allowed", asked, allowed));
    if (const Status gone = job.remove(); !gone) return complain(gone.error().message);
    const std::string ending = subject->stop();
    return ending.empty() ? "" : complain(ending);
  }
};

TEST_F(ProxyOutageTest, TheOperatorAsksSeldomAndIsBackSoon) {
  const std::vector<Outage> all = outages();
  in_lanes(std::ssize(all), [&](int, int64_t i) {
    return suffer(all[static_cast<size_t>(i)], make_lane(std::to_string(i)));
  });
}

}  // namespace
}  // namespace trainyard::apiserver
