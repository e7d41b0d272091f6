#include "operator/runtime/submit.h"

#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::operator_runtime {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::status_body;

constexpr char kManifest[] =
    "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: try}\n"
    "spec: {numNodes: 2, template: {spec: {containers: [{name: trainer, image: a}]}}}\n";

class SubmitTest : public testing::Test {
 protected:
  SubmitTest() {
    options_.file = folder_.path() / "job.yaml";
    options_.period = Duration(0);
    write(kManifest);
    transport_.on_call([this](const kube::Request&) { clock_.advance(std::chrono::seconds(1)); });
  }
  void write(const std::string& text) const { std::ofstream(options_.file) << text; }
  Result<JobEnd> run() {
    const kube::Client client(transport_, clock_, {});
    return submit(client, clock_, options_, "team-a", stop_.get_token(), out_);
  }
  void no_job() { transport_.answer(404, status_body(404, "NotFound", "no such job")); }
  void job(const std::string& uid, const std::string& phase, const std::string& condition = "") {
    json object = {{"metadata", {{"name", "try"}, {"uid", uid}}}, {"status", {{"phase", phase}}}};
    if (!condition.empty()) {
      object["status"]["conditions"] =
          json::array({{{"type", "Running"}, {"status", "False"}},
                       {{"type", condition}, {"status", "True"}, {"message", "so it ended"}}});
    }
    transport_.answer(200, object.dump());
  }
  /// "GET", "POST" ... in order.
  std::vector<std::string> verbs() const {
    std::vector<std::string> made;
    for (const kube::Request& request : transport_.requests())
      made.emplace_back(request.method == kube::Method::kGet      ? "GET"
                        : request.method == kube::Method::kPost   ? "POST"
                        : request.method == kube::Method::kDelete ? "DELETE"
                                                                  : "another");
    return made;
  }

  const testing_support::TemporaryDirectory folder_;
  testing_support::ScriptedTransport transport_;
  testing_support::ManualClock clock_;
  SubmitOptions options_;
  std::stop_source stop_;
  std::ostringstream out_;
};

TEST_F(SubmitTest, SubmitsWaitsAndRemoves) {
  no_job();
  job("1", "");
  job("1", "Pending");
  job("1", "Running");
  job("1", "Running");
  job("1", "Complete", "Complete");
  transport_.answer(200, "{}");
  const auto end = run();
  ASSERT_TRUE(end.has_value()) << end.error().message;
  EXPECT_EQ(*end, JobEnd::kComplete);
  EXPECT_THAT(verbs(), ElementsAre("GET", "POST", "GET", "GET", "GET", "GET", "DELETE"));
  const std::vector<kube::Request> requests = transport_.requests();
  EXPECT_EQ(requests[1].path, "/apis/trainyard.dev/v1alpha1/namespaces/team-a/trainingjobs");
  EXPECT_EQ(requests[1].query, "fieldValidation=Strict") << "a key that is misspelt does nothing";
  EXPECT_EQ(json::parse(requests[1].body)["spec"]["numNodes"], 2);
  EXPECT_EQ(json::parse(requests[6].body)["preconditions"]["uid"], "1");
  EXPECT_EQ(out_.str(),
            "TrainingJob team-a/try: created\nTrainingJob team-a/try: Pending\n"
            "TrainingJob team-a/try: Running\nTrainingJob team-a/try: Complete\n"
            "TrainingJob team-a/try: Complete: so it ended\n");
}

TEST_F(SubmitTest, AFailedJobIsAnEndAndStaysWhereItIsToStay) {
  options_.keep = true;
  options_.ns = "team-b";
  no_job();
  job("1", "");
  job("1", "Failed", "Failed");
  const auto end = run();
  ASSERT_TRUE(end.has_value()) << end.error().message;
  EXPECT_EQ(*end, JobEnd::kFailed);
  EXPECT_THAT(verbs(), ElementsAre("GET", "POST", "GET"));
  EXPECT_THAT(transport_.last_request().path, HasSubstr("/namespaces/team-b/"));
}

