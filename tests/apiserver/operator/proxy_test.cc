// The operator through a network and an API server that do everything they may do wrong: each fault
// meets several requests of a job's life, which must end right all the same.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
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
using testing_support::FaultScript;
using testing_support::GangWorkload;
using testing_support::ProxiedRequest;
using Kind = Fault::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

using Which = std::function<bool(const ProxiedRequest&)>;
using Make = std::function<Fault(std::mt19937_64&)>;

/// One in so many faults is met, each for some seed of explore.
constexpr int64_t kShare = 3;

struct Case {
  std::string name;
  std::function<FaultScript(uint64_t seed)> script;
};

bool is_write(const ProxiedRequest& request) { return request.write > 0; }
bool is_list(const ProxiedRequest& request) { return request.list > 0; }
bool is_watch(const ProxiedRequest& request) { return request.watch > 0; }

/// The fault meets two of five of the requests, `most` at most.
std::function<FaultScript(uint64_t)> some(int most, Which which, Make make) {
  return [=](uint64_t seed) -> FaultScript {
    return [=, random = std::mt19937_64(seed),
            met = 0](const ProxiedRequest& request) mutable -> Fault {
      if (met == most || !which(request) || random() % 5 > 1) return Fault::none();
      ++met;
      return make(random);
    };
  };
}

/// The first `most` requests of each resource.
std::function<FaultScript(uint64_t)> first(int most, Which which, Make make) {
  return [=](uint64_t seed) -> FaultScript {
    return [=, random = std::mt19937_64(seed),
            met = std::map<std::string, int>()](const ProxiedRequest& request) mutable -> Fault {
      if (!which(request) || met[request.resource]++ >= most) return Fault::none();
      return make(random);
    };
  };
}

Make always(const Fault& fault) {
  return [fault](std::mt19937_64&) { return fault; };
}

/// Somewhere within so many bytes.
Make cut_within(uint64_t bytes) {
  return [bytes](std::mt19937_64& random) { return Fault::cut(1 + random() % bytes); };
}

/// In the midst of the job's life the watch of a resource is cut and lost, and the lists that
/// follow show what was there before the job, twice.
FaultScript stale_lists(const std::string& resource, uint64_t seed) {
  const size_t bytes = 20'000 + seed % 20'000;
  return [=, watches = 0, lists = 0](const ProxiedRequest& request) mutable -> Fault {
    if (request.resource != resource) return Fault::none();
    if (request.watch > 0 && ++watches == 1) return Fault::cut(bytes);
    if (request.watch > 0 && watches == 2) return Fault::of(Kind::kExpire);
    if (request.list > 0 && ++lists > 1 && lists <= 3) return Fault::of(Kind::kStale);
    return Fault::none();
  };
}

