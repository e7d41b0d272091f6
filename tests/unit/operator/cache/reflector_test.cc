#include "operator/cache/reflector.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::cache {
namespace {

using kube::EventType;
using nlohmann::json;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing_support::EndOfStream;
using testing_support::status_body;
using State = ReflectorState;

std::string object(const std::string& name, int version) {
  return R"({"metadata":{"name":")" + name + R"(","uid":"u","resourceVersion":")" +
         std::to_string(version) + R"("}})";
}
std::string event(const std::string& type, const std::string& name, int version) {
  return R"({"type":")" + type + R"(","object":)" + object(name, version) + "}";
}
std::string expiry() {
  return "{\"type\":\"ERROR\",\"object\":" + status_body(410, "Expired", "too old") + "}";
}
std::string page(const std::vector<std::string>& objects, int version,
                 const std::string& next = "") {
  std::string items;
  for (const std::string& item : objects)
    items += (items.empty() ? "" : ",") + item;
  return R"({"metadata":{"resourceVersion":")" + std::to_string(version) + R"(","continue":")" +
         next + R"("},"items":[)" + items + "]}";
}

/// Writes down what it is told.
class NotingSink final : public Sink {
 public:
  void begin_list() override { notes.push_back("begin"); }
  void list_item(const json& object) override { notes.push_back(name_of_object(object)); }
  void end_list(MonoTime started, const std::string& version) override {
    versions.push_back(version);
    notes.push_back("end " + std::to_string(started.time_since_epoch() / std::chrono::seconds(1)));
  }
  void event(EventType type, const json& object) override {
    versions.push_back(object["metadata"]["resourceVersion"]);
    if (type == EventType::kBookmark) return;
    static const std::vector<std::string> kSigns = {"+", "~", "-", "?"};
    notes.push_back(kSigns[static_cast<size_t>(type)] + name_of_object(object));
  }
  static std::string name_of_object(const json& object) { return object["metadata"]["name"]; }

  std::vector<std::string> notes;
  std::vector<std::string> versions;  ///< up to which it was told
};

/// client-go's values; no jitter.
class ReflectorTest : public testing::Test {
 protected:
  State state() { return reflector_.report().state; }
  Duration step() { return reflector_.step({}); }
  std::string query() { return transport_.last_request().query; }

  void list_one() {
    transport_.answer(200, page({object("a", 1)}, 5));
    ASSERT_EQ(step(), Duration::zero());
    ASSERT_EQ(state(), State::kInitListed);
    sink_.notes.clear();
  }
  void watch(std::vector<testing_support::StreamStep> steps) {
    list_one();
    transport_.stream(std::move(steps));
    ASSERT_EQ(step(), Duration::zero());
    ASSERT_EQ(state(), State::kWatching);
  }

  testing_support::ScriptedTransport transport_;
  testing_support::ManualClock clock_;
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  kube::Client client_{transport_, clock_, {}};
  NotingSink sink_;
  double random_ = 0;
  Reflector reflector_{client_,
                       sink_,
                       clock_,
                       *logger_,
                       {.resource = kube::kPods,
                        .ns = "n",
                        .label_selector = "mine",
                        .page_size = 2,
                        .random = [this] { return random_; }}};
};

TEST_F(ReflectorTest, EmptyToInitListedByAListOfOnePage) {
  EXPECT_EQ(state(), State::kEmpty);
  transport_.answer(200, page({object("a", 1), object("b", 2)}, 5));
  EXPECT_EQ(step(), Duration::zero());
  EXPECT_EQ(state(), State::kInitListed);
  EXPECT_THAT(sink_.notes, ElementsAre("begin", "a", "b", "end 1000"));
  EXPECT_EQ(query(), "labelSelector=mine&limit=2") << "no resourceVersion: the newest state";
}

TEST_F(ReflectorTest, EmptyToInitPageToInitListedByPages) {
  transport_.answer(200, page({object("a", 1), object("b", 2)}, 5, "c1"));
  EXPECT_EQ(step(), Duration::zero());
  EXPECT_EQ(state(), State::kInitPage);
  clock_.advance(std::chrono::seconds(1));
  transport_.answer(200, page({object("c", 3)}, 5, "c2"));
  EXPECT_EQ(step(), Duration::zero());
  EXPECT_EQ(state(), State::kInitPage);
  EXPECT_EQ(query(), "labelSelector=mine&limit=2&continue=c1");
  EXPECT_THAT(sink_.notes, ElementsAre("begin", "a", "b", "c"));
  transport_.answer(200, page({}, 5));
  EXPECT_EQ(step(), Duration::zero());
  EXPECT_EQ(state(), State::kInitListed);
  EXPECT_THAT(sink_.notes, ElementsAre("begin", "a", "b", "c", "end 1000"))
      << "the time at which the first page was asked for";
}

