#include "operator/cluster/event_recorder.h"

#include <chrono>
#include <memory>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::cluster {
namespace {

using control::EventType;
using nlohmann::json;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;
using testing_support::status_body;

class EventRecorderTest : public testing::Test {
 protected:
  EventRecorderTest() {
    job_.name = "bert";
    job_.namespace_name = "ns";
    job_.uid = "job-1";
  }

  /// Records one event, which the server takes.
  void record(const control::Event& event) {
    transport_.answer(201, "{}");
    recorder_.record(job_, event);
  }
  size_t calls() const { return transport_.requests().size(); }
  json sent() const { return json::parse(transport_.last_request().body); }

  api::ObjectMeta job_;
  testing_support::ManualClock clock_;
  testing_support::ScriptedTransport transport_;
  kube::Client client_{transport_, clock_, {}};
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  EventRecorder recorder_{client_, clock_, *logger_, "operator-7"};
};

const control::Event kStarted{EventType::kNormal, "Started", "generation 1 on 2 nodes"};

TEST_F(EventRecorderTest, AnEventSaysWhatWhoAndAboutWhom) {
  record({EventType::kWarning, "Restarting", "pod bert-0 failed"});
  ASSERT_EQ(calls(), 1u);
  const kube::Request request = transport_.last_request();
  EXPECT_EQ(request.method, kube::Method::kPost);
  EXPECT_EQ(request.path, "/apis/events.k8s.io/v1/namespaces/ns/events");
  const json event = sent();
  EXPECT_EQ(event["type"], "Warning");
  EXPECT_EQ(event["reason"], "Restarting");
  EXPECT_EQ(event["note"], "pod bert-0 failed");
  EXPECT_EQ(event["action"], "Reconcile");
  EXPECT_EQ(event["reportingController"], "trainyard-operator");
  EXPECT_EQ(event["reportingInstance"], "operator-7");
  EXPECT_EQ(event["metadata"]["namespace"], "ns");
  EXPECT_THAT(event["metadata"]["name"].get<std::string>(), testing::StartsWith("bert."));
  EXPECT_EQ(event["regarding"]["kind"], "TrainingJob");
  EXPECT_EQ(event["regarding"]["name"], "bert");
  EXPECT_EQ(event["regarding"]["uid"], "job-1");
  record(kStarted);
  EXPECT_EQ(sent()["type"], "Normal");
}

TEST_F(EventRecorderTest, ALongMessageIsCutToWhatTheServerTakes) {
  std::string message = "admission webhook denied the request: ";
  while (message.size() < 3000)
    message += "\xe2\x9c\x97 label owner is missing; ";
  record({EventType::kWarning, "AdmissionRefused", message});
  const std::string note = sent()["note"];
  EXPECT_LE(note.size(), 1024U) << "events.k8s.io/v1 counts bytes";
  EXPECT_GT(note.size(), 1000U);
  EXPECT_EQ(note.substr(0, 900), message.substr(0, 900));
  EXPECT_THAT(note, testing::EndsWith("..."));
}

TEST_F(EventRecorderTest, WhatIsSaidAgainCountsUpTheFirst) {
  record(kStarted);
  const std::string name = sent()["metadata"]["name"];
  for (int64_t count = 2; count <= 3; ++count) {
    clock_.advance(minutes(5));  // each time anew: the series goes on as long as it is said
    record(kStarted);
    EXPECT_EQ(transport_.last_request().method, kube::Method::kPatch);
    EXPECT_THAT(transport_.last_request().path, testing::EndsWith("/events/" + name));
    EXPECT_EQ(sent()["series"]["count"], count);
    EXPECT_TRUE(sent()["series"]["lastObservedTime"].is_string());
  }
}

TEST_F(EventRecorderTest, AfterAWhileItIsANewEvent) {
  record(kStarted);
  const std::string name = sent()["metadata"]["name"];
  clock_.advance(EventRecorder::kSeriesTime);
  record(kStarted);
  EXPECT_EQ(transport_.last_request().method, kube::Method::kPatch) << "just in time";
  clock_.advance(EventRecorder::kSeriesTime + seconds(1));
  record(kStarted);
  EXPECT_EQ(transport_.last_request().method, kube::Method::kPost);
  EXPECT_NE(sent()["metadata"]["name"], name);
}

TEST_F(EventRecorderTest, ReasonMessageAndJobMakeASeries) {
  record(kStarted);
  record({EventType::kNormal, "Started", "generation 2 on 2 nodes"});
  record({EventType::kNormal, "Resumed", kStarted.message});
  job_.uid = "job-2";
  record(kStarted);
  std::set<std::string> names;
  for (const kube::Request& request : transport_.requests()) {
    EXPECT_EQ(request.method, kube::Method::kPost);
    names.insert(json::parse(request.body)["metadata"]["name"]);
  }
  EXPECT_EQ(names.size(), 4u) << "each has a name of its own, at the same moment too";
}

TEST_F(EventRecorderTest, AnEventThatTheServerHasForgottenIsWrittenAgain) {
  record(kStarted);
  transport_.answer(404, status_body(404, "NotFound", "gone"));
  record(kStarted);
  ASSERT_EQ(calls(), 3u);
  EXPECT_EQ(transport_.last_request().method, kube::Method::kPost);
}

TEST_F(EventRecorderTest, OneJobSaysSoMuchAtOnceAndThenOneInAWhile) {
  const auto say = [&](int64_t i) {
    record({EventType::kNormal, "Reason", "number " + std::to_string(i)});
  };
  for (int64_t i = 0; i < EventRecorder::kBurst + 3; ++i)
    say(i);
  EXPECT_EQ(calls(), static_cast<size_t>(EventRecorder::kBurst));
  clock_.advance(EventRecorder::kRefill);
  say(100);
  say(101);
  EXPECT_EQ(calls(), static_cast<size_t>(EventRecorder::kBurst) + 1);
  job_.uid = "job-2";
  record(kStarted);
  EXPECT_EQ(calls(), static_cast<size_t>(EventRecorder::kBurst) + 2)
      << "others are not quieter for it";
}

TEST_F(EventRecorderTest, AfterALongSilenceThereIsOneBurstAndNoMore) {
  record(kStarted);
  clock_.advance(EventRecorder::kRefill * 1000);
  for (int64_t i = 0; i < EventRecorder::kBurst + 3; ++i)
    record({EventType::kNormal, "Reason", "number " + std::to_string(i)});
  EXPECT_EQ(calls(), 1 + static_cast<size_t>(EventRecorder::kBurst));
}

TEST_F(EventRecorderTest, AnEventThatCannotBeWrittenIsDropped) {
  transport_.answer(403, status_body(403, "Forbidden", "no"));
  recorder_.record(job_, kStarted);
  EXPECT_EQ(calls(), 1u);
}

}  // namespace
}  // namespace trainyard::cluster
