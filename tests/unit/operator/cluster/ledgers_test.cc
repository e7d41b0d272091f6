#include "operator/cluster/ledgers.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/text/rfc3339.h"
#include "control/status_edit.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::cluster {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::status_body;

class LedgersTest : public testing::Test {
 protected:
  LedgersTest() {
    job_.name = "train";
    job_.namespace_name = "n";
    job_.uid = "u1";
    status_.start_time = Time(seconds(1000));
    status_.membership.generation = 3;
    status_.restarts.total = 2;
    status_.goodput.emplace();
    status_.goodput->productive = milliseconds(7500);
    status_.goodput->wall = milliseconds(7500);
  }

  void end_job(Time at) {
    status_.completion_time = at;
    status_.phase = api::JobPhase::kComplete;
    control::set_condition(
        status_, {api::ConditionType::kComplete, api::ConditionStatus::kTrue, "", ""}, at);
  }
  /// Of a job that ended so many seconds after the epoch.
  static json entry(int64_t end) {
    return {{"end", "Complete"}, {"endTime", text::format_time(Time(seconds(end)))}};
  }
  /// The ConfigMap of the namespace, as the server has it.
  void there(const json& data, const char* label = "true") {
    transport_.answer(200, json{{"metadata",
                                 {{"name", "trainyard-ledgers"},
                                  {"namespace", "n"},
                                  {"uid", "uid-of-map"},
                                  {"resourceVersion", "7"},
                                  {"labels", {{"trainyard.dev/ledgers", label}}}}},
                                {"data", data}}
                               .dump());
  }
  void refused(int code, const char* reason) {
    transport_.answer(code, status_body(code, reason, "as it is said"));
  }
  void taken() { transport_.answer(200, "{}"); }
  size_t calls() const { return transport_.requests().size(); }
  json sent() const { return json::parse(transport_.last_request().body); }

  api::ObjectMeta job_;
  api::TrainingJobStatus status_;
  testing_support::ManualClock clock_;
  testing_support::ScriptedTransport transport_;
  kube::Client client_{transport_, clock_, {}};
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  Ledgers ledgers_{client_, clock_, *logger_};
};

TEST_F(LedgersTest, TheEndOfAJobIsWrittenOnce) {
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(calls(), 0u) << "it runs";
  end_job(Time(seconds(2000)));
  refused(404, "NotFound");
  taken();
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(transport_.last_request().method, kube::Method::kPost);
  EXPECT_EQ(sent()["metadata"]["labels"]["trainyard.dev/ledgers"], "true");
  EXPECT_FALSE(sent()["metadata"].contains("ownerReferences")) << "it would go with the job";
  const json kept = json::parse(sent()["data"]["train.u1"].get<std::string>());
  EXPECT_EQ(kept["end"], "Complete");
  EXPECT_EQ(kept["endTime"], "1970-01-01T00:33:20Z");
  EXPECT_EQ(kept["goodput"]["productiveSeconds"], "7.5");
  EXPECT_EQ(kept["restarts"], 2);
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  EXPECT_FALSE(ledgers_.gone(job_, status_));
  ASSERT_TRUE(ledgers_.keep_gone().has_value());
  EXPECT_EQ(calls(), 2u);
}

TEST_F(LedgersTest, AJobOfTheSameNameIsAnotherEntry) {
  end_job(Time(seconds(2000)));
  there({{"train.u0", entry(1).dump()}});
  taken();
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(transport_.last_request().method, kube::Method::kPatch);
  EXPECT_TRUE(sent()["data"].contains("train.u1"));
  EXPECT_FALSE(sent()["data"].contains("train.u0"));
  EXPECT_EQ(sent()["metadata"]["uid"], "uid-of-map");
  EXPECT_EQ(sent()["metadata"]["resourceVersion"], "7");
}

TEST_F(LedgersTest, WhatAProcessBeforeHasWrittenIsNotWrittenAgain) {
  end_job(Time(seconds(2000)));
  there({{"train.u1", entry(1).dump()}, {"other.u2", entry(2).dump()}});
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(calls(), 1u);
  job_.name = "other";
  job_.uid = "u2";
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(calls(), 1u) << "known from the first look";
}