/// Whoever may make an object of an open schema may nest it as deep as the server takes it.
TEST_F(ReflectorTest, AnObjectThatIsNestedTooDeeplyHidesNoOther) {
  std::string deep = object("b", 2);
  deep.insert(deep.size() - 1, ",\"spec\":" + std::string(9000, '[') + std::string(9000, ']'));
  transport_.answer(200, page({object("a", 1), deep, object("c", 3)}, 5));
  EXPECT_EQ(step(), Duration::zero());
  EXPECT_EQ(state(), State::kInitListed);
  EXPECT_THAT(sink_.notes, ElementsAre("begin", "a", "b", "c", "end 1000"));
  transport_.stream({R"({"type":"MODIFIED","object":)" + deep + "}", event("ADDED", "d", 6)});
  EXPECT_EQ(step(), Duration::zero());
  sink_.notes.clear();
  EXPECT_EQ(step(), Duration::zero());
  EXPECT_EQ(step(), Duration::zero());
  EXPECT_THAT(sink_.notes, ElementsAre("~b", "+d"));
}

TEST_F(ReflectorTest, EmptyStaysEmptyWhenTheListFails) {
  transport_.answer(403, status_body(403, "Forbidden", "no"));
  EXPECT_EQ(step(), milliseconds(800));
  EXPECT_EQ(state(), State::kEmpty);
  EXPECT_EQ(reflector_.report().failure->reason, kube::Reason::kForbidden);
  transport_.fail({ErrorCode::kUnavailable, "refused"});
  EXPECT_EQ(step(), milliseconds(1600));
  EXPECT_EQ(state(), State::kEmpty);
  EXPECT_EQ(reflector_.report().lists, 2);
  list_one();
  EXPECT_FALSE(reflector_.report().failure.has_value());
}

TEST_F(ReflectorTest, InitPageAsksForTheSamePageAgainAfterAFailure) {
  transport_.answer(200, page({object("a", 1)}, 5, "c1"));
  (void)step();
  const std::string first = query();
  transport_.answer(500, "");
  EXPECT_EQ(step(), milliseconds(800));
  EXPECT_EQ(state(), State::kInitPage);
  transport_.answer(200, page({object("b", 2)}, 5));
  EXPECT_EQ(step(), Duration::zero());
  EXPECT_EQ(query(), first + "&continue=c1") << "of the same size";
  EXPECT_THAT(sink_.notes, ElementsAre("begin", "a", "b", "end 1000"));
}

TEST_F(ReflectorTest, PagesThatAreTooLargeToReadGetSmaller) {
  transport_.fail({ErrorCode::kInvalidData, "an answer of more than 16777216 bytes"});
  EXPECT_EQ(step(), milliseconds(800));
  transport_.answer(200, page({object("large", 1)}, 5, "c1"));
  EXPECT_EQ(step(), Duration::zero());
  EXPECT_EQ(query(), "labelSelector=mine&limit=1");
  transport_.fail({ErrorCode::kInvalidData, "an answer of more than 16777216 bytes"});
  (void)step();
  transport_.answer(200, page({object("b", 2)}, 5));
  (void)step();
  EXPECT_EQ(query(), "labelSelector=mine&limit=1&continue=c1") << "at least one object";
  EXPECT_EQ(state(), State::kInitListed);
}

TEST_F(ReflectorTest, InitPageToEmptyWhenTheListHasExpired) {
  transport_.answer(200, page({object("a", 1)}, 5, "c1"));
  (void)step();
  transport_.answer(410, status_body(410, "Expired", "The provided continue parameter is too old"));
  EXPECT_EQ(step(), milliseconds(800));
  EXPECT_EQ(state(), State::kEmpty);
  transport_.answer(200, page({object("b", 2)}, 6));
  (void)step();
  EXPECT_THAT(query(), Not(HasSubstr("continue")));
  EXPECT_THAT(sink_.notes, ElementsAre("begin", "a", "begin", "b", "end 1000"));
}

