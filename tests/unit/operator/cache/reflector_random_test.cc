// Reflector and store against a server that changes its objects, compacts its past, cuts and
// damages its streams and fails at random: nothing ever goes back in time, and when the faults end
// the store is what the server has.
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "operator/cache/reflector.h"
#include "operator/cache/store.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::cache {
namespace {

using nlohmann::json;

/// Name -> (uid, version).
using Content = std::map<std::string, std::pair<int, int>>;

struct Past {
  std::string type;
  std::string name;
  int uid = 0;
  int version = 0;
};

/// One collection with the semantics of an API server: a global version, a history of which the
/// beginning may be forgotten, pages of one snapshot, watches from a version on.
class RandomServer final : public kube::Transport {
 public:
  explicit RandomServer(uint64_t seed) : random_(seed) {}

  void heal() { healthy_ = true; }
  const Content& content() const { return objects_; }
  int faults() const { return faults_; }

  Result<kube::Response> send(const kube::Request& request, const kube::Patience&) override {
    change();
    if (fault(0.15)) return Error{ErrorCode::kUnavailable, "refused"};
    if (fault(0.1)) return status(500, "InternalError");
    const size_t at = request.query.find("continue=");
    if (at == std::string::npos) return page(version_, "");
    const std::string token = request.query.substr(at + 9);
    const size_t middle = token.find('.');
    const int snapshot = std::stoi(token.substr(0, middle));
    if (snapshot < oldest_) return status(410, "Expired");
    return page(snapshot, token.substr(middle + 1));
  }

  Result<kube::Opened> open(const kube::Request& request, const kube::Patience&) override {
    if (fault(0.1)) return Error{ErrorCode::kDeadline, "no head"};
    const std::string key = "resourceVersion=";
    const int from = std::stoi(request.query.substr(request.query.find(key) + key.size()));
    if (from < oldest_) {
      const auto gone = status(410, "Expired");
      return kube::Opened{gone.status, gone.body, std::nullopt, nullptr};
    }
    return kube::Opened{200, {}, std::nullopt, std::make_unique<Lines>(*this, from)};
  }

 private:
  class Lines final : public kube::LineStream {
   public:
    Lines(RandomServer& server, int from) : server_(server), from_(from) {}

    Result<std::optional<std::string>> next_line() override {
      server_.change();
      if (server_.fault(0.05)) return Error{ErrorCode::kUnavailable, "cut off within a line"};
      if (server_.fault(0.03)) return std::optional<std::string>("{\"type\":\"MODIF");
      if (server_.fault(0.03)) return error_event(500, "InternalError");
      if (from_ < server_.oldest_) return error_event(410, "Expired");
      for (const Past& past : server_.history_) {
        if (past.version <= from_) continue;
        from_ = past.version;
        return event(past.type, object(past.name, past.uid, past.version));
      }
      if (server_.chance(0.3)) return event("BOOKMARK", object("", 0, server_.version_));
      if (server_.chance(0.5)) return std::optional<std::string>();
      return Error{ErrorCode::kDeadline, "silence"};
    }

   private:
    static std::optional<std::string> event(const std::string& type, json object) {
      return json{{"type", type}, {"object", std::move(object)}}.dump();
    }
    static std::optional<std::string> error_event(int code, const std::string& reason) {
      return event("ERROR", json::parse(testing_support::status_body(code, reason, "random")));
    }

    RandomServer& server_;
    int from_;
  };

  static json object(const std::string& name, int uid, int version) {
    return {{"metadata",
             {{"name", name},
              {"uid", "u" + std::to_string(uid)},
              {"resourceVersion", std::to_string(version)}}}};
  }
  static kube::Response status(int code, const std::string& reason) {
    return {code, testing_support::status_body(code, reason, "random"), std::nullopt};
  }

  bool chance(double part) { return std::uniform_real_distribution<>(0, 1)(random_) < part; }
  bool fault(double part) {
    if (healthy_ || !chance(part)) return false;
    ++faults_;
    return true;
  }

