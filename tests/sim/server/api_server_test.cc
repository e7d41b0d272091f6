// The simulated server does what the real one does, as far as the operator can tell.
#include "tests/support/sim/api_server.h"

#include <gtest/gtest.h>

#include "tests/support/manual_clock.h"
#include "tests/support/sim/watch_server.h"

namespace trainyard::sim {
namespace {

using std::chrono::seconds;

class ApiServerTest : public testing::Test {
 protected:
  Answer call(const std::string& verb, const std::string& plural, const std::string& name,
              Json body = Json::object(), const std::string& subresource = {}) {
    Call made;
    made.user = "somebody";
    made.verb = verb;
    made.object = {plural, "n", name};
    made.subresource = subresource;
    made.body = std::move(body);
    return api_.call(made);
  }
  Answer create(const std::string& plural, const std::string& name, Json more = Json::object()) {
    more["metadata"]["name"] = name;
    return call("create", plural, name, std::move(more));
  }
  Json stored(const std::string& plural, const std::string& name) {
    const Object found = store_.find({plural, "n", name});
    return found ? *found : Json();
  }

  testing_support::ManualClock clock_;
  Store store_{clock_};
  ApiServer api_{store_, clock_};
};

TEST_F(ApiServerTest, ANameIsTakenOnce) {
  EXPECT_EQ(create("pods", "a").code, 201);
  const Answer again = create("pods", "a");
  EXPECT_EQ(again.code, 409);
  EXPECT_EQ(again.body["reason"], "AlreadyExists");
}

TEST_F(ApiServerTest, ADryRunMakesNothing) {
  Call dry;
  dry.verb = "create";
  dry.object = {"pods", "n", ""};
  dry.body = {{"metadata", {{"name", "a"}}}};
  dry.dry_run = true;
  EXPECT_EQ(api_.call(dry).code, 201);
  EXPECT_TRUE(stored("pods", "a").is_null());
}

TEST_F(ApiServerTest, OfTwoUpdatesOfOneVersionOneWins) {
  Json job = create("trainingjobs", "j", {{"spec", {{"x", 1}}}}).body;
  job["status"] = {{"phase", "A"}};
  EXPECT_EQ(call("update", "trainingjobs", "j", job, "status").code, 200);
  job["status"] = {{"phase", "B"}};
  const Answer lost = call("update", "trainingjobs", "j", job, "status");
  EXPECT_EQ(lost.code, 409);
  EXPECT_EQ(lost.body["reason"], "Conflict");
  EXPECT_EQ(stored("trainingjobs", "j")["status"]["phase"], "A");
}

TEST_F(ApiServerTest, StatusAndSpecAreWrittenApartAndSpecsAreCounted) {
  Json job = create("trainingjobs", "j", {{"spec", {{"x", 1}}}}).body;
  job["status"] = {{"phase", "A"}};
  job["spec"]["x"] = 2;
  const Json after = call("update", "trainingjobs", "j", job, "status").body;
  EXPECT_EQ(after["spec"]["x"], 1);
  EXPECT_EQ(after["metadata"]["generation"], 1);
  const Json patched = call("patch", "trainingjobs", "j", {{"spec", {{"x", 3}}}}).body;
  EXPECT_EQ(patched["metadata"]["generation"], 2);
  EXPECT_EQ(patched["status"]["phase"], "A");
}

TEST_F(ApiServerTest, WhatChangesNothingHasNoVersionOfItsOwn) {
  const Json job = create("trainingjobs", "j", {{"spec", {{"x", 1}}}}).body;
  const Json patched = call("patch", "trainingjobs", "j", {{"spec", {{"x", 1}}}}).body;
  EXPECT_EQ(patched["metadata"]["resourceVersion"], job["metadata"]["resourceVersion"]);
}

TEST_F(ApiServerTest, PreconditionsNameTheirObject) {
  create("pods", "a");
  EXPECT_EQ(call("delete", "pods", "a", {{"preconditions", {{"uid", "other"}}}}).code, 409);
  const Answer patch = call("patch", "pods", "a", {{"metadata", {{"uid", "other"}}}});
  EXPECT_EQ(patch.code, 422);
  EXPECT_EQ(patch.body["details"]["causes"][0]["field"], "metadata.uid");
}

TEST_F(ApiServerTest, APodThatRunsIsTerminatingUntilItsKubeletEndsIt) {
  create("pods", "a", {{"spec", {{"nodeName", "m"}, {"terminationGracePeriodSeconds", 90}}}});
  EXPECT_EQ(call("delete", "pods", "a").code, 200);
  EXPECT_TRUE(is_terminating(stored("pods", "a")));
  EXPECT_EQ(stored("pods", "a")["metadata"]["deletionGracePeriodSeconds"], 90);
  EXPECT_EQ(call("delete", "pods", "a", {{"gracePeriodSeconds", 0}}).code, 200);
  EXPECT_TRUE(stored("pods", "a").is_null());
}

TEST_F(ApiServerTest, APodThatWasNeverPlacedIsGoneAtOnce) {
  create("pods", "a");
  call("delete", "pods", "a");
  EXPECT_TRUE(stored("pods", "a").is_null());
}

TEST_F(ApiServerTest, AFinalizerKeepsWhatIsDeleted) {
  create("trainingjobs", "j", {{"spec", Json::object()}});
  call("delete", "trainingjobs", "j", {{"propagationPolicy", "Foreground"}});
  EXPECT_TRUE(is_terminating(stored("trainingjobs", "j")));
  call("patch", "trainingjobs", "j", {{"metadata", {{"finalizers", nullptr}}}});
  EXPECT_TRUE(stored("trainingjobs", "j").is_null());
}

TEST_F(ApiServerTest, AListGivesPagesOfOneVersion) {
  for (const char* name : {"a", "b", "c"})
    create("pods", name);
  Call list;
  list.verb = "list";
  list.object = {"pods", "", ""};
  list.limit = 2;
  Answer page = api_.call(list);
  EXPECT_EQ(page.body["items"].size(), 2U);
  list.next = page.body["metadata"]["continue"];
  EXPECT_EQ(api_.call(list).body["items"].size(), 1U);
  create("pods", "d");
  EXPECT_EQ(api_.call(list).code, 410) << "the world has moved on between two pages";
}

TEST_F(ApiServerTest, AListOfAnyVersionShowsWhatTheWatchCacheHasSeen) {
  create("pods", "a");
  create("pods", "b");
  const int64_t seen = store_.revision();
  call("delete", "pods", "a");
  create("pods", "c");
  Call list;
  list.verb = "list";
  list.object = {"pods", "", ""};
  list.any_version = true;
  list.cached = seen;
  const Answer old = api_.call(list);
  EXPECT_EQ(old.body["metadata"]["resourceVersion"], std::to_string(seen));
  ASSERT_EQ(old.body["items"].size(), 2U);
  EXPECT_EQ(meta_text(old.body["items"][0], "name"), "a");
  EXPECT_EQ(meta_text(old.body["items"][1], "name"), "b");
}

class WatchTest : public ApiServerTest {
 protected:
  WatchStream open(int64_t after, const std::string& selector = {}) {
    WatchStream::Options options;
    options.plural = "pods";
    options.after = after;
    options.selector = selector;
    options.timeout = seconds(300);
    options.idle = seconds(120);
    return {store_, server_, clock_, options};
  }
  static std::string type_of(const WatchStream::Line& line) {
    return Json::parse(line->value())["type"];
  }