TEST_F(ReflectorTest, InitPageToEmptyWhenAPageIsRefusedAgainAndAgain) {
  transport_.answer(200, page({object("a", 1)}, 5, "c1"));
  (void)step();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(state(), State::kInitPage) << i;
    transport_.answer(400, status_body(400, "BadRequest", "continue key is not valid"));
    (void)step();
  }
  EXPECT_EQ(state(), State::kEmpty);
  transport_.answer(200, page({object("b", 2)}, 6));
  (void)step();
  EXPECT_THAT(query(), Not(HasSubstr("continue")));
  EXPECT_THAT(sink_.notes, ElementsAre("begin", "a", "begin", "b", "end 1000"));
}

TEST_F(ReflectorTest, InitListedToWatchingFromTheListsVersion) {
  random_ = 0.5;
  watch({});
  EXPECT_EQ(query(),
            "watch=true&allowWatchBookmarks=true&labelSelector=mine&resourceVersion=5"
            "&timeoutSeconds=450");
  EXPECT_EQ(transport_.last_patience().idle, std::chrono::minutes(2));
  EXPECT_EQ(reflector_.report().watches, 1);
}

TEST_F(ReflectorTest, InitListedStaysWhenTheWatchIsRefused) {
  list_one();
  transport_.refuse_stream(429, status_body(429, "TooManyRequests", "later"));
  EXPECT_EQ(step(), milliseconds(800));
  EXPECT_EQ(state(), State::kInitListed);
  transport_.fail_stream({ErrorCode::kDeadline, "no answer"});
  EXPECT_EQ(step(), milliseconds(1600));
  EXPECT_EQ(state(), State::kInitListed);
  EXPECT_THAT(sink_.notes, IsEmpty());
}

TEST_F(ReflectorTest, InitListedToEmptyWhenTheVersionIsTooOld) {
  list_one();
  transport_.refuse_stream(410, status_body(410, "Expired", "too old resource version: 5 (99)"));
  EXPECT_EQ(step(), milliseconds(800));
  EXPECT_EQ(state(), State::kEmpty);
}

TEST_F(ReflectorTest, InitListedToEmptyWhenTheServerIsBehind) {
  list_one();
  transport_.refuse_stream(504,
                           status_body(504, "Timeout", "Too large resource version: 5",
                                       R"({"causes":[{"reason":"ResourceVersionTooLarge"}]})"));
  EXPECT_EQ(step(), milliseconds(800));
  EXPECT_EQ(state(), State::kEmpty);
  transport_.answer(200, page({}, 3));
  (void)step();
  EXPECT_EQ(query(), "labelSelector=mine&limit=2");
}

TEST_F(ReflectorTest, WatchingPassesEventsOn) {
  watch({event("ADDED", "b", 6), event("MODIFIED", "b", 7), event("DELETED", "b", 8)});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(step(), Duration::zero());
    EXPECT_EQ(state(), State::kWatching);
  }
  EXPECT_THAT(sink_.notes, ElementsAre("+b", "~b", "-b"));
  EXPECT_EQ(reflector_.report().events, 3);
}

TEST_F(ReflectorTest, WatchingToInitListedAtItsEndAndOnFromTheLastEvent) {
  watch({event("ADDED", "b", 6), EndOfStream{}});
  (void)step();
  EXPECT_EQ(step(), Duration::zero());
  EXPECT_EQ(state(), State::kInitListed);
  transport_.stream({});
  (void)step();
  EXPECT_THAT(query(), HasSubstr("resourceVersion=6&"));
  EXPECT_EQ(reflector_.report().lists, 1);
}

TEST_F(ReflectorTest, ABookmarkMovesTheVersionAndNothingElse) {
  watch({event("BOOKMARK", "", 90), EndOfStream{}});
  (void)step();
  EXPECT_THAT(sink_.notes, IsEmpty());
  EXPECT_THAT(sink_.versions, ElementsAre("5", "90"));
  (void)step();
  transport_.stream({});
  (void)step();
  EXPECT_THAT(query(), HasSubstr("resourceVersion=90&"));
}

