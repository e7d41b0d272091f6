// What may become of a leader at the writes of its Lease, and between them.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/proxy_lanes.h"

namespace trainyard::apiserver {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing_support::Fault;
using testing_support::FaultScript;
using testing_support::GangWorkload;
using testing_support::OperatorPair;
using testing_support::ProxiedOperator;
using testing_support::ProxiedRequest;
using Kind = Fault::Kind;

/// Nobody takes a lease before it was seen unrenewed for so long.
constexpr seconds kLease{15};
/// EX_TEMPFAIL: the leadership was lost.
constexpr int kLeadershipLost = 75;

/// What follows from it.
enum class Outcome {
  kLeadsOn,   ///< the first operator leads all the time
  kNeverLed,  ///< it dies before it has taken the Lease: the second takes it at once
  kDies,      ///< it is killed; the second takes over when the lease has run out
  kGivesUp,   ///< it ends by itself, as one who cannot renew
};

struct Case {
  std::string name;
  Kind kind = Kind::kNone;  ///< kNone: it is killed a second after a renewal
  /// Which writes of its Lease meet the fault; the first is the one by which it becomes the leader.
  int64_t from = 1;
  int64_t to = 1;
  Outcome outcome = Outcome::kLeadsOn;
};

constexpr int64_t kEver = 1'000'000;

std::vector<Case> cases() {
  return {
      {"TakingAnswerLost", Kind::kLoseAnswer, 1, 1, Outcome::kLeadsOn},
      {"TakingNeverAnswered", Kind::kNoAnswer, 1, 1, Outcome::kLeadsOn},
      {"DeadBeforeTaking", Kind::kCrashBefore, 1, 1, Outcome::kNeverLed},
      {"DeadAfterTaking", Kind::kCrashAfter, 1, 1, Outcome::kDies},
      {"RenewalLost", Kind::kLoseRequest, 3, 4, Outcome::kLeadsOn},
      {"RenewalAnswerLost", Kind::kLoseAnswer, 3, 4, Outcome::kLeadsOn},
      {"RenewalNeverAnswered", Kind::kNoAnswer, 3, 3, Outcome::kLeadsOn},
      {"DeadBeforeRenewal", Kind::kCrashBefore, 3, 3, Outcome::kDies},
      {"DeadAfterRenewal", Kind::kCrashAfter, 3, 3, Outcome::kDies},
      {"DeadBetweenRenewals", Kind::kNone, 3, 3, Outcome::kDies},
      {"NoRenewalArrives", Kind::kLoseRequest, 3, kEver, Outcome::kGivesUp},
      // The server has each of them: nobody else may lead, and it cannot know that it does.
      {"NoRenewalIsAnswered", Kind::kLoseAnswer, 3, kEver, Outcome::kGivesUp},
  };
}

FaultScript script_of(const Case& one) {
  return [=, written = int64_t{0}](const ProxiedRequest& request) mutable {
    if (request.resource != "leases" || request.write == 0) return Fault::none();
    ++written;
    return written >= one.from && written <= one.to ? Fault::of(one.kind) : Fault::none();
  };
}

/// The writes of the Lease that it has made, or tried to.
std::vector<steady_clock::time_point> lease_writes(ProxiedOperator& member) {
  std::vector<steady_clock::time_point> found;
  for (const ProxiedRequest& request : member.proxy().requests())
    if (request.resource == "leases" && request.write > 0) found.push_back(request.at);
  return found;
}

Status await(const std::string& what, const std::function<bool()>& holds) {
  const auto deadline = steady_clock::now() + seconds(60);
  while (!holds()) {
    if (steady_clock::now() >= deadline) return Error{ErrorCode::kDeadline, "60 s long: " + what};
    std::this_thread::sleep_for(milliseconds(50));
  }
  return {};
}

Error wrong(const std::string& what) { return {ErrorCode::kInternal, what}; }

class ProxyLeaseTest : public testing_support::ProxyTest {
 protected:
  /// The life of one job, in the midst of which the first operator meets its fate.
  Status live(const Case& one, const std::string& lane, OperatorPair& pair) {
    ProxiedOperator& first = pair.first();
    TRAINYARD_TRY(pair.start(first, script_of(one)));
    TRAINYARD_TRY(await("the first operator takes the Lease, or dies",
                        [&] { return first.end() || pair.lease().holder == first.identity(); }));
    TRAINYARD_TRY(pair.start(pair.second()));
    const GangWorkload job(admin(), lane, "train");
    TRAINYARD_TRY(job.create());
    if (one.kind == Kind::kNone) TRAINYARD_TRY(kill_after_renewal(first));
    TRAINYARD_TRY(one.outcome == Outcome::kLeadsOn ? await_renewals(first, one)
                                                   : await_end(first, one));
    TRAINYARD_TRY(job.kill_a_pod());
    TRAINYARD_TRY(job.scale());
    TRAINYARD_TRY(job.remove());
    return judge(one, pair);
  }

