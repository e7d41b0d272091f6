// What deleted jobs leave behind, and where.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/operator_process.h"

namespace trainyard::apiserver {
namespace {

class LeftoverTest : public testing_support::OperatorTest {};

TEST_F(LeftoverTest, WhatADeletedJobOfTheSameNameHasLeftMakesRoom) {
  // A finalizer holds what the garbage collector would have taken by now.
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Running"));
  const Json held = {{"metadata", {{"finalizers", Json::array({"test.example/hold"})}}}};
  const Json free = {{"metadata", {{"finalizers", nullptr}}}};
  must({"patch", "service", "train", "--type=merge", "-p", held.dump()});
  must({"delete", "tj", "train", "--cascade=background"});
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Accepted", "False"));
  EXPECT_EQ(reason("train", "Accepted"), "NameConflict");
  must({"patch", "service", "train", "--type=merge", "-p", free.dump()});
  ASSERT_TRUE(reaches("train", "Running"));
  EXPECT_EQ(get({"service", "train"})["metadata"]["ownerReferences"][0]["uid"],
            get({"tj", "train"})["metadata"]["uid"]);
}

}  // namespace
}  // namespace trainyard::apiserver
