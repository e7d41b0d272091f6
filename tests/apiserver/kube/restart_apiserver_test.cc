// A reflector while its API server is killed, compacted and started again. It has a control plane
// of its own: others would not bear this.
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "operator/cache/reflector.h"
#include "operator/cache/store.h"
#include "operator/kube/client.h"
#include "operator/kube/config.h"
#include "operator/kube/http_transport.h"
#include "operator/kube/watch_event.h"
#include "tests/support/control_plane.h"
#include "tests/support/paths.h"
#include "tests/support/plane_faults.h"
#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

using kube::kConfigMaps;
using kube::Reason;
using nlohmann::json;

constexpr char kNamespace[] = "default";
constexpr std::chrono::seconds kDeadline{90};

struct Map {
  cache::Meta meta;
};

Result<Map> project(const json& object) {
  TRAINYARD_ASSIGN(cache::Meta meta, cache::read_meta(object));
  return Map{std::move(meta)};
}

json config_map(const std::string& name) {
  return {{"metadata", {{"name", name}, {"labels", {{"test", "mine"}}}}}};
}

class ApiServerRestartTest : public testing::Test {
 protected:
  void SetUp() override {
    script("up", {"--guard", std::to_string(::getpid())});
    config_ = kube::load_kubeconfig(plane_ / "admin.kubeconfig", "").value();
    transport_ = kube::make_http_transport(config_, clock_, "trainyard-test").value();
  }
  void TearDown() override {
    reflecting_ = {};
    script("down", {"--wipe"});
  }

  /// tools/kubernetes/NAME of the plane, to its end.
  void script(const std::string& name, const std::vector<std::string>& arguments) {
    std::vector<std::string> argv = {testing_support::source_path("tools/kubernetes/" + name),
                                     plane_};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const auto result = testing_support::run_command(
        {.argv = argv, .output = scratch_.path() / "out", .errors = scratch_.path() / "err"},
        std::chrono::minutes(3));
    ASSERT_EQ(result.exit_code, 0) << name << ": " << result.output << result.errors;
  }

  void reflect() {
    reflector_ =
        std::make_unique<cache::Reflector>(client(), store_, clock_, *logger_,
                                           cache::Reflector::Options{.resource = kConfigMaps,
                                                                     .ns = kNamespace,
                                                                     .label_selector = "test=mine",
                                                                     .page_size = 2,
                                                                     .random = [] { return 0.0; }});
    reflecting_ = std::jthread([this](const std::stop_token& stop) { reflector_->run(stop); });
    ASSERT_TRUE(store_.wait_synced(kDeadline, {}, "config maps").has_value());
  }

  const kube::Client& client() {
    if (!client_)
      client_ = std::make_unique<kube::Client>(*transport_, clock_, kube::Client::Options{});
    return *client_;
  }

  std::set<std::string> names() {
    std::set<std::string> names;
    for (const auto& map : store_.all())
      names.insert(map->meta.name);
    return names;
  }

  template <class Condition>
  static bool wait_until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return true;
  }

  const testing_support::TemporaryDirectory scratch_;
  const std::filesystem::path plane_ = scratch_.path() / "plane";
  SystemClock clock_;
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  kube::ServerConfig config_;
  std::unique_ptr<kube::Transport> transport_;
  std::unique_ptr<kube::Client> client_;
  cache::Store<Map> store_{project, {}, {}};
  std::unique_ptr<cache::Reflector> reflector_;
  std::jthread reflecting_;
};

TEST_F(ApiServerRestartTest, ReflectorAndListsSurviveKillsAndCompaction) {
  for (const char* name : {"a", "b", "c"})
    ASSERT_TRUE(client().create(kConfigMaps, kNamespace, config_map(name)).has_value());
  reflect();
  EXPECT_EQ(names(), (std::set<std::string>{"a", "b", "c"}));
  ASSERT_TRUE(
      wait_until([&] { return reflector_->report().state == cache::ReflectorState::kWatching; }));

  // A list that is still under way when its past is compacted.
  const auto page = client().list(kConfigMaps, kNamespace, {.limit = 1});
  ASSERT_TRUE(page.has_value()) << page.error().message;
  ASSERT_NE(page->next, "");
  ASSERT_TRUE(client().create(kConfigMaps, kNamespace, config_map("later")).has_value());
  ASSERT_TRUE(wait_until([&] { return names().contains("later"); }));

  testing_support::kill_part(plane_, "kube-apiserver");
  ASSERT_TRUE(wait_until([&] { return reflector_->report().failure.has_value(); }))
      << "the cut watch went unnoticed";
  EXPECT_EQ(names(), (std::set<std::string>{"a", "b", "c", "later"})) << "what was seen stays";
  testing_support::revive(plane_);
  // Connections from before the kill are found dead one by one, each by a call that fails.
  std::string version;
  ASSERT_TRUE(wait_until([&] {
    const auto made = client().create(kConfigMaps, kNamespace, config_map("d"));
    if (made) version = made->at("metadata").at("resourceVersion");
    return made.has_value();
  }));
  ASSERT_TRUE(wait_until([&] {
    const auto gone = client().remove(kConfigMaps, {kNamespace, "a"}, {});
    return gone || gone.error().reason == Reason::kNotFound;
  }));
  EXPECT_TRUE(wait_until([&] { return names() == std::set<std::string>{"b", "c", "d", "later"}; }));

  testing_support::compact_history(plane_, version);
  const auto rest = client().list(kConfigMaps, kNamespace, {.limit = 1, .next = page->next});
  ASSERT_FALSE(rest.has_value()) << "the past was still there";
  EXPECT_EQ(rest.error().status, 410);
  EXPECT_EQ(rest.error().reason, Reason::kExpired);
  EXPECT_TRUE(rest.error().needs_relist());

  // A watch from before the restart: the server no longer knows what came after it.
  auto watch = client().watch(kConfigMaps, kNamespace,
                              {.resource_version = "1", .idle = std::chrono::seconds(60)});
  const auto event =
      watch ? watch->next() : kube::ApiResult<std::optional<kube::WatchEvent>>(watch.error());
  ASSERT_FALSE(event.has_value());
  EXPECT_TRUE(event.error().needs_relist()) << event.error().message;
}

}  // namespace
}  // namespace trainyard