TEST_F(SubmitTest, AJobThatIsThereStopsItUnlessItIsReplaced) {
  job("0", "Running");
  const auto refused = run();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(refused.error().message, HasSubstr("--replace"));

  options_.replace = true;
  job("0", "Running");
  transport_.answer(200, "{}");
  job("0", "Running");  // going
  no_job();
  job("1", "");
  job("1", "Complete", "Complete");
  transport_.answer(200, "{}");
  const auto end = run();
  ASSERT_TRUE(end.has_value()) << end.error().message;
  EXPECT_THAT(verbs(), ElementsAre("GET", "GET", "DELETE", "GET", "GET", "POST", "GET", "DELETE"));
}

TEST_F(SubmitTest, TheTimeOutTellsWhatWasLastSeen) {
  options_.timeout = std::chrono::seconds(4);
  no_job();
  job("1", "");
  for (int i = 0; i < 10; ++i)
    job("1", "Pending");
  const auto end = run();
  ASSERT_FALSE(end.has_value());
  EXPECT_EQ(end.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(end.error().message,
              AllOf(HasSubstr("team-a/try"), HasSubstr("waited 4 s"), HasSubstr("Pending")));
  EXPECT_EQ(verbs().back(), "DELETE") << "it is not left behind";
}

TEST_F(SubmitTest, AJobWithoutAStatusIsToldOfWhenAnOperatorWouldHaveWrittenOne) {
  no_job();
  for (int i = 0; i < 9; ++i)
    job("1", "");
  job("1", "Pending");
  job("1", "Complete", "Complete");
  transport_.answer(200, "{}");
  ASSERT_TRUE(run().has_value());
  EXPECT_THAT(out_.str(), testing::Not(HasSubstr("without a status")));

  options_.timeout = std::chrono::seconds(14);
  no_job();
  for (int i = 0; i < 14; ++i)
    job("1", "");
  transport_.answer(200, "{}");
  const auto end = run();
  ASSERT_FALSE(end.has_value());
  EXPECT_THAT(out_.str(), HasSubstr("team-a/try: without a status from an operator\n"));
  EXPECT_THAT(end.error().message,
              HasSubstr("waited 14 s for its end; it is still: without a status"));
}

TEST_F(SubmitTest, AnAbsentServerIsAskedAgainAndARefusalIsNot) {
  transport_.fail({ErrorCode::kUnavailable, "connection refused"});
  transport_.answer(503, status_body(503, "ServiceUnavailable", "later"));
  no_job();
  transport_.answer(403, status_body(403, "Forbidden", "may not create"));
  const auto end = run();
  ASSERT_FALSE(end.has_value());
  EXPECT_THAT(end.error().message, AllOf(HasSubstr("create"), HasSubstr("may not create")));
  EXPECT_EQ(transport_.left(), 0U);
}

TEST_F(SubmitTest, AJobThatGoesMeanwhileIsAnError) {
  no_job();
  job("1", "");
  no_job();
  transport_.answer(404, status_body(404, "NotFound", "no such job"));
  const auto end = run();
  ASSERT_FALSE(end.has_value());
  EXPECT_THAT(end.error().message, HasSubstr("deleted by somebody else"));
}

TEST_F(SubmitTest, AStopEndsTheWait) {
  no_job();
  job("1", "");
  job("1", "Running");
  transport_.answer(200, "{}");
  stop_.request_stop();
  const auto end = run();
  ASSERT_FALSE(end.has_value());
  EXPECT_EQ(end.error().code, ErrorCode::kAborted);
}

TEST_F(SubmitTest, ABadManifestIsRefusedWithItsPlace) {
  for (const auto& [text, named] : std::vector<std::pair<std::string, std::string>>{
           {"kind: Pod\nmetadata: {name: a}\n", "wanted one TrainingJob"},
           {"kind: TrainingJob\nmetadata: {}\n", "metadata.name"},
           {"kind: TrainingJob\nkind: Pod\n", "job.yaml:2"},
           {"- a\n", "wanted one TrainingJob"}}) {
    write(text);
    const auto end = run();
    ASSERT_FALSE(end.has_value()) << text;
    EXPECT_EQ(end.error().code, ErrorCode::kInvalidConfig) << text;
    EXPECT_THAT(end.error().message, HasSubstr(named)) << text;
  }
  EXPECT_TRUE(transport_.requests().empty());
}

}  // namespace
}  // namespace trainyard::operator_runtime