  static Status kill_after_renewal(ProxiedOperator& first) {
    const size_t before = lease_writes(first).size();
    TRAINYARD_TRY(await("a renewal", [&] { return lease_writes(first).size() > before; }));
    std::this_thread::sleep_for(seconds(1));  // the next comes a second later
    first.kill();
    return {};
  }

  /// It has got over what it met: a renewal has gone through since.
  static Status await_renewals(ProxiedOperator& first, const Case& one) {
    return await("renewals after the fault",
                 [&] { return first.end() || std::ssize(lease_writes(first)) > one.to + 1; });
  }

  static Status await_end(ProxiedOperator& first, const Case& one) {
    TRAINYARD_TRY(await("the leader ends", [&] { return first.end().has_value(); }));
    const auto end = first.end();
    const bool killed = end->signal == SIGKILL;
    if (one.outcome == Outcome::kGivesUp ? end->signal == 0 && end->exit_code == kLeadershipLost
                                         : killed)
      return {};
    return wrong(fmt::format("it has ended with code {}, signal {}", end->exit_code, end->signal));
  }

  static Status judge(const Case& one, OperatorPair& pair) {
    const OperatorPair::Lease lease = pair.lease();
    const bool replaced = one.outcome != Outcome::kLeadsOn;
    const std::string wanted = (replaced ? pair.second() : pair.first()).identity();
    const int64_t transitions = replaced && one.outcome != Outcome::kNeverLed ? 1 : 0;
    if (lease.holder != wanted || lease.transitions != transitions) {
      return wrong(
          fmt::format("wanted the Lease to be {}'s after {} transitions, it is {}'s after {}",
                      wanted, transitions, lease.holder, lease.transitions));
    }
    if (one.kind != Kind::kNone && pair.first().proxy().faults() == 0)
      return wrong("no request met the fault");
    if (!replaced || one.outcome == Outcome::kNeverLed) return {};
    std::vector<steady_clock::time_point> renewed = lease_writes(pair.first());
    if (one.kind == Kind::kCrashBefore) renewed.pop_back();  // which the server never saw
    if (one.kind == Kind::kLoseRequest) renewed.resize(static_cast<size_t>(one.from - 1));
    const std::chrono::duration<double> vacant =
        lease_writes(pair.second()).front() - renewed.back();
    std::cout << fmt::format("{:<22} taken over {:.1f} s after the last renewal\n", one.name,
                             vacant.count());
    if (vacant >= kLease) return {};
    return wrong(fmt::format("the lease was taken {:.1f} s after it was renewed", vacant.count()));
  }
};

TEST_F(ProxyLeaseTest, NobodyElseLeadsUntilTheLeaseHasRunOut) {
  const std::vector<Case> all = cases();
  in_lanes(
      std::ssize(all),
      [&](int, int64_t i) -> std::string {
        const Case& one = all[static_cast<size_t>(i)];
        const std::string lane = make_lane(std::to_string(i));
        const auto pair = make_pair(lane);
        const Status lived = live(one, lane, *pair);
        const std::string complaint = (lived ? "" : lived.error().message + "\n") + pair->stop();
        return complaint.empty() ? "" : one.name + ": " + complaint + pair->log();
      },
      12);
}

}  // namespace
}  // namespace trainyard::apiserver
