#include "tests/support/audit_log.h"

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace trainyard::testing_support {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::json;

constexpr char kUser[] = "system:serviceaccount:a:b";

AuditEvent on_pod(const std::string& time, const std::string& verb, const std::string& name) {
  return {.time = time,
          .user = kUser,
          .verb = verb,
          .resource = "pods",
          .name_space = "n",
          .name = name,
          .code = 200,
          .allowed = true,
          .answer = Json::object({{"metadata", {{"name", name}}}})};
}

TEST(UnguardedWritesTest, ADeleteWithoutAUidIsSeen) {
  AuditEvent bare = on_pod("1", "delete", "j-0-a");
  AuditEvent guarded = bare;
  guarded.request = Json::object({{"preconditions", {{"uid", "x"}}}});
  EXPECT_THAT(unguarded_writes({bare, guarded}, kUser),
              ElementsAre(HasSubstr("delete of pods n/j-0-a")));
}

TEST(UnguardedWritesTest, ARequestWhoseBodyNeverCameMeantNothing) {
  AuditEvent cut = on_pod("1", "patch", "j-0-a");
  cut.code = 504;
  AuditEvent judged = on_pod("2", "patch", "j-0-b");
  judged.code = 404;
  AuditEvent forbidden = on_pod("3", "delete", "j-0-c");
  forbidden.code = 403;
  forbidden.allowed = false;
  EXPECT_THAT(unguarded_writes({cut, judged, forbidden}, kUser),
              ElementsAre(HasSubstr("patch of pods n/j-0-b")));
}

TEST(RightsTest, AreNamedAlikeOnBothSides) {
  const Json role = {{"rules", Json::array({{{"apiGroups", Json::array({"", "a.b"})},
                                             {"resources", Json::array({"pods"})},
                                             {"verbs", Json::array({"get", "list"})}}})}};
  EXPECT_THAT(rights_granted(role),
              ElementsAre("a.b/pods get", "a.b/pods list", "pods get", "pods list"));
  EXPECT_THAT(rights_used({on_pod("1", "get", "x")}, kUser), ElementsAre("pods get"));
  EXPECT_THAT(rights_used({on_pod("1", "get", "x")}, "another"), IsEmpty());
}

/// A line of the log. `second` orders the answers; `version`: of the object that was stored.
std::string line(int second, const std::string& id, const std::string& stage,
                 const std::string& verb, const std::string& version = "") {
  Json entry = {{"auditID", id},
                {"stage", stage},
                {"verb", verb},
                {"stageTimestamp", "2026-01-01T00:00:0" + std::to_string(second)},
                {"requestURI", "/api/v1/pods"},
                {"user", {{"username", kUser}}},
                {"objectRef", {{"resource", "pods"}}},
                {"responseStatus", {{"code", 200}}}};
  if (!version.empty()) entry["responseObject"] = {{"metadata", {{"resourceVersion", version}}}};
  return entry.dump() + "\n";
}

std::vector<std::string> verbs_of(const std::string& lines) {
  const TemporaryDirectory folder;
  std::ofstream(folder.path() / "audit.log") << lines;
  std::vector<std::string> verbs;
  for (const AuditEvent& event : read_audit_log(folder.path() / "audit.log"))
    verbs.push_back(event.verb);
  return verbs;
}

TEST(AuditLogTest, ReadsAnsweredRequestsAndWatchesThatHaveBegun) {
  EXPECT_THAT(
      verbs_of(line(1, "a", "ResponseStarted", "watch") + line(2, "b", "ResponseComplete", "list") +
               line(3, "a", "ResponseComplete", "watch") + R"({"half": )"),
      ElementsAre("watch", "list"));
}

TEST(AuditLogTest, PutsWhatWasStoredInTheOrderOfTheStore) {
  EXPECT_THAT(verbs_of(line(1, "a", "ResponseComplete", "create", "11") +
                       line(2, "b", "ResponseComplete", "update", "13") +
                       line(3, "c", "ResponseComplete", "get") +
                       line(4, "d", "ResponseComplete", "patch", "12") +
                       line(5, "e", "ResponseComplete", "delete", "14")),
              ElementsAre("create", "patch", "update", "get", "delete"));
}

/// Its effects are answered before it is.
TEST(AuditLogTest, AnEvictionStandsWhereItWasAskedFor) {
  const std::string eviction =
      Json{{"auditID", "b"},
           {"stage", "ResponseComplete"},
           {"verb", "create"},
           {"requestReceivedTimestamp", "2026-01-01T00:00:02"},
           {"stageTimestamp", "2026-01-01T00:00:05"},
           {"objectRef", {{"resource", "pods"}, {"subresource", "eviction"}}},
           {"responseStatus", {{"code", 201}}}}
          .dump() +
      "\n";
  EXPECT_THAT(verbs_of(line(1, "a", "ResponseComplete", "get", "11") + eviction +
                       line(3, "c", "ResponseComplete", "update", "12")),
              ElementsAre("get", "create", "update"));
}

}  // namespace
}  // namespace trainyard::testing_support
