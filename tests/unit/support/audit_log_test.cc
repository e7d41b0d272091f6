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

/// The answer to the creation of pod `name` of job `job` at `index`.
AuditEvent created(const std::string& time, const std::string& name, const std::string& job,
                   const std::string& index) {
  const Json labels = {{"trainyard.dev/job-uid", job},
                       {"trainyard.dev/node-index", index},
                       {"trainyard.dev/member", "true"}};
  return {.time = time,
          .user = kUser,
          .verb = "create",
          .resource = "pods",
          .name_space = "n",
          .code = 201,
          .allowed = true,
          .answer = {{"metadata",
                      {{"name", name},
                       {"uid", name},
                       {"labels", labels},
                       {"ownerReferences", Json::array({{{"uid", job}}})}}}}};
}

AuditEvent on_pod(const std::string& time, const std::string& verb, const std::string& name) {
  return {.time = time,
          .user = kUser,
          .verb = verb,
          .resource = "pods",
          .name_space = "n",
          .name = name,
          .code = 200,
          .allowed = true,
          .answer = {{"metadata", {{"name", name}}}}};
}

AuditEvent job_deleted(const std::string& time, const std::string& uid) {
  return {.time = time,
          .verb = "delete",
          .group = "trainyard.dev",
          .resource = "trainingjobs",
          .code = 200,
          .answer = {{"metadata", {{"uid", uid}}}}};
}

std::vector<std::string> judge(const std::vector<AuditEvent>& events) {
  return pod_violations(events, {{"items", Json::array()}}, {{"items", Json::array()}});
}

TEST(PodViolationsTest, AGangThatIsReplacedIsWell) {
  EXPECT_THAT(judge({created("1", "j-0-a", "u", "0"), created("1", "j-1-a", "u", "1"),
                     on_pod("2", "patch", "j-0-a"), on_pod("2", "delete", "j-1-a"),
                     created("3", "j-0-b", "u", "0"), created("3", "j-1-b", "u", "1"),
                     created("3", "k-0-a", "v", "0")}),
              IsEmpty());
}

TEST(PodViolationsTest, TwoMembersOfOneIndexAreSeen) {
  EXPECT_THAT(judge({created("1", "j-0-a", "u", "0"), created("2", "j-0-b", "u", "0")}),
              ElementsAre(HasSubstr("n/j-0-b was made while n/j-0-a was a member")));
}

TEST(PodViolationsTest, APodForAJobThatIsGoneIsSeen) {
  EXPECT_THAT(judge({job_deleted("1", "u"), created("2", "j-0-a", "u", "0")}),
              ElementsAre(HasSubstr("a job that is gone")));
}

TEST(PodViolationsTest, ANameMadeTwiceIsSeen) {
  EXPECT_THAT(judge({created("1", "j-0-a", "u", "0"), on_pod("2", "delete", "j-0-a"),
                     created("3", "j-0-a", "u", "0")}),
              ElementsAre(HasSubstr("made twice")));
}

TEST(PodViolationsTest, RefusedAndDryRunsDoNotCount) {
  AuditEvent refused = created("1", "j-0-a", "u", "0");
  refused.code = 403;
  AuditEvent dry = created("1", "j-0-b", "u", "0");
  dry.dry_run = true;
  EXPECT_THAT(judge({refused, dry, created("2", "j-0-a", "u", "0")}), IsEmpty());
}

TEST(PodViolationsTest, AnOrphanAtRestIsSeen) {
  const Json pod = {{"metadata",
                     {{"name", "j-0-a"},
                      {"namespace", "n"},
                      {"labels", {{"trainyard.dev/job-uid", "u"}}},
                      {"ownerReferences", Json::array({{{"uid", "u"}}})}}}};
  const Json pods = {{"items", Json::array({pod})}};
  const Json none = {{"items", Json::array()}};
  const Json jobs = {{"items", Json::array({{{"metadata", {{"uid", "u"}}}}})}};
  EXPECT_THAT(pod_violations({}, pods, none), ElementsAre(HasSubstr("its job is gone")));
  EXPECT_THAT(pod_violations({}, pods, jobs), IsEmpty());
}

TEST(UnguardedWritesTest, ADeleteWithoutAUidIsSeen) {
  AuditEvent bare = on_pod("1", "delete", "j-0-a");
  AuditEvent guarded = bare;
  guarded.request = {{"preconditions", {{"uid", "x"}}}};
  EXPECT_THAT(unguarded_writes({bare, guarded}, kUser),
              ElementsAre(HasSubstr("delete of pods n/j-0-a")));
}

TEST(UnguardedWritesTest, ARequestWhoseBodyNeverCameMeantNothing) {
  AuditEvent cut = on_pod("1", "patch", "j-0-a");
  cut.code = 504;
  AuditEvent judged = on_pod("2", "patch", "j-0-b");
  judged.code = 404;
  EXPECT_THAT(unguarded_writes({cut, judged}, kUser),
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

TEST(AuditLogTest, ReadsAnsweredRequestsAndWatchesThatHaveBegun) {
  const TemporaryDirectory folder;
  const auto line = [](const char* id, const char* stage, const char* verb) {
    return Json({{"auditID", id},
                 {"stage", stage},
                 {"verb", verb},
                 {"stageTimestamp", std::string("2026-01-01T00:00:0") + id},
                 {"requestURI", "/api/v1/pods"},
                 {"user", {{"username", kUser}}},
                 {"objectRef", {{"resource", "pods"}}},
                 {"responseStatus", {{"code", 200}}}})
               .dump() +
           "\n";
  };
  std::ofstream(folder.path() / "audit.log")
      << line("1", "ResponseStarted", "watch") << line("2", "ResponseComplete", "list")
      << line("1", "ResponseComplete", "watch") << R"({"half": )";
  const std::vector<AuditEvent> events = read_audit_log(folder.path() / "audit.log");
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].verb, "watch");
  EXPECT_EQ(events[1].verb, "list");
  EXPECT_EQ(events[1].code, 200);
}

}  // namespace
}  // namespace trainyard::testing_support
