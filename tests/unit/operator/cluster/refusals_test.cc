#include "operator/cluster/refusals.h"

#include <gtest/gtest.h>

#include "common/api/training_job.h"

namespace trainyard::cluster {
namespace {

using kube::Reason;

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

}  // namespace
}  // namespace trainyard::cluster
