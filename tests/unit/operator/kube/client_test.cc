#include "operator/kube/client.h"

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "operator/kube/watch_event.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::kube {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing_support::EndOfStream;
using testing_support::status_body;

class ClientTest : public testing::Test {
 protected:
  Client client(Client::Options options = {}) { return {transport_, clock_, std::move(options)}; }
  json sent() { return json::parse(transport_.last_request().body); }

  testing_support::ScriptedTransport transport_;
  testing_support::ManualClock clock_;
};

const json kPod = {{"metadata", {{"name", "p"}, {"namespace", "n"}, {"resourceVersion", "7"}}}};

TEST_F(ClientTest, GetsAnObjectWithoutManagedFields) {
  transport_.answer(200, R"({"kind":"Pod","metadata":{"name":"p","managedFields":[{}]}})");
  const auto pod = client().get(kPods, {"n", "p"});
  ASSERT_TRUE(pod.has_value());
  EXPECT_EQ(*pod, json::parse(R"({"kind":"Pod","metadata":{"name":"p"}})"));
  const Request request = transport_.last_request();
  EXPECT_EQ(request.method, Method::kGet);
  EXPECT_EQ(request.path, "/api/v1/namespaces/n/pods/p");
  EXPECT_EQ(request.query, "");
  EXPECT_EQ(request.body, "");
}

/// The longest that an admission webhook may take, whose failure may be ignored.
TEST_F(ClientTest, AChangeMayTakeAsLongAsAWebhookMay) {
  const std::chrono::seconds webhook(30);
  transport_.answer(200, "{}");
  ASSERT_TRUE(client().get(kPods, {"n", "p"}).has_value());
  EXPECT_LT(transport_.last_patience().limit, webhook) << "nobody but the server is asked";
  transport_.answer(201, "{}");
  ASSERT_TRUE(client().create(kPods, "n", kPod, {.dry_run = DryRun::kServer}).has_value());
  EXPECT_GT(transport_.last_patience().limit, webhook);
  transport_.answer(200, "{}");
  ASSERT_TRUE(client().remove(kPods, {"n", "p"}, {}).has_value());
  EXPECT_GT(transport_.last_patience().limit, webhook);
  const Client hurried =
      client({.timeout = std::chrono::seconds(4), .write_timeout = std::chrono::seconds(4)});
  transport_.answer(200, "{}");
  ASSERT_TRUE(hurried.update(kPods, kPod).has_value());
  EXPECT_EQ(transport_.last_patience().limit, std::chrono::seconds(4));
}

TEST_F(ClientTest, ListsPageByPage) {
  transport_.answer(200, R"({"metadata":{"resourceVersion":"9","continue":"tok/en"},)"
                         R"("items":[{"metadata":{"name":"a"}}]})");
  const auto page = client().list(kPods, "n", {.label_selector = "a=b,c", .limit = 2});
  ASSERT_TRUE(page.has_value());
  EXPECT_EQ(page->items.size(), 1u);
  EXPECT_EQ(page->resource_version, "9");
  EXPECT_EQ(page->next, "tok/en");
  EXPECT_EQ(transport_.last_request().query, "labelSelector=a%3Db%2Cc&limit=2");
  transport_.answer(200, R"({"metadata":{"resourceVersion":"9"},"items":null})");
  const auto last = client().list(kPods, "", {.limit = 2, .next = page->next});
  ASSERT_TRUE(last.has_value());
  EXPECT_TRUE(last->items.empty());
  EXPECT_EQ(last->next, "");
  EXPECT_EQ(transport_.last_request().query, "limit=2&continue=tok%2Fen");
}

TEST_F(ClientTest, RefusesAnAnswerThatIsNoList) {
  for (const char* body : {R"({"items":[]})", R"({"metadata":{"resourceVersion":"1"}})",
                           R"({"metadata":{"resourceVersion":"1"},"items":{}})", "[]", "{", ""}) {
    transport_.answer(200, body);
    const auto page = client().list(kPods, "", {});
    ASSERT_FALSE(page.has_value()) << body;
    EXPECT_EQ(page.error().status, 200);
    EXPECT_EQ(page.error().reason, Reason::kUnknown);
  }
}

