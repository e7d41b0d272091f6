#include "tests/support/invariants.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::testing_support {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::json;

constexpr char kOperator[] = "operator";

/// A log in the making: job "u" of the name "j".
class Log {
 public:
  Log& add(const std::string& user, const std::string& verb, const std::string& resource,
           const std::string& name, Json answer) {
    AuditEvent event;
    event.time = time_of(events_.size());
    event.user = user;
    event.verb = verb;
    event.resource = resource;
    event.name_space = std::string("n");
    event.name = name;
    event.code = verb == "create" ? 201 : 200;
    event.request = {{"metadata", {{"uid", "x"}, {"resourceVersion", "1"}}},
                     {"preconditions", {{"uid", "x"}}}};
    event.answer = std::move(answer);
    events_.push_back(std::move(event));
    return *this;
  }
  Log& job() { return add("user", "create", "trainingjobs", "j", job_object(Json::object())); }
  Log& status(const Json& status) {
    return add(kOperator, "update", "trainingjobs/status", "j", job_object(status));
  }
  Log& generation(int64_t generation, int64_t restarts, const Json& more = Json::object()) {
    Json status = {{"observedGeneration", 1},
                   {"membership", {{"generation", generation}}},
                   {"restarts", {{"total", restarts}}}};
    status.merge_patch(more);
    return this->status(status);
  }
  Log& pod(const std::string& user, const std::string& verb, const std::string& name,
           int64_t generation, const std::string& phase = "Running", bool member = true) {
    Json labels = {{"trainyard.dev/job-uid", "u"},
                   {"trainyard.dev/node-index", "0"},
                   {"trainyard.dev/created-generation", std::to_string(generation)}};
    if (member) labels["trainyard.dev/member"] = "true";
    return add(user, verb, verb == "update" ? "pods/status" : "pods", name,
               {{"metadata",
                 {{"name", name},
                  {"uid", name},
                  {"labels", labels},
                  {"ownerReferences", Json::array({{{"uid", "u"}}})}}},
                {"status", {{"phase", phase}}}});
  }
  std::vector<std::string> judged(bool late_writers = false) const {
    Case made;
    made.events = &events_;
    made.operator_user = kOperator;
    made.late_writers = late_writers;
    made.remaining = {{"items", Json::array()}};
    made.jobs = {{"items", Json::array()}};
    return invariant_violations(made);
  }

 private:
  static std::string time_of(size_t index) { return std::string(index, 't'); }
  static Json job_object(const Json& status) {
    return {
        {"metadata", {{"name", "j"}, {"uid", "u"}}}, {"spec", Json::object()}, {"status", status}};
  }
  std::vector<AuditEvent> events_;
};

/// A job whose pod fails and is replaced, written ahead.
Log restarted() {
  Log log;
  log.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
  log.pod("kubelet", "update", "j-0-a", 1, "Failed").generation(2, 1);
  log.pod(kOperator, "patch", "j-0-a", 1, "Failed", false);
  log.pod(kOperator, "delete", "j-0-a", 1, "Failed", false);
  log.pod(kOperator, "create", "j-0-b", 2);
  return log;
}

TEST(InvariantsTest, ARestartWrittenAheadIsWell) { EXPECT_THAT(restarted().judged(), IsEmpty()); }

TEST(InvariantsTest, ARestartThatIsCountedTwiceIsSeen) {
  Log log = restarted();
  log.generation(3, 2);
  EXPECT_THAT(log.judged(), Contains(HasSubstr("2 restarts are counted of 1")));
}

TEST(InvariantsTest, AnEffectBeforeItsStatusIsSeen) {
  Log made;
  made.job().pod(kOperator, "create", "j-0-a", 1);
  EXPECT_THAT(made.judged(), Contains(HasSubstr("before it was written down")));
  Log condemned;
  condemned.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
  condemned.pod(kOperator, "delete", "j-0-a", 1);
  EXPECT_THAT(condemned.judged(), Contains(HasSubstr("which the status does not say")));
}

TEST(InvariantsTest, AGenerationWithoutAReasonIsSeen) {
  Log log;
  log.job().generation(1, 0).generation(2, 0);
  EXPECT_THAT(log.judged(), Contains(HasSubstr("without its restart, resize or start")));
}

TEST(InvariantsTest, AStatusThatGoesBackIsSeen) {
  Log log = restarted();
  log.generation(1, 0);
  EXPECT_THAT(log.judged(), Contains(HasSubstr("generation -1")));
  const Json complete = {{"conditions", {{{"type", "Complete"}, {"status", "True"}}}}};
  Log ended;
  ended.job().generation(1, 0, complete).generation(1, 0);
  EXPECT_THAT(ended.judged(), Contains(HasSubstr("Complete was taken back")));
}

TEST(InvariantsTest, AnEndBeforeItsPodsHaveEndedIsSeen) {
  Log log;
  log.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
  log.generation(1, 0, {{"conditions", {{{"type", "Failed"}, {"status", "True"}}}}});
  EXPECT_THAT(log.judged(), Contains(HasSubstr("Failed though pods still run")));
}

TEST(InvariantsTest, ALatePodIsSeenUnlessSomebodyStoodStill) {
  Log log = restarted();
  log.pod(kOperator, "create", "j-0-c", 1);
  EXPECT_THAT(log.judged(), Contains(HasSubstr("beyond it")));
  EXPECT_THAT(log.judged(/*late_writers=*/true), IsEmpty());
}

}  // namespace
}  // namespace trainyard::testing_support