TEST_F(ReflectorTest, AWatchThatEndsAtOnceIsNotAskedForAtOnce) {
  watch({EndOfStream{}});
  EXPECT_EQ(step(), milliseconds(800));
  EXPECT_EQ(state(), State::kInitListed);
  transport_.stream({EndOfStream{}});
  (void)step();
  clock_.advance(std::chrono::seconds(2));
  EXPECT_EQ(step(), Duration::zero()) << "it had lasted";
}

TEST_F(ReflectorTest, WatchingToEmptyByAnEvent410) {
  watch({"{\"type\":\"ERROR\",\"object\":" + status_body(410, "Expired", "too old") + "}"});
  EXPECT_EQ(step(), milliseconds(800));
  EXPECT_EQ(state(), State::kEmpty);
}

TEST_F(ReflectorTest, WatchingToInitListedByAnotherErrorEvent) {
  watch({event("ADDED", "b", 6),
         "{\"type\":\"ERROR\",\"object\":" + status_body(500, "InternalError", "etcd") + "}"});
  (void)step();
  EXPECT_EQ(step(), milliseconds(800));
  EXPECT_EQ(state(), State::kInitListed);
  EXPECT_EQ(reflector_.report().failure->reason, kube::Reason::kInternalError);
}

TEST_F(ReflectorTest, ACutStreamGoesOnFromTheLastWholeEvent) {
  const std::string line = event("ADDED", "c", 7);
  // What a cut leaves never parses, whatever the byte: the transport gives no part of a line, and a
  // damaged one is no event.
  for (size_t cut = 0; cut < line.size(); ++cut) {
    EXPECT_FALSE(json::accept(line.substr(0, cut)));
  }
  watch({event("ADDED", "b", 6), Error{ErrorCode::kUnavailable, "cut off within a line"}});
  (void)step();
  EXPECT_EQ(step(), milliseconds(800));
  EXPECT_EQ(state(), State::kInitListed);
  transport_.stream({line});
  (void)step();
  EXPECT_THAT(query(), HasSubstr("resourceVersion=6&"));
  (void)step();
  EXPECT_THAT(sink_.notes, ElementsAre("+b", "+c"));
}

TEST_F(ReflectorTest, TwoDeadWatchesInARowLeadToAList) {
  watch({});  // silent: the transport gives kDeadline
  EXPECT_EQ(step(), milliseconds(800));
  EXPECT_EQ(state(), State::kInitListed) << "another connection may live";
  transport_.stream({});
  (void)step();
  EXPECT_EQ(step(), milliseconds(1600));
  EXPECT_EQ(state(), State::kEmpty);
}

TEST_F(ReflectorTest, AnEventBetweenDeadWatchesKeepsTheVersion) {
  watch({});
  (void)step();
  transport_.stream({event("ADDED", "b", 6)});
  (void)step();
  (void)step();
  EXPECT_EQ(step(), milliseconds(1600));
  EXPECT_EQ(state(), State::kInitListed);
}

TEST_F(ReflectorTest, ADamagedEventTwiceLeadsToAList) {
  watch({"{\"type\":\"MODIFIED\"}"});
  (void)step();
  EXPECT_EQ(state(), State::kInitListed);
  transport_.stream({"nonsense"});
  (void)step();
  (void)step();
  EXPECT_EQ(state(), State::kEmpty);
  EXPECT_THAT(sink_.notes, IsEmpty());
}

TEST_F(ReflectorTest, AnEventWithoutAVersionLeadsToAList) {
  watch({R"({"type":"ADDED","object":{"metadata":{"name":"x"}}})"});
  EXPECT_EQ(step(), milliseconds(800));
  EXPECT_EQ(state(), State::kEmpty);
  EXPECT_THAT(sink_.notes, IsEmpty());
}

TEST_F(ReflectorTest, PausesGrowAndAreForgottenAfterTwoMinutes) {
  for (const int pause_ms : {800, 1600, 3200, 6400, 12800, 25600, 30000, 30000}) {
    transport_.answer(503, "");
    EXPECT_EQ(step(), milliseconds(pause_ms));
  }
  clock_.advance(std::chrono::minutes(3));
  transport_.answer(503, "");
  EXPECT_EQ(step(), milliseconds(800));
}