TEST_F(ClientTest, CreatesWithTypeAndOptions) {
  transport_.answer(201, R"({"metadata":{"uid":"u"}})");
  const auto made = client().create(
      kPods, "n", kPod, {.dry_run = DryRun::kServer, .field_validation = FieldValidation::kStrict});
  ASSERT_TRUE(made.has_value());
  const Request request = transport_.last_request();
  EXPECT_EQ(request.method, Method::kPost);
  EXPECT_EQ(request.path, "/api/v1/namespaces/n/pods");
  EXPECT_EQ(request.query, "dryRun=All&fieldValidation=Strict");
  EXPECT_EQ(request.content_type, "application/json");
  EXPECT_EQ(sent()["kind"], "Pod");
  EXPECT_EQ(sent()["apiVersion"], "v1");
}

TEST_F(ClientTest, ReplacesObjectAndStatusByTheNameWithin) {
  transport_.answer(200, "{}");
  ASSERT_TRUE(client().update(kPods, kPod).has_value());
  EXPECT_EQ(transport_.last_request().method, Method::kPut);
  EXPECT_EQ(transport_.last_request().path, "/api/v1/namespaces/n/pods/p");
  EXPECT_EQ(sent()["metadata"]["resourceVersion"], "7");
  transport_.answer(200, "{}");
  ASSERT_TRUE(client().update_status(kTrainingJobs, kPod).has_value());
  EXPECT_EQ(transport_.last_request().path,
            "/apis/trainyard.dev/v1alpha1/namespaces/n/trainingjobs/p/status");
  EXPECT_EQ(sent()["apiVersion"], "trainyard.dev/v1alpha1");
}

TEST_F(ClientTest, PatchesOnlyTheObjectThatIsMeant) {
  transport_.answer(200, "{}");
  const json change = {{"metadata", {{"labels", {{"x", nullptr}}}}}};
  ASSERT_TRUE(client().merge_patch(kPods, {"n", "p"}, change, {"u", "7"}).has_value());
  EXPECT_EQ(transport_.last_request().content_type, "application/merge-patch+json");
  EXPECT_EQ(sent(), json::parse(R"({"metadata":{"labels":{"x":null},"uid":"u",)"
                                R"("resourceVersion":"7"}})"));
}

TEST_F(ClientTest, APatchForAnotherUidIsAConflict) {
  const std::string immutable =
      status_body(422, "Invalid", "ConfigMap is invalid",
                  R"({"causes":[{"reason":"FieldValueInvalid","field":"metadata.uid"}]})");
  const auto patch = [&](const Preconditions& preconditions) {
    transport_.answer(422, immutable);
    return client().merge_patch(kPods, {"n", "p"}, json::object(), preconditions).error();
  };
  EXPECT_EQ(patch({"u", ""}).reason, Reason::kConflict);
  EXPECT_EQ(patch({"u", ""}).status, 422);
  EXPECT_EQ(patch({"", "7"}).reason, Reason::kInvalid) << "then it is the change itself";
  transport_.answer(403, status_body(403, "Forbidden", "a webhook refuses it",
                                     R"({"causes":[{"field":"metadata.uid"}]})"));
  EXPECT_EQ(client().merge_patch(kPods, {"n", "p"}, json::object(), {"u", ""}).error().reason,
            Reason::kForbidden);
}

TEST_F(ClientTest, DeletesWithPreconditions) {
  transport_.answer(200, "{}");
  ASSERT_TRUE(client()
                  .remove(kPods, {"n", "p"},
                          {.preconditions = {"u", "7"},
                           .propagation = Propagation::kForeground,
                           .grace_seconds = 0})
                  .has_value());
  EXPECT_EQ(transport_.last_request().method, Method::kDelete);
  EXPECT_EQ(sent(), json::parse(R"({"apiVersion":"v1","kind":"DeleteOptions",)"
                                R"("preconditions":{"uid":"u","resourceVersion":"7"},)"
                                R"("propagationPolicy":"Foreground","gracePeriodSeconds":0})"));
  transport_.answer(200, "{}");
  ASSERT_TRUE(client().remove(kPods, {"n", "p"}, {}).has_value());
  EXPECT_EQ(sent(), json::parse(R"({"apiVersion":"v1","kind":"DeleteOptions"})"));
}