TEST_F(LedgersTest, TheOldestEndsMakeRoomAndAreNotBroughtBack) {
  json full = json::object();
  for (size_t i = 0; i < Ledgers::kKept; ++i)
    full["j.u" + std::to_string(100 + i)] = entry(static_cast<int64_t>(1000 + i)).dump();
  full["j.unreadable"] = "?";
  end_job(Time(seconds(9000)));
  there(full);
  taken();
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  const json change = sent()["data"];
  EXPECT_EQ(change.size(), 3u);
  EXPECT_TRUE(change["j.unreadable"].is_null());
  EXPECT_TRUE(change["j.u100"].is_null());
  job_.uid = "u-old";
  end_job(Time(seconds(1)));
  there(full);
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(transport_.last_request().method, kube::Method::kGet) << "older than all that is kept";
}

TEST_F(LedgersTest, AJobThatIsDeletedWhileItRunsIsWrittenAsItWasLast) {
  clock_.advance(seconds(30));
  EXPECT_TRUE(ledgers_.gone(job_, status_));
  EXPECT_TRUE(ledgers_.waits());
  EXPECT_EQ(calls(), 0u);
  refused(404, "NotFound");
  refused(500, "InternalError");
  EXPECT_FALSE(ledgers_.keep_gone().has_value());
  refused(404, "NotFound");
  taken();
  ASSERT_TRUE(ledgers_.keep_gone().has_value()) << "it waited";
  const json kept = json::parse(sent()["data"]["train.u1"].get<std::string>());
  EXPECT_EQ(kept["end"], "Deleted");
  EXPECT_EQ(kept["goodput"]["wallSeconds"], "7.5");
  EXPECT_TRUE(kept.contains("endTime"));
  ASSERT_TRUE(ledgers_.keep_gone().has_value());
  EXPECT_EQ(calls(), 4u);
}

TEST_F(LedgersTest, AJobThatNeverStartedHasNone) {
  status_.goodput.reset();
  ledgers_.gone(job_, status_);
  end_job(Time(seconds(2000)));
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  ASSERT_TRUE(ledgers_.keep_gone().has_value());
  EXPECT_EQ(calls(), 0u);
}

TEST_F(LedgersTest, WhatIsRefusedDoesNotHoldUpTheJob) {
  end_job(Time(seconds(2000)));
  there(json::object(), "false");
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value()) << "somebody else's";
  EXPECT_EQ(calls(), 1u);
  job_.uid = "u2";
  refused(404, "NotFound");
  refused(403, "Forbidden");
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value()) << "a quota";
  EXPECT_EQ(calls(), 3u);
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(calls(), 3u) << "not asked for at each look";
}

/// A caller would take kNotFound for a job that is gone.
TEST_F(LedgersTest, AConfigMapThatGoesMeanwhileIsMadeAgain) {
  end_job(Time(seconds(2000)));
  there({{"other.u2", entry(2).dump()}});
  refused(404, "NotFound");
  EXPECT_EQ(ledgers_.keep(job_, status_).error().code, ErrorCode::kConflict);
  refused(404, "NotFound");
  taken();
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(transport_.last_request().method, kube::Method::kPost);
}

TEST_F(LedgersTest, ANamespaceThatIsGoneKeepsNone) {
  end_job(Time(seconds(2000)));
  ledgers_.gone(job_, status_);
  refused(404, "NotFound");
  refused(404, "NotFound");
  ASSERT_TRUE(ledgers_.keep_gone().has_value());
  ASSERT_TRUE(ledgers_.keep_gone().has_value());
  EXPECT_EQ(calls(), 2u) << "it does not wait for another namespace of that name";
}

TEST_F(LedgersTest, AChangeOfSomebodyElseIsTriedAgain) {
  end_job(Time(seconds(2000)));
  there(json::object());
  refused(409, "Conflict");
  EXPECT_EQ(ledgers_.keep(job_, status_).error().code, ErrorCode::kConflict);
  refused(404, "NotFound");
  refused(409, "AlreadyExists");
  EXPECT_EQ(ledgers_.keep(job_, status_).error().code, ErrorCode::kConflict);
  there(json::object());
  taken();
  EXPECT_TRUE(ledgers_.keep(job_, status_).has_value());
}

TEST_F(LedgersTest, AnEndThatCannotBeWrittenIsGivenUpInTheEnd) {
  end_job(Time(seconds(2000)));
  refused(503, "ServiceUnavailable");
  EXPECT_FALSE(ledgers_.keep(job_, status_).has_value());
  clock_.advance(Ledgers::kTriesFor - seconds(1));
  refused(503, "ServiceUnavailable");
  EXPECT_FALSE(ledgers_.keep(job_, status_).has_value()) << "worth another try";
  clock_.advance(seconds(1));
  refused(503, "ServiceUnavailable");
  EXPECT_TRUE(ledgers_.keep(job_, status_).has_value()) << "the job's deletion waits for it";
  const size_t before = calls();
  EXPECT_TRUE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(calls(), before);
  job_.uid = "u2";
  refused(503, "ServiceUnavailable");
  EXPECT_FALSE(ledgers_.keep(job_, status_).has_value()) << "each job has its own tries";
}

