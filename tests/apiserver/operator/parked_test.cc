#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apiserver/operator/parked_manifests.h"
#include "tests/support/operator_process.h"

namespace trainyard::apiserver {
namespace {

using testing::HasSubstr;

class ParkedTest : public testing_support::OperatorTest {
 protected:
  static std::string name_of(size_t number) { return "bad-" + std::to_string(number); }

  /// All of them in one list, each under its number.
  static Json all_manifests() {
    Json items = Json::array();
    for (const BadManifest& bad : parked_manifests()) {
      Json job = Json::parse(good_manifest(bad.base));
      job.merge_patch(Json::parse(bad.patch));
      job["metadata"]["name"] = name_of(items.size());
      items.push_back(std::move(job));
    }
    return {{"apiVersion", "v1"}, {"kind", "List"}, {"items", std::move(items)}};
  }

  static Json accepted_of(const Json& job) {
    for (const Json& condition :
         job.value("status", Json::object()).value("conditions", Json::array())) {
      if (condition["type"] == "Accepted") return condition;
    }
    return nullptr;
  }
};

TEST_F(ParkedTest, WhatTheSchemaCannotSeeIsToldInACondition) {
  ASSERT_GE(parked_manifests().size(), 15U);
  must_with({"create"}, all_manifests().dump());
  ASSERT_TRUE(wait_until([&] {
    const Json jobs = get({"tj"});
    return std::all_of(jobs["items"].begin(), jobs["items"].end(),
                       [](const Json& job) { return !accepted_of(job).is_null(); });
  })) << must({"get", "tj"});
  for (size_t i = 0; i < parked_manifests().size(); ++i) {
    const BadManifest& bad = parked_manifests()[i];
    const Json accepted = accepted_of(get({"tj", name_of(i)}));
    EXPECT_EQ(accepted["status"], "False") << bad.patch;
    EXPECT_EQ(accepted["reason"], "InvalidSpec") << bad.patch;
    EXPECT_THAT(accepted["message"].get<std::string>(), HasSubstr(bad.field)) << bad.patch;
  }
  EXPECT_TRUE(get({"pods,services,configmaps", "-l", "trainyard.dev/job-name"})["items"].empty());
}

}  // namespace
}  // namespace trainyard::apiserver
