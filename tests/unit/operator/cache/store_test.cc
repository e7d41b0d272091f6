#include "operator/cache/store.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace trainyard::cache {
namespace {

using kube::EventType;
using nlohmann::json;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(VersionTest, OnlyDecimalVersionsAreOrdered) {
  EXPECT_TRUE(is_later_version("10", "9"));
  EXPECT_TRUE(is_later_version("12", "11"));
  EXPECT_FALSE(is_later_version("11", "11"));
  EXPECT_FALSE(is_later_version("9", "10"));
  EXPECT_FALSE(is_later_version("abc", "1"));
  EXPECT_FALSE(is_later_version("2", ""));
  EXPECT_FALSE(is_later_version("0009", "8"));
}

struct Part {
  Meta meta;
  std::string job;
  int64_t value = 0;
};

json thing(const std::string& name, const std::string& uid, int64_t version,
           const std::string& job = "j") {
  return {{"metadata",
           {{"namespace", "n"},
            {"name", name},
            {"uid", uid},
            {"resourceVersion", std::to_string(version)}}},
          {"job", job},
          {"value", version}};
}

Result<Part> project_part(const json& object) {
  if (object.contains("poison")) return Error{ErrorCode::kInvalidData, "poisoned"};
  TRAINYARD_ASSIGN(Meta meta, read_meta(object));
  return Part{std::move(meta), object.at("job").get<std::string>(),
              object.at("value").get<int64_t>()};
}

class StoreTest : public testing::Test {
 protected:
  using Told = std::vector<std::string>;

  Handler<Part> handler() {
    return {
        .added = [this](const auto& now) { told_.push_back("+" + text(*now)); },
        .updated = [this](const auto& before,
                          const auto& now) { told_.push_back(text(*before) + ">" + text(*now)); },
        .removed = [this](const auto& before) { told_.push_back("-" + text(*before)); },
        .listed =
            [this](MonoTime started) {
              told_.push_back("listed " + std::to_string(started.time_since_epoch().count()) +
                              (store_.synced() ? " synced" : ""));
            },
        .refused = [this](const std::string& key, const Error&) { told_.push_back("!" + key); },
    };
  }
  static std::string text(const Part& thing) {
    return thing.meta.name + ":" + thing.meta.uid + ":" + std::to_string(thing.value);
  }
  void list(const std::vector<json>& objects, int64_t started = 1,
            const std::string& version = "9") {
    store_.begin_list();
    for (const json& object : objects)
      store_.list_item(object);
    store_.end_list(MonoTime(Duration(started)), version);
  }
  Told told() { return std::exchange(told_, {}); }
  std::vector<std::string> of_job(const std::string& job) {
    std::vector<std::string> names;
    for (const auto& found : store_.find_by("job", job))
      names.push_back(text(*found));
    return names;
  }