std::vector<Case> faults_of_writes() {
  return {
      {"RequestLost", some(6, is_write, always(Fault::of(Kind::kLoseRequest)))},
      {"AnswerLost", some(6, is_write, always(Fault::of(Kind::kLoseAnswer)))},
      {"AnswerNeverComes", some(1, is_write, always(Fault::of(Kind::kNoAnswer)))},
      {"AnswerCut", some(6, is_write, cut_within(100'000))},
      {"AnswerSlow", some(6, is_write, always(Fault::slow(400, milliseconds(40))))},
      {"AnswerEndless", some(3, is_write, always(Fault::of(Kind::kEndless)))},
      {"Conflict", some(6, is_write, always(Fault::answer(409, "Conflict")))},
      {"AlreadyExists", some(6, is_write, always(Fault::answer(409, "AlreadyExists")))},
      {"TooMany", some(6, is_write, always(Fault::answer(429, "TooManyRequests")))},
      {"TooManyForASecond",
       some(4, is_write, always(Fault::answer(429, "TooManyRequests", seconds(1))))},
      {"InternalError", some(6, is_write, always(Fault::answer(500, "InternalError")))},
      {"UnavailableForASecond",
       some(4, is_write, always(Fault::answer(503, "ServiceUnavailable", seconds(1))))},
      {"TimeoutAfterTheDeed", some(6, is_write, always(Fault::answer_after(504, "Timeout")))},
      {"ErrorAfterTheDeed", some(6, is_write, always(Fault::answer_after(500, "InternalError")))},
  };
}

std::vector<Case> faults_of_reads() {
  std::vector<Case> cases = {
      {"WatchCut", first(3, is_watch, cut_within(40'000))},
      {"WatchHeld", first(9, is_watch, always(Fault::delay(milliseconds(700))))},
      {"WatchSlow", first(9, is_watch, always(Fault::slow(2000, milliseconds(10))))},
      {"WatchRefusedAsGone", first(2, is_watch, always(Fault::answer(410, "Expired")))},
      {"WatchExpires", first(2, is_watch, always(Fault::of(Kind::kExpire)))},
      {"WatchEndless", first(2, is_watch, always(Fault::of(Kind::kEndless)))},
      {"WatchUnavailable", first(2, is_watch, always(Fault::answer(503, "ServiceUnavailable")))},
      {"ListCut", first(2, is_list, cut_within(100'000))},
      {"ListSlow", first(2, is_list, always(Fault::slow(1000, milliseconds(20))))},
      {"ListEndless", first(2, is_list, always(Fault::of(Kind::kEndless)))},
      {"ListError", first(2, is_list, always(Fault::answer(500, "InternalError")))},
      {"ListTooManyForASecond",
       first(2, is_list, always(Fault::answer(429, "TooManyRequests", seconds(1))))},
  };
  for (const char* resource : {"pods", "trainingjobs"}) {
    cases.push_back({std::string("ListOld_") + resource,
                     [=](uint64_t seed) { return stale_lists(resource, seed); }});
    cases.push_back({std::string("WatchHeld_") + resource,
                     first(
                         9,
                         [=](const ProxiedRequest& request) {
                           return is_watch(request) && request.resource == resource;
                         },
                         always(Fault::delay(milliseconds(1500))))});
  }
  return cases;
}

class ProxyFaultTest : public testing_support::ProxyTest {
 protected:
  /// The life of one job under one fault; complaints.
  std::string live(const Case& fault, uint64_t seed, const std::string& lane) {
    const auto subject = make_operator(lane);
    subject->proxy().script(fault.script(seed));
    subject->start();
    const auto began = std::chrono::steady_clock::now();
    const Status lived = GangWorkload(admin(), lane, "train").run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    const int64_t faults = subject->proxy().faults();
    std::cout << fmt::format("{:<24} {:>2} faults in {:>3} requests, {:5.1f} s\n", fault.name,
                             faults, subject->proxy().requests().size(), took.count());
    std::string complaint = lived ? "" : lived.error().message + "\n";
    if (faults == 0) complaint += "no request met the fault\n";
    complaint += subject->stop();
    if (complaint.empty()) {
      if (std::getenv("TRAINYARD_TEST_CASE")) std::cout << subject->log();
      return "";
    }
    return fault.name + ": " + complaint + subject->log();
  }

  /// Those whose name has TRAINYARD_TEST_CASE in it; without it, a sample.
  void live_all(const std::string& series, std::vector<Case> cases) {
    const char* const chosen = std::getenv("TRAINYARD_TEST_CASE");  // NOLINT(concurrency-mt-unsafe)
    int64_t index = 0;
    std::erase_if(cases, [&](const Case& one) {
      const bool in_sample = testing_support::in_sample(series, index++, kShare);
      return chosen != nullptr ? one.name.find(chosen) == std::string::npos : !in_sample;
    });
    const uint64_t seed = testing_support::test_seed();
    in_lanes(std::ssize(cases), [&](int, int64_t i) {
      const Case& one = cases[static_cast<size_t>(i)];
      return live(one, seed + std::hash<std::string>()(one.name), make_lane(std::to_string(i)));
    });
  }
};

TEST_F(ProxyFaultTest, AJobLivesRightWhateverBecomesOfWrites) {
  live_all("faults of writes", faults_of_writes());
}

TEST_F(ProxyFaultTest, AJobLivesRightWhateverBecomesOfListsAndWatches) {
  live_all("faults of reads", faults_of_reads());
}

}  // namespace
}  // namespace trainyard::apiserver
