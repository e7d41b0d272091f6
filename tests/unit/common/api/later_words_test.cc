// Words in a status that a later version has written: they are no faults, mean nothing, and are
// written back.
#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/api/decode.h"
#include "common/api/encode.h"

namespace trainyard::api {
namespace {

using nlohmann::json;

constexpr char kStatus[] = R"({
  "phase": "Checking",
  "restarts": {"total": 5, "classes": [{"class": "Hang", "total": 2}, {"class": "Quota", "total": 3}]},
  "attempts": [{"generation": 1, "class": "Quota", "reason": "NoRoom"}],
  "conditions": [
    {"type": "Accepted", "status": "True", "reason": "Accepted"},
    {"type": "Fenced", "status": "True", "reason": "ByAnother", "message": "why",
     "observedGeneration": 7, "lastTransitionTime": "2026-01-02T03:04:05Z"}]})";

json job_with(const std::string& status) {
  json job = json::parse(R"({"apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob",
      "metadata": {"name": "job"}, "spec": {"agent": "None", "template": {"spec": {"containers":
      [{"name": "trainer", "image": "i", "command": ["c"]}]}}}})");
  job["status"] = json::parse(status);
  return job;
}

TEST(LaterWordsTest, AreNoFaultsAndAreWrittenBack) {
  const auto job = decode_training_job(job_with(kStatus).dump());
  ASSERT_TRUE(job) << job.error().message;
  const TrainingJobStatus& status = job->status;
  EXPECT_EQ(status.phase, JobPhase::kPending) << "worked out anew";
  ASSERT_EQ(status.conditions.size(), 2U);
  EXPECT_EQ(status.conditions[0].type, ConditionType::kAccepted);
  EXPECT_FALSE(status.conditions[1].type.value());
  EXPECT_EQ(std::count_if(status.conditions.begin(), status.conditions.end(),
                          [](const auto& c) { return c.type == ConditionType::kAccepted; }),
            1);
  EXPECT_EQ(status.restarts.classes[0].failure_class, FailureClass::kHang);
  EXPECT_NE(status.restarts.classes[1].failure_class, FailureClass::kApplication);
  EXPECT_NE(status.attempts[0].failure_class, FailureClass::kApplication);

  const json written = json::parse(encode_status(status));
  const json read = json::parse(kStatus);
  EXPECT_EQ(written["conditions"][1], read["conditions"][1]);
  EXPECT_EQ(written["restarts"]["classes"][1]["class"], "Quota");
  EXPECT_EQ(written["attempts"][0]["class"], "Quota");
}

/// In a spec they are faults.
TEST(LaterWordsTest, OfASpecAreRefused) {
  json job = job_with("{}");
  job["spec"]["failurePolicy"] = {
      {"budgets", json::array({{{"class", "Quota"}, {"maxRestarts", 1}}})}};
  const auto refused = decode_training_job(job.dump());
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              ::testing::HasSubstr(R"(spec.failurePolicy.budgets[0].class: found "Quota")"));
}

}  // namespace
}  // namespace trainyard::api
