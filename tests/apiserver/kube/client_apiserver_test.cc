// The client, the reflector and the store against a real API server: what the scripted tests take
// for granted about its answers.
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "operator/cache/reflector.h"
#include "operator/cache/store.h"
#include "operator/kube/client.h"
#include "operator/kube/config.h"
#include "operator/kube/http_transport.h"
#include "tests/support/control_plane.h"

namespace trainyard {
namespace {

using kube::kConfigMaps;
using kube::kPods;
using kube::Reason;
using nlohmann::json;
using testing::HasSubstr;

json config_map(const std::string& name, const std::string& value) {
  return {{"metadata", {{"name", name}, {"labels", {{"test", "mine"}}}}}, {"data", {{"v", value}}}};
}

json pod(const std::string& name) {
  return {{"metadata", {{"name", name}}},
          {"spec", {{"containers", json::array({{{"name", "c"}, {"image", "none"}}})}}}};
}

class KubeClientTest : public testing_support::ApiServerTest {
 protected:
  void SetUp() override {
    ApiServerTest::SetUp();
    config_ = kube::load_kubeconfig(plane().kubeconfig(), "").value();
    connect(config_);
  }

  void connect(const kube::ServerConfig& config) {
    client_.reset();
    transport_ = kube::make_http_transport(config, clock_, "trainyard-test").value();
    client_ = std::make_unique<kube::Client>(*transport_, clock_, kube::Client::Options{});
  }

  std::string uid_of(const json& object) { return object["metadata"]["uid"]; }
  std::string version_of(const json& object) { return object["metadata"]["resourceVersion"]; }