TEST_F(LedgersTest, AFailureOfLongAgoDoesNotCount) {
  end_job(Time(seconds(2000)));
  refused(503, "ServiceUnavailable");
  EXPECT_FALSE(ledgers_.keep(job_, status_).has_value());
  ledgers_.forget(job_.uid);
  clock_.advance(Ledgers::kTriesFor);
  refused(503, "ServiceUnavailable");
  EXPECT_FALSE(ledgers_.keep(job_, status_).has_value());
}

TEST_F(LedgersTest, WhoTakesOverWritesWhatTheLeaderHasLeft) {
  ledgers_.gone(job_, status_);
  clock_.advance(Ledgers::kTriesFor - seconds(1));
  job_.uid = "u2";
  ledgers_.gone(job_, status_);
  job_.name = "other";
  job_.uid = "u3";
  ledgers_.gone(job_, status_);
  clock_.advance(seconds(1));
  there({{"train.u2", entry(1).dump()}});
  there({{"train.u2", entry(1).dump()}});
  taken();
  ASSERT_TRUE(ledgers_.keep_gone().has_value());
  EXPECT_EQ(calls(), 3u) << "one is the leader's, one is of so long ago that it must be";
  EXPECT_TRUE(sent()["data"].contains("other.u3"));
  EXPECT_FALSE(ledgers_.waits());
}

TEST_F(LedgersTest, AnEntryThatCannotBeWrittenLetsOthersPass) {
  ledgers_.gone(job_, status_);
  job_.name = "other";
  job_.namespace_name = "m";
  job_.uid = "u2";
  refused(500, "InternalError");
  EXPECT_FALSE(ledgers_.keep_gone().has_value());
  EXPECT_EQ(calls(), 1u) << "one failure a look";
  ledgers_.gone(job_, status_);
  refused(404, "NotFound");
  taken();
  refused(500, "InternalError");
  EXPECT_FALSE(ledgers_.keep_gone().has_value()) << "the first one fails again";
  EXPECT_THAT(transport_.requests()[2].path, testing::HasSubstr("/namespaces/m/"));
  EXPECT_EQ(calls(), 4u);
}