  /// Somebody else writes, or etcd forgets.
  void change() {
    if (healthy_) return;
    while (chance(0.5)) {
      const std::string name(1, static_cast<char>('a' + random_() % 8));
      const auto found = objects_.find(name);
      ++version_;
      if (found == objects_.end()) {
        objects_[name] = {version_, version_};
        history_.push_back({"ADDED", name, version_, version_});
      } else if (chance(0.3)) {
        history_.push_back({"DELETED", name, found->second.first, version_});
        objects_.erase(found);
      } else {
        found->second.second = version_;
        history_.push_back({"MODIFIED", name, found->second.first, version_});
      }
    }
    if (fault(0.05)) oldest_ = version_;
  }

  Content at(int version) const {
    Content content;
    for (const Past& past : history_) {
      if (past.version > version) break;
      content[past.name] = {past.uid, past.version};
      if (past.type == "DELETED") content.erase(past.name);
    }
    return content;
  }

  kube::Response page(int snapshot, const std::string& after) const {
    constexpr size_t kPage = 2;
    const Content content = at(snapshot);
    json items = json::array();
    auto next = content.upper_bound(after);
    for (; next != content.end() && items.size() < kPage; ++next)
      items.push_back(object(next->first, next->second.first, next->second.second));
    const std::string last = items.empty() ? "" : items.back()["metadata"]["name"];
    const std::string token = next == content.end() ? "" : std::to_string(snapshot) + "." + last;
    const json list = {
        {"metadata", {{"resourceVersion", std::to_string(snapshot)}, {"continue", token}}},
        {"items", items}};
    return {200, list.dump(), std::nullopt};
  }

  std::mt19937_64 random_;
  bool healthy_ = false;
  int faults_ = 0;
  int version_ = 10;
  int oldest_ = 0;
  Content objects_;
  std::vector<Past> history_;
};

struct Thing {
  Meta meta;
  std::pair<int, int> stamp;  ///< uid, version
};

Result<Thing> project(const json& object) {
  TRAINYARD_ASSIGN(Meta meta, read_meta(object));
  const std::pair<int, int> stamp{std::stoi(meta.uid.substr(1)), std::stoi(meta.resource_version)};
  return Thing{std::move(meta), stamp};
}

/// What a listener knows who only follows the handler's calls; each call must fit what it knows.
class Listener {
 public:
  Handler<Thing> handler() {
    return {.added =
                [this](const auto& now) {
                  EXPECT_TRUE(known.emplace(now->meta.name, now->stamp).second);
                  EXPECT_GT(now->stamp.first, ended[now->meta.name]) << "an end was undone";
                },
            .updated =
                [this](const auto& before, const auto& now) {
                  EXPECT_EQ(known[now->meta.name], before->stamp);
                  EXPECT_EQ(now->stamp.first, before->stamp.first);
                  EXPECT_GT(now->stamp.second, before->stamp.second) << "back in time";
                  known[now->meta.name] = now->stamp;
                },
            .removed =
                [this](const auto& before) {
                  EXPECT_EQ(known[before->meta.name].first, before->stamp.first);
                  ended[before->meta.name] = before->stamp.first;
                  known.erase(before->meta.name);
                },
            .listed = {},
            .refused = [](const std::string& key,
                          const Error& error) { ADD_FAILURE() << key << ": " << error.message; }};
  }

  Content known;
  std::map<std::string, int> ended;  ///< the last uid that has ended
};

Content content_of(const Store<Thing>& store) {
  Content content;
  for (const auto& thing : store.all())
    content[thing->meta.name] = thing->stamp;
  return content;
}

TEST(ReflectorRandomTest, EndsAsTheServerIsWhateverHappened) {
  int faults = 0;
  for (uint64_t seed = 1; seed <= 150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomServer server(seed);
    testing_support::ManualClock clock;
    const auto logger = Logger::to_nowhere();
    const kube::Client client(server, clock, {});
    Listener listener;
    Store<Thing> store(project, {}, listener.handler());
    Reflector reflector(client, store, clock, *logger,
                        {.resource = kube::kPods, .random = [] { return 0.0; }});
    for (int step = 0; step < 300; ++step)
      clock.advance(reflector.step({}));
    server.heal();
    for (int step = 0; step < 200 && content_of(store) != server.content(); ++step)
      clock.advance(reflector.step({}));
    EXPECT_EQ(content_of(store), server.content());
    EXPECT_EQ(content_of(store), listener.known);
    faults += server.faults();
  }
  EXPECT_GT(faults, 150 * 10) << "hardly anything was tried";
}

}  // namespace
}  // namespace trainyard::cache