  Told told_;
  Store<Part> store_{
      project_part, {{"job", [](const Part& thing) { return std::vector{thing.job}; }}}, handler()};
};

TEST_F(StoreTest, ShowsAListOnlyWhenItIsWhole) {
  store_.begin_list();
  store_.list_item(thing("a", "1", 1));
  EXPECT_EQ(store_.size(), 0u);
  EXPECT_FALSE(store_.synced());
  store_.list_item(thing("b", "2", 2));
  store_.end_list(MonoTime(Duration(5)), "9");
  EXPECT_THAT(told(), ElementsAre("+a:1:1", "+b:2:2", "listed 5"));
  EXPECT_TRUE(store_.synced());
  EXPECT_EQ(store_.size(), 2u);
  ASSERT_NE(store_.find("n/a"), nullptr);
  EXPECT_EQ(store_.find("a"), nullptr);
}

TEST_F(StoreTest, AnUnfinishedListLeavesNothing) {
  store_.begin_list();
  store_.list_item(thing("a", "1", 1));
  list({thing("b", "2", 2)});
  EXPECT_THAT(told(), ElementsAre("+b:2:2", "listed 1"));
}

TEST_F(StoreTest, ASecondListTellsWhatHasChanged) {
  list({thing("a", "1", 1), thing("b", "2", 2), thing("c", "3", 3)});
  (void)told();
  list({thing("b", "2", 2), thing("c", "3", 7), thing("d", "4", 8)}, 9);
  EXPECT_THAT(told(), ElementsAre("-a:1:1", "c:3:3>c:3:7", "+d:4:8", "listed 9 synced"));
  EXPECT_THAT(of_job("j"), ElementsAre("b:2:2", "c:3:7", "d:4:8"));
}

TEST_F(StoreTest, EventsChangeObjectsAndIndexes) {
  list({thing("a", "1", 1)});
  store_.event(EventType::kAdded, thing("b", "2", 2));
  store_.event(EventType::kModified, thing("b", "2", 3, "k"));
  EXPECT_THAT(of_job("j"), ElementsAre("a:1:1"));
  EXPECT_THAT(of_job("k"), ElementsAre("b:2:3"));
  store_.event(EventType::kDeleted, thing("b", "2", 4, "k"));
  EXPECT_THAT(of_job("k"), IsEmpty());
  EXPECT_THAT(told(), ElementsAre("+a:1:1", "listed 1", "+b:2:2", "b:2:2>b:2:3", "-b:2:4"));
  EXPECT_THAT(store_.all(), testing::SizeIs(1));
}

TEST_F(StoreTest, ARepeatedEventIsNotTold) {
  list({thing("a", "1", 1)});
  (void)told();
  store_.event(EventType::kAdded, thing("a", "1", 1));
  store_.event(EventType::kBookmark, thing("a", "1", 2));
  store_.event(EventType::kDeleted, thing("gone", "9", 9));
  EXPECT_THAT(told(), IsEmpty());
}

TEST_F(StoreTest, SaysUpToWhichVersionItShowsEverything) {
  EXPECT_EQ(store_.version(), "");
  list({thing("a", "1", 1)}, 1, "5");
  EXPECT_EQ(store_.version(), "5");
  store_.event(EventType::kModified, thing("a", "1", 6));
  EXPECT_EQ(store_.version(), "6");
  store_.event(EventType::kDeleted, thing("a", "1", 7));
  EXPECT_EQ(store_.version(), "7");
  store_.event(EventType::kBookmark, json{{"metadata", {{"resourceVersion", "80"}}}});
  EXPECT_EQ(store_.version(), "80");
  EXPECT_EQ(store_.size(), 0U);
  list({}, 2, "3");
  EXPECT_EQ(store_.version(), "3") << "of a server that was restored";
}

TEST_F(StoreTest, ANameUsedAgainIsAnEndAndAnAddition) {
  list({thing("a", "1", 1)});
  (void)told();
  store_.event(EventType::kModified, thing("a", "2", 5));
  EXPECT_THAT(told(), ElementsAre("-a:1:1", "+a:2:5"));
  list({thing("a", "3", 9)});
  EXPECT_THAT(told(), ElementsAre("-a:2:5", "+a:3:9", "listed 1 synced"));
  EXPECT_THAT(of_job("j"), ElementsAre("a:3:9"));
}

TEST_F(StoreTest, WhatCannotBeProjectedIsOutUntilItCan) {
  list({thing("a", "1", 1), thing("b", "2", 2)});
  (void)told();
  json poisoned = thing("a", "1", 3);
  poisoned["poison"] = true;
  store_.event(EventType::kModified, poisoned);
  EXPECT_THAT(told(), ElementsAre("!n/a", "-a:1:1"));
  json damaged = thing("b", "2", 4);
  damaged["value"] = "text";  // the projection throws
  store_.event(EventType::kModified, damaged);
  EXPECT_THAT(told(), ElementsAre("!n/b", "-b:2:2"));
  store_.event(EventType::kModified, thing("a", "1", 5));
  EXPECT_THAT(told(), ElementsAre("+a:1:5"));
  list({poisoned, thing("b", "2", 6)});
  EXPECT_THAT(told(), ElementsAre("!n/a", "-a:1:5", "+b:2:6", "listed 1 synced"));
  store_.event(EventType::kModified, json::object());
  EXPECT_THAT(told(), ElementsAre("!"));
}

TEST_F(StoreTest, AnEndThatCannotBeProjectedIsStillAnEnd) {
  list({thing("a", "1", 1)});
  (void)told();
  json poisoned = thing("a", "1", 3);
  poisoned["poison"] = true;
  store_.event(EventType::kDeleted, poisoned);
  EXPECT_THAT(told(), ElementsAre("!n/a", "-a:1:1"));
}

TEST_F(StoreTest, AnEndTellsOfWhatWasThereAndOfNobodyElse) {
  list({thing("a", "1", 1)});
  (void)told();
  store_.event(EventType::kDeleted, thing("a", "2", 3));
  EXPECT_THAT(told(), ElementsAre("-a:1:1"));
}

TEST_F(StoreTest, ObjectsOutliveTheirReplacement) {
  list({thing("a", "1", 1)});
  const auto held = store_.find("n/a");
  list({});
  EXPECT_EQ(held->value, 1);
  EXPECT_EQ(store_.find("n/a"), nullptr);
}

TEST_F(StoreTest, WaitsForTheFirstList) {
  EXPECT_EQ(store_.wait_synced(std::chrono::milliseconds(1), {}, "things").error().code,
            ErrorCode::kDeadline);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(store_.wait_synced(std::chrono::minutes(1), stop.get_token(), "things").error().code,
            ErrorCode::kAborted);
  std::jthread reflector([&] { list({}); });
  EXPECT_TRUE(store_.wait_synced(std::chrono::minutes(1), {}, "things").has_value());
}

TEST(MetaTest, WantsNameUidAndVersion) {
  EXPECT_EQ(read_meta(thing("a", "1", 2)).value(), (Meta{"n", "a", "1", "2"}));
  for (const char* key : {"name", "uid", "resourceVersion"}) {
    json object = thing("a", "1", 2);
    object["metadata"][key] = 5;
    EXPECT_EQ(read_meta(object).error().code, ErrorCode::kInvalidData);
  }
  EXPECT_FALSE(read_meta(json::array()).has_value());
  EXPECT_EQ(key_of("", "node"), "node");
}

}  // namespace
}  // namespace trainyard::cache
