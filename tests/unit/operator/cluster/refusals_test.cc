#include "operator/cluster/refusals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/api/training_job.h"

namespace trainyard::cluster {
namespace {

using kube::Reason;
using nlohmann::json;

kube::ApiError error_of(int status, Reason reason) {
  return {.status = status, .reason = reason, .message = "the server's words"};
}

TEST(RefusalOfTest, AWrongTemplateIsTheUsersToMend) {
  for (const auto& error : {error_of(422, Reason::kInvalid), error_of(400, Reason::kBadRequest),
                            error_of(413, Reason::kRequestEntityTooLarge),
                            error_of(422, Reason::kUnknown), error_of(400, Reason::kUnknown)}) {
    const auto refusal = refusal_of(error);
    ASSERT_TRUE(refusal.has_value()) << error.status;
    EXPECT_EQ(refusal->reason, api::reason::kInvalidPodTemplate);
    EXPECT_EQ(refusal->message, "the server's words");
    EXPECT_FALSE(refusal->passing);
  }
}

TEST(RefusalOfTest, WhatAdmissionForbidsIsToldApart) {
  for (const auto& error : {error_of(403, Reason::kForbidden), error_of(403, Reason::kUnknown)}) {
    const auto refusal = refusal_of(error);
    ASSERT_TRUE(refusal.has_value());
    EXPECT_EQ(refusal->reason, api::reason::kAdmissionRefused);
  }
}

TEST(RefusalOfTest, WhatMayPassIsNoRefusal) {
  for (const auto& error :
       {error_of(0, Reason::kNoAnswer), error_of(409, Reason::kConflict),
        error_of(404, Reason::kNotFound), error_of(409, Reason::kAlreadyExists),
        error_of(429, Reason::kTooManyRequests), error_of(500, Reason::kInternalError),
        error_of(503, Reason::kServiceUnavailable), error_of(401, Reason::kUnauthorized)}) {
    EXPECT_FALSE(refusal_of(error).has_value()) << error.status;
  }
}

TEST(NameIndexesTest, IndexesAreThoseOfTheTemplate) {
  const json theirs = json::parse(R"({"spec": {"initContainers": [{}, {}],
      "containers": [{"env": [{}, {}]}, {"env": [{}]}]}})");
  const json pod = json::parse(R"({"spec": {"initContainers": [{}, {}, {}],
      "containers": [{"env": [{}, {}, {}, {}, {}]}, {"env": [{}]}]}})");
  control::Refusal refusal{api::reason::kInvalidPodTemplate,
                           "[spec.initContainers[1].image: Required value, "
                           "spec.initContainers[0].name: ours, spec.containers[0].env[4].name: "
                           "Invalid, spec.containers[0].env[12].name: Invalid, "
                           "spec.containers[1].env[0].name: Invalid]"};
  name_indexes(pod, theirs, refusal);
  EXPECT_EQ(refusal.message,
            "[spec.template.spec.initContainers[0].image: Required value, "
            "spec.initContainers[0].name: ours, spec.template.spec.containers[0].env[1].name: "
            "Invalid, spec.template.spec.containers[0].env[9].name: Invalid, "
            "spec.containers[1].env[0].name: Invalid]");
}

constexpr char kNoField[] =
    "Pod in version \"v1\" cannot be handled as a Pod: quantities must match the regular "
    "expression";

TEST(NameQuantityTest, AQuantityThatCannotBeReadIsNamed) {
  control::Refusal refusal{api::reason::kInvalidPodTemplate, kNoField};
  name_quantity(R"({"spec": {"containers": [{"name": "a"},
      {"resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": "lots", "memory": "1Gi"}}}]}})",
                refusal);
  EXPECT_EQ(
      refusal.message,
      "spec.template.spec.containers[1].resources.requests[cpu]: \"lots\" is not a quantity; want "
      "e.g. 500m, 2 or 4Gi (" +
          std::string(kNoField) + ")");
  refusal.message = "unable to parse quantity's suffix";
  name_quantity(R"({"spec": {"initContainers": [{"resources": {"limits": {"memory": "4GB"}}}]}})",
                refusal);
  EXPECT_THAT(refusal.message,
              testing::StartsWith("spec.template.spec.initContainers[0].resources.limits[memory]: "
                                  "\"4GB\" is not a quantity"));
}

TEST(NameQuantityTest, OtherRefusalsStayAsTheyAre) {
  const char* const bad =
      R"({"spec": {"containers": [{"resources": {"requests": {"cpu": "lots"}}}]}})";
  const char* const good =
      R"({"spec": {"containers": [{"resources": {"requests": {"cpu": "+1", "memory": "1e3"}}}]}})";
  for (const auto& [pod_template, words] :
       {std::pair(bad, "spec.containers[0].image: Required value"), std::pair(good, kNoField),
        std::pair("no JSON", kNoField), std::pair(R"({"spec": {"containers": 3}})", kNoField)}) {
    control::Refusal refusal{api::reason::kInvalidPodTemplate, words};
    name_quantity(pod_template, refusal);
    EXPECT_EQ(refusal.message, words);
  }
}

}  // namespace
}  // namespace trainyard::cluster