TEST_F(ReflectorTest, AListFromThePastIsRefused) {
  watch({event("MODIFIED", "a", 12), expiry()});
  (void)step();
  (void)step();
  ASSERT_EQ(state(), State::kEmpty);
  sink_.notes.clear();
  transport_.answer(200, page({object("a", 1)}, 5));
  EXPECT_GE(step(), milliseconds(800));
  EXPECT_EQ(state(), State::kEmpty);
  EXPECT_THAT(reflector_.report().failure->message, HasSubstr("version 5, older than 12"));
  EXPECT_THAT(sink_.notes, ElementsAre("begin"));
  transport_.answer(200, page({object("a", 12)}, 12));
  EXPECT_EQ(step(), Duration::zero());
  EXPECT_EQ(state(), State::kInitListed);
}

TEST_F(ReflectorTest, APastThatStaysIsTheStateOfARestoredServer) {
  watch({event("MODIFIED", "a", 12), expiry()});
  (void)step();
  (void)step();
  for (int i = 0; i < 5; ++i) {
    transport_.answer(200, page({object("a", 1)}, 5));
    (void)step();
    ASSERT_EQ(state(), State::kEmpty) << i;
  }
  transport_.answer(200, page({object("a", 1)}, 5));
  EXPECT_EQ(step(), Duration::zero());
  EXPECT_EQ(state(), State::kInitListed);
}

TEST_F(ReflectorTest, AServerThatWantsToBeAskedLaterIsAskedLater) {
  transport_.answer(429, status_body(429, "TooManyRequests", "busy"), std::chrono::seconds(7));
  EXPECT_EQ(step(), std::chrono::seconds(7));
  EXPECT_EQ(state(), State::kEmpty);
  clock_.advance(std::chrono::seconds(7));
  list_one();
}

TEST_F(ReflectorTest, RunEndsWithItsStop) {
  transport_.answer(200, page({object("a", 1)}, 5));
  transport_.stream({event("ADDED", "b", 6)});  // then silence, a failure, a pause
  std::jthread thread([&](const std::stop_token& stop) { reflector_.run(stop); });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (reflector_.report().events < 1 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  thread.request_stop();
  thread.join();
  EXPECT_EQ(reflector_.report().events, 1);
  EXPECT_THAT(sink_.notes, ElementsAre("begin", "a", "end 1000", "+b"));
}

TEST(ReflectorStateTest, HaveNames) {
  EXPECT_EQ(name_of(State::kEmpty), "Empty");
  EXPECT_EQ(name_of(State::kInitPage), "InitPage");
  EXPECT_EQ(name_of(State::kInitListed), "InitListed");
  EXPECT_EQ(name_of(State::kWatching), "Watching");
}

/// How many warnings a list that fails so leaves in the log.
int64_t warnings_of(Right right,
                    const std::function<void(testing_support::ScriptedTransport&)>& fail) {
  const testing_support::TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "log";
  const auto logger = Logger::to_file(file, LogLevel::kWarning, LogFormat::kJson);
  if (!logger) ADD_FAILURE() << logger.error().message;
  testing_support::ScriptedTransport transport;
  const testing_support::ManualClock clock;
  const kube::Client client(transport, clock, {});
  NotingSink sink;
  Reflector reflector(client, sink, clock, **logger,
                      {.resource = kube::kPods, .right = right, .random = [] { return 0.0; }});
  fail(transport);
  EXPECT_GT(reflector.step({}), Duration::zero());
  std::ifstream lines(file);
  return std::count(std::istreambuf_iterator<char>(lines), {}, '\n');
}

TEST(ReflectorLogTest, WarnsOfWhatSomebodyMayHaveToMend) {
  const auto answers = [](int code, const char* reason) {
    return [=](testing_support::ScriptedTransport& transport) {
      transport.answer(code, status_body(code, reason, "no"));
    };
  };
  const auto ends = [](ErrorCode code) {
    return [=](testing_support::ScriptedTransport& transport) { transport.fail({code, "no"}); };
  };
  EXPECT_EQ(warnings_of(Right::kNeeded, answers(403, "Forbidden")), 1);
  EXPECT_EQ(warnings_of(Right::kWelcome, answers(403, "Forbidden")), 0) << "it may be meant so";
  EXPECT_EQ(warnings_of(Right::kWelcome, answers(500, "InternalError")), 1);
  EXPECT_EQ(warnings_of(Right::kNeeded, ends(ErrorCode::kUnavailable)), 1);
  EXPECT_EQ(warnings_of(Right::kNeeded, ends(ErrorCode::kAborted)), 0) << "asked to stop";
}

}  // namespace
}  // namespace trainyard::cache