TEST_F(LedgersTest, AnEntryWhoseNextTryIsNotDueLetsOthersPass) {
  Duration answer = seconds(15);
  transport_.on_call([&](const kube::Request&) { clock_.advance(answer); });
  ledgers_.gone(job_, status_);
  refused(504, "Timeout");
  EXPECT_FALSE(ledgers_.keep_gone().has_value());
  answer = Duration::zero();
  job_.name = "other";
  job_.namespace_name = "m";
  job_.uid = "u2";
  ledgers_.gone(job_, status_);
  for (int failures = 0; failures < 2; ++failures) {
    refused(500, "InternalError");
    EXPECT_EQ(ledgers_.keep_gone().error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(transport_.last_request().path, testing::HasSubstr("/namespaces/m/"));
  }
  there({{"other.u2", entry(1).dump()}});
  const Status kept = ledgers_.keep_gone();
  ASSERT_FALSE(kept.has_value());
  EXPECT_EQ(kept.error().code, ErrorCode::kConflict) << "no news";
  EXPECT_THAT(kept.error().message, testing::HasSubstr("of namespace n for job train: too early"));
  EXPECT_EQ(calls(), 4u);
}

TEST_F(LedgersTest, OneLookWritesSomeOfManyEntries) {
  json stored = json::object();
  for (int i = 0; i < Ledgers::kAtOneLook + 2; ++i) {
    job_.uid = "u" + std::to_string(i);
    ledgers_.gone(job_, status_);
    stored["train." + job_.uid] = entry(1).dump();
  }
  there(stored);
  EXPECT_TRUE(ledgers_.keep_gone().has_value());
  EXPECT_TRUE(ledgers_.waits());
  EXPECT_TRUE(ledgers_.keep_gone().has_value());
  EXPECT_FALSE(ledgers_.waits());
}

TEST_F(LedgersTest, AServerThatIsSlowToFailIsAskedAfterAsLongAgain) {
  transport_.on_call([&](const kube::Request&) { clock_.advance(seconds(15)); });
  ledgers_.gone(job_, status_);
  refused(504, "Timeout");
  EXPECT_FALSE(ledgers_.keep_gone().has_value());
  end_job(Time(seconds(2000)));
  job_.uid = "u2";
  refused(504, "Timeout");
  EXPECT_FALSE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(calls(), 2u);
  EXPECT_FALSE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(calls(), 2u) << "looks of other reasons do not ask";
  there({{"train.u1", entry(1).dump()}});
  EXPECT_TRUE(ledgers_.keep_gone().has_value()) << "15 s have passed since";
  EXPECT_EQ(calls(), 3u);
  EXPECT_FALSE(ledgers_.waits());
  there({{"train.u2", entry(1).dump()}});
  EXPECT_TRUE(ledgers_.keep(job_, status_).has_value());
}

TEST_F(LedgersTest, WhoMeetsAnotherInANamespaceDoesNotWaitForTheServer) {
  end_job(Time(seconds(2000)));
  api::ObjectMeta second = job_;
  second.uid = "u2";
  bool asked = false;
  // The server answers the first one only when the second one has its answer.
  transport_.on_call([&](const kube::Request&) {
    if (std::exchange(asked, true)) return;
    const Status kept = ledgers_.keep(second, status_);
    ASSERT_FALSE(kept.has_value());
    EXPECT_EQ(kept.error().code, ErrorCode::kUnavailable) << "to be tried again";
  });
  refused(404, "NotFound");
  taken();
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(calls(), 2u);
  there({{"train.u1", entry(1).dump()}});
  taken();
  EXPECT_TRUE(ledgers_.keep(second, status_).has_value());
}

TEST_F(LedgersTest, NamespacesDoNotWaitForEachOther) {
  end_job(Time(seconds(2000)));
  api::ObjectMeta elsewhere = job_;
  elsewhere.namespace_name = "m";
  bool asked = false;
  // While the server lets the first one wait.
  transport_.on_call([&](const kube::Request& request) {
    if (std::exchange(asked, true)) return;
    EXPECT_THAT(request.path, testing::HasSubstr("/namespaces/n/"));
    EXPECT_TRUE(ledgers_.keep(elsewhere, status_).has_value());
  });
  for (int i = 0; i < 2; ++i) {
    refused(404, "NotFound");
    taken();
  }
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(calls(), 4u);
}

TEST_F(LedgersTest, AServerThatDoesNotAnswerHoldsUpFewCallers) {
  end_job(Time(seconds(2000)));
  std::vector<api::ObjectMeta> others(2, job_);
  others[0].namespace_name = "m";
  others[1].namespace_name = "o";
  size_t asked = 0;
  // The server answers the first one only when the second one has its answer, and so on.
  transport_.on_call([&](const kube::Request&) {
    if (asked >= others.size()) return;
    const bool is_one_too_many = ++asked == Ledgers::kWriters;
    const Status kept = ledgers_.keep(others[asked - 1], status_);
    ASSERT_EQ(kept.has_value(), !is_one_too_many);
    if (!is_one_too_many) return;
    EXPECT_EQ(kept.error().code, ErrorCode::kUnavailable) << "to be tried again";
    EXPECT_THAT(kept.error().message, testing::HasSubstr("of namespace o for job train"));
  });
  for (int i = 0; i < Ledgers::kWriters; ++i) {
    refused(404, "NotFound");
    taken();
  }
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(calls(), 4u);
  refused(404, "NotFound");
  taken();
  EXPECT_TRUE(ledgers_.keep(others[1], status_).has_value());
}

TEST_F(LedgersTest, WhatIsKnownOfNamespacesIsBounded) {
  end_job(Time(seconds(2000)));
  const auto look_into = [&](const std::string& ns) {
    job_.namespace_name = ns;
    job_.uid = "u1";
    there({{"train.u1", entry(1).dump()}, {"train.u2", entry(2).dump()}});
    ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
    ledgers_.forget(job_.uid);
  };
  for (size_t i = 0; i < Ledgers::kMaxNamespaces; ++i)
    look_into("n" + std::to_string(i));
  job_.namespace_name = "n0";
  job_.uid = "u2";
  const size_t before = calls();
  ASSERT_TRUE(ledgers_.keep(job_, status_).has_value());
  EXPECT_EQ(calls(), before) << "known";
  ledgers_.forget("u2");
  look_into("another");
  look_into("n0");
  EXPECT_EQ(calls(), before + 2) << "known no more";
}

}  // namespace
}  // namespace trainyard::cluster