TEST_F(ClientTest, GivesTheServersError) {
  transport_.answer(409, status_body(409, "AlreadyExists", "pods \"p\" already exists"));
  const auto made = client().create(kPods, "n", kPod);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().reason, Reason::kAlreadyExists);
  transport_.fail({ErrorCode::kUnavailable, "cut off"});
  const auto lost = client().create(kPods, "n", kPod);
  ASSERT_FALSE(lost.has_value());
  EXPECT_EQ(lost.error().reason, Reason::kNoAnswer);
}

TEST_F(ClientTest, ACallThatIsWantedLaterIsNotMadeBefore) {
  const Client patient = client();
  transport_.answer(429, status_body(429, "TooManyRequests", "busy"), std::chrono::seconds(3));
  EXPECT_EQ(patient.create(kPods, "n", kPod).error().retry_after, std::chrono::seconds(3));
  clock_.advance(std::chrono::seconds(1));
  const auto early = patient.create(kPods, "n", kPod);
  ASSERT_FALSE(early.has_value());
  EXPECT_EQ(early.error().reason, Reason::kTooManyRequests);
  EXPECT_EQ(early.error().retry_after, std::chrono::seconds(2));
  EXPECT_EQ(transport_.requests().size(), 1u);
  transport_.answer(201, "{}");
  EXPECT_TRUE(patient.create(kPods, "other", kPod).has_value()) << "another call";
  clock_.advance(std::chrono::seconds(2));
  transport_.answer(201, "{}");
  EXPECT_TRUE(patient.create(kPods, "n", kPod).has_value());
}

TEST_F(ClientTest, OnlyWhatPassesDefersACall) {
  const Client patient = client();
  transport_.answer(409, status_body(409, "Conflict", "lost"), std::chrono::seconds(3));
  EXPECT_FALSE(patient.create(kPods, "n", kPod).has_value());
  transport_.answer(201, "{}");
  EXPECT_TRUE(patient.create(kPods, "n", kPod).has_value());
}

TEST_F(ClientTest, ReportsEveryCall) {
  std::vector<std::string> calls;
  Client reporting = client({.on_call = [&](const CallReport& report) {
    calls.push_back(std::string(name_of(report.method)) + " " + std::to_string(report.status) +
                    " " + std::to_string(report.took.count()));
  }});
  transport_.on_call([&](const Request&) { clock_.advance(Duration(5)); });
  transport_.answer(200, "{}");
  (void)reporting.get(kPods, {"n", "p"});
  transport_.fail({ErrorCode::kUnavailable, "cut off"});
  (void)reporting.create(kPods, "n", kPod);
  transport_.refuse_stream(403, "");
  (void)reporting.watch(kPods, "", {.idle = std::chrono::seconds(1)});
  EXPECT_THAT(calls, testing::ElementsAre("GET 200 5", "POST 0 5", "GET 403 5"));
}

TEST_F(ClientTest, SendsNoChangeThatItMayNotMake) {
  bool may = false;
  const Client fenced = client({.may_write = [&] { return may; }});
  const auto refused = fenced.create(kPods, "n", kPod);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().reason, Reason::kNoAnswer);
  EXPECT_EQ(refused.error().no_answer, ErrorCode::kAborted);
  EXPECT_FALSE(fenced.remove(kPods, {"n", "p"}, {}).has_value());
  EXPECT_TRUE(transport_.requests().empty());
  transport_.answer(200, kPod.dump());
  EXPECT_TRUE(fenced.get(kPods, {"n", "p"}).has_value()) << "reading is free";
  may = true;
  transport_.answer(201, kPod.dump());
  EXPECT_TRUE(fenced.create(kPods, "n", kPod).has_value());
}