  SystemClock clock_;
  kube::ServerConfig config_;
  std::unique_ptr<kube::Transport> transport_;
  std::unique_ptr<kube::Client> client_;
};

TEST_F(KubeClientTest, WritesAreComparedAndSwapped) {
  const auto made = client_->create(kConfigMaps, name_space(), config_map("a", "1"));
  ASSERT_TRUE(made.has_value()) << made.error().message;
  EXPECT_FALSE(made->at("metadata").contains("managedFields"));
  EXPECT_EQ(client_->create(kConfigMaps, name_space(), config_map("a", "1")).error().reason,
            Reason::kAlreadyExists);

  json changed = *made;
  changed["data"]["v"] = "2";
  const auto updated = client_->update(kConfigMaps, changed);
  ASSERT_TRUE(updated.has_value()) << updated.error().message;
  EXPECT_EQ(client_->update(kConfigMaps, changed).error().reason, Reason::kConflict);

  const kube::ObjectName name{name_space(), "a"};
  const json change = {{"data", {{"v", nullptr}, {"w", "3"}}}};
  EXPECT_EQ(client_->merge_patch(kConfigMaps, name, change, {"another-uid", ""}).error().reason,
            Reason::kConflict);
  EXPECT_EQ(client_->merge_patch(kConfigMaps, name, change, {uid_of(*made), version_of(*made)})
                .error()
                .reason,
            Reason::kConflict);
  const auto patched =
      client_->merge_patch(kConfigMaps, name, change, {uid_of(*made), version_of(*updated)});
  ASSERT_TRUE(patched.has_value()) << patched.error().message;
  EXPECT_EQ(patched->at("data"), (json{{"w", "3"}}));

  EXPECT_EQ(
      client_->remove(kConfigMaps, name, {.preconditions = {"another-uid", ""}}).error().reason,
      Reason::kConflict);
  EXPECT_EQ(
      client_->remove(kConfigMaps, name, {.preconditions = {"", version_of(*made)}}).error().reason,
      Reason::kConflict);
  EXPECT_TRUE(
      client_->remove(kConfigMaps, name, {.preconditions = {uid_of(*made), ""}}).has_value());
  EXPECT_EQ(client_->remove(kConfigMaps, name, {}).error().reason, Reason::kNotFound);
  EXPECT_EQ(client_->get(kConfigMaps, name).error().reason, Reason::kNotFound);
}

TEST_F(KubeClientTest, RefusalsNameTheField) {
  json bad = pod("p");
  bad["spec"]["containers"][0]["name"] = "Not A Name";
  const auto invalid = client_->create(kPods, name_space(), bad);
  ASSERT_FALSE(invalid.has_value());
  EXPECT_EQ(invalid.error().reason, Reason::kInvalid);
  ASSERT_FALSE(invalid.error().causes.empty());
  EXPECT_EQ(invalid.error().causes[0].field, "spec.containers[0].name");

  json unknown = pod("p");
  unknown["spec"]["containers"][0]["imagee"] = "x";
  const kube::WriteOptions strict{.dry_run = kube::DryRun::kServer,
                                  .field_validation = kube::FieldValidation::kStrict};
  const auto refused = client_->create(kPods, name_space(), unknown, strict);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("imagee"));
  EXPECT_TRUE(client_->create(kPods, name_space(), pod("p"), strict).has_value());
  EXPECT_EQ(client_->get(kPods, {name_space(), "p"}).error().reason, Reason::kNotFound)
      << "a dry run leaves nothing";
}

TEST_F(KubeClientTest, DeletesWithGraceAndPropagation) {
  ASSERT_TRUE(client_->create(kPods, name_space(), pod("p")).has_value());
  const kube::ObjectName name{name_space(), "p"};
  const auto asked = client_->remove(
      kPods, name, {.propagation = kube::Propagation::kForeground, .grace_seconds = 0});
  ASSERT_TRUE(asked.has_value()) << asked.error().message;
  EXPECT_TRUE(wait_until([&] {
    const auto now = client_->get(kPods, name);
    return !now && now.error().reason == Reason::kNotFound;
  }));
}

TEST_F(KubeClientTest, WhoMayNotIsTold) {
  must({"create", "serviceaccount", "nobody"});
  const std::string token = must({"create", "token", "nobody"});
  kube::ServerConfig config;
  config.server = config_.server;
  config.authority = config_.authority;
  config.token_file = folder() / "token";
  ASSERT_TRUE(write_file_atomic(config.token_file, token).has_value());
  connect(config);
  EXPECT_EQ(client_->list(kPods, name_space(), {}).error().reason, Reason::kForbidden);
  EXPECT_EQ(client_->watch(kPods, name_space(), {.idle = std::chrono::seconds(60)}).error().reason,
            Reason::kForbidden);

  ASSERT_TRUE(write_file_atomic(config.token_file, "no-such-token").has_value());
  connect(config);
  EXPECT_EQ(client_->list(kPods, name_space(), {}).error().reason, Reason::kUnauthorized);
  ASSERT_TRUE(write_file_atomic(config.token_file, token).has_value());
  EXPECT_EQ(client_->list(kPods, name_space(), {}).error().reason, Reason::kForbidden)
      << "the 401 made it read the rotated token at once";
}

struct Map {
  cache::Meta meta;
  std::string value;
};

Result<Map> project(const json& object) {
  TRAINYARD_ASSIGN(cache::Meta meta, cache::read_meta(object));
  return Map{std::move(meta), object.at("data").at("v").get<std::string>()};
}

/// The labelled ConfigMaps of the store as "name=value".
std::set<std::string> content_of(const cache::Store<Map>& store) {
  std::set<std::string> content;
  for (const auto& map : store.all())
    content.insert(map->meta.name + "=" + map->value);
  return content;
}

TEST_F(KubeClientTest, AReflectorFollowsACollectionPageByPage) {
  std::set<std::string> expected;
  for (int i = 0; i < 7; ++i) {
    const std::string name = "m" + std::to_string(i);
    ASSERT_TRUE(client_->create(kConfigMaps, name_space(), config_map(name, "0")).has_value());
    expected.insert(name + "=0");
  }
  cache::Store<Map> store(project, {}, {});
  const auto logger = Logger::to_nowhere();
  cache::Reflector reflector(*client_, store, clock_, *logger,
                             {.resource = kConfigMaps,
                              .ns = name_space(),
                              .label_selector = "test=mine",
                              .page_size = 3,
                              .random = [] { return 0.0; }});
  std::jthread thread([&](const std::stop_token& stop) { reflector.run(stop); });
  ASSERT_TRUE(store.wait_synced(kDeadline, {}, "config maps").has_value());
  EXPECT_EQ(content_of(store), expected);

  json changed = client_->get(kConfigMaps, {name_space(), "m3"}).value();
  changed["data"]["v"] = "1";
  ASSERT_TRUE(client_->update(kConfigMaps, changed).has_value());
  ASSERT_TRUE(client_->remove(kConfigMaps, {name_space(), "m4"}, {}).has_value());
  ASSERT_TRUE(client_->create(kConfigMaps, name_space(), config_map("new", "0")).has_value());
  expected.erase("m3=0");
  expected.erase("m4=0");
  expected.insert({"m3=1", "new=0"});
  EXPECT_TRUE(wait_until([&] { return content_of(store) == expected; }));
  EXPECT_EQ(reflector.report().lists, 1);
  EXPECT_FALSE(reflector.report().failure.has_value());
}

}  // namespace
}  // namespace trainyard