  WatchServer server_{store_, clock_};
};

TEST_F(WatchTest, GivesWhatChangedAfterItsVersion) {
  create("pods", "a");
  WatchStream watch = open(store_.revision());
  EXPECT_FALSE(watch.is_ready());
  create("pods", "b");
  call("patch", "pods", "b", {{"metadata", {{"labels", {{"x", "y"}}}}}});
  call("delete", "pods", "b");
  for (const char* type : {"ADDED", "MODIFIED", "DELETED"})
    EXPECT_EQ(type_of(watch.next_line()), type);
  EXPECT_FALSE(watch.is_ready());
}

TEST_F(WatchTest, WhatLeavesTheSelectionIsDeletedForTheWatcher) {
  WatchStream watch = open(0, "x");
  create("pods", "a");
  call("patch", "pods", "a", {{"metadata", {{"labels", {{"x", "y"}}}}}});
  call("patch", "pods", "a", {{"metadata", {{"labels", {{"x", nullptr}}}}}});
  EXPECT_EQ(type_of(watch.next_line()), "ADDED");
  EXPECT_EQ(type_of(watch.next_line()), "DELETED");
  EXPECT_FALSE(watch.is_ready());
}

TEST_F(WatchTest, AServerThatIsBehindShowsThePast) {
  server_.set_lag(seconds(5));
  WatchStream watch = open(0);
  create("pods", "a");
  EXPECT_FALSE(watch.is_ready());
  EXPECT_EQ(watch.next_due(), clock_.mono() + seconds(5));
  clock_.advance(seconds(5));
  EXPECT_EQ(type_of(watch.next_line()), "ADDED");
  server_.hold("pods", clock_.mono() + seconds(60));
  create("pods", "b");
  clock_.advance(seconds(10));
  EXPECT_FALSE(watch.has_event());
  server_.release();
  EXPECT_TRUE(watch.has_event());
}

TEST_F(WatchTest, BookmarksComeEachMinuteAndTheEndInOrder) {
  WatchStream watch = open(0);
  clock_.advance(seconds(60));
  EXPECT_EQ(type_of(watch.next_line()), "BOOKMARK");
  clock_.advance(seconds(240));
  const auto end = watch.next_line();
  ASSERT_TRUE(end.has_value());
  EXPECT_FALSE(end->has_value());
}

}  // namespace
}  // namespace trainyard::sim