TEST_F(ClientTest, WaitsForItsTurnUntilStopped) {
  TokenBucket bucket(0.001, 1);
  std::stop_source stop;
  const Client limited = client({.limiter = &bucket, .stop = stop.get_token()});
  transport_.answer(200, "{}");
  ASSERT_TRUE(limited.get(kPods, {"n", "p"}).has_value());
  std::jthread stopper([&] { stop.request_stop(); });
  const auto second = limited.get(kPods, {"n", "p"});  // its turn would come in 1,000 s
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().reason, Reason::kNoAnswer);
  EXPECT_EQ(second.error().no_answer, ErrorCode::kAborted);
  EXPECT_EQ(transport_.requests().size(), 1u);
}

TEST_F(ClientTest, WatchGivesEventsAndItsEnd) {
  transport_.stream({R"({"type":"ADDED","object":{"metadata":{"name":"a"}}})",
                     R"({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8"}}})",
                     EndOfStream{}});
  auto watch = client().watch(kPods, "n",
                              {.label_selector = "l",
                               .resource_version = "7",
                               .timeout_seconds = 301,
                               .idle = std::chrono::minutes(2)});
  ASSERT_TRUE(watch.has_value());
  EXPECT_EQ(transport_.last_request().query,
            "watch=true&allowWatchBookmarks=true&labelSelector=l&resourceVersion=7"
            "&timeoutSeconds=301");
  EXPECT_EQ(transport_.last_patience().idle, std::chrono::minutes(2));
  EXPECT_EQ(transport_.last_patience().limit, std::chrono::seconds(30));
  auto event = watch->next();
  ASSERT_TRUE(event.has_value() && *event);
  EXPECT_EQ((**event).type, EventType::kAdded);
  EXPECT_EQ((**event).object["metadata"]["name"], "a");
  event = watch->next();
  ASSERT_TRUE(event.has_value() && *event);
  EXPECT_EQ((**event).type, EventType::kBookmark);
  for (int i = 0; i < 2; ++i) {
    event = watch->next();
    ASSERT_TRUE(event.has_value());
    EXPECT_FALSE(event->has_value());
  }
}

TEST_F(ClientTest, WatchIsOverAfterAnError) {
  transport_.stream(
      {"{\"type\":\"ERROR\",\"object\":" + status_body(410, "Expired", "too old") + "}",
       R"({"type":"ADDED","object":{}})"});
  auto watch = client().watch(kPods, "", {.idle = std::chrono::seconds(9)});
  ASSERT_TRUE(watch.has_value());
  const auto event = watch->next();
  ASSERT_FALSE(event.has_value());
  EXPECT_TRUE(event.error().needs_relist());
  const auto after = watch->next();
  ASSERT_TRUE(after.has_value());
  EXPECT_FALSE(after->has_value());
}

TEST(WatchEventTest, RefusesWhatIsNoEvent) {
  for (const char* line : {"", "null", "[]", "{}", R"({"type":"ADDED"})",
                           R"({"type":"ADDED","object":[]})", R"({"type":"HELLO","object":{}})",
                           R"({"type":1,"object":{}})", R"({"type":"ADDED","obj)"}) {
    const auto event = decode_event(line);
    ASSERT_FALSE(event.has_value()) << line;
    EXPECT_EQ(event.error().reason, Reason::kUnknown);
    EXPECT_EQ(event.error().status, 200);
    EXPECT_THAT(event.error().message, HasSubstr("no watch event"));
  }
}

TEST(WatchEventTest, AnErrorIsWhatItsStatusSays) {
  const auto odd = decode_event(R"({"type":"ERROR","object":{"code":99999999999}})");
  ASSERT_FALSE(odd.has_value());
  EXPECT_EQ(odd.error().status, 500);
  EXPECT_EQ(odd.error().reason, Reason::kInternalError);
}

}  // namespace
}  // namespace trainyard::kube
