// What a user of kubectl sees of jobs that an operator works on.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/operator_process.h"
#include "tests/support/paths.h"

namespace trainyard::apiserver {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class KubectlTest : public testing_support::OperatorTest {};

TEST_F(KubectlTest, ServerSideApplyOwnsTheSpecAndTheOperatorTheStatusAlone) {
  const Json job = job_manifest("train", 2);
  must_with({"apply", "--server-side", "--field-manager=alice"}, job.dump());
  ASSERT_TRUE(reaches("train", "Running"));
  const int64_t generation = get({"tj", "train"})["metadata"]["generation"];
  must_with({"apply", "--server-side", "--field-manager=alice"}, job.dump());

  Json change = {{"apiVersion", job["apiVersion"]},
                 {"kind", job["kind"]},
                 {"metadata", {{"name", "train"}}},
                 {"spec", {{"numNodes", 3}}}};
  const auto refused =
      kubectl_with({"apply", "--server-side", "--field-manager=bob"}, change.dump());
  EXPECT_NE(refused.exit_code, 0) << refused.output;
  EXPECT_THAT(refused.errors, AllOf(HasSubstr("alice"), HasSubstr(".spec.numNodes")));
  change["spec"] = {{"ttlSecondsAfterFinished", 900}};
  must_with({"apply", "--server-side", "--field-manager=bob"}, change.dump());

  const Json stored = get({"tj", "train", "--show-managed-fields"});
  EXPECT_EQ(stored["metadata"]["generation"], generation + 1) << "the second apply changed nothing";
  EXPECT_EQ(stored["spec"]["ttlSecondsAfterFinished"], 900);
  bool any = false;
  for (const Json& entry : stored["metadata"]["managedFields"]) {
    if (entry["manager"] != "trainyard-operator") continue;
    any = true;
    EXPECT_EQ(entry.value("subresource", ""), "status") << entry.dump();
    EXPECT_FALSE(entry["fieldsV1"].contains("f:spec")) << entry.dump();
  }
  EXPECT_TRUE(any) << stored["metadata"]["managedFields"].dump(2);
  EXPECT_TRUE(runs("train", 2, 0));
}

TEST_F(KubectlTest, ADryRunShowsTheDefaultsAndStartsNothing) {
  const Json tried = Json::parse(
      must_with({"apply", "--dry-run=server", "-o", "json"}, job_manifest("tried", 2).dump()));
  EXPECT_EQ(tried["spec"]["failurePolicy"]["restartStrategy"], "RecreateAll");
  apply(job_manifest("train", 1));
  ASSERT_TRUE(reaches("train", "Running"));
  // What the operator has seen and done by now would include the other.
  EXPECT_NE(kubectl({"get", "tj", "tried"}).exit_code, 0);
  EXPECT_TRUE(pods("tried").empty());
  const auto deleted = kubectl({"delete", "tj", "train", "--dry-run=server"});
  EXPECT_EQ(deleted.exit_code, 0) << deleted.errors;
  EXPECT_TRUE(runs("train", 1, 0));
}

TEST_F(KubectlTest, ColumnsAndExplainTellWhereAJobIs) {
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Running"));
  const std::string narrow = must({"get", "trainingjobs"});
  EXPECT_THAT(narrow, ContainsRegex("NAME +PHASE +REASON +READY +NODES +STEP +RESTARTS +AGE\n"));
  EXPECT_THAT(narrow, ContainsRegex("train +Running +AllNodesReady +2 +2 .*[0-9]+s"));
  EXPECT_THAT(must({"get", "tj", "-o", "wide"}),
              AllOf(ContainsRegex("LOSS +TOKENS/S +GOODPUT +GENERATION +SUSPENDED"),
                    ContainsRegex("train +Running .* 1 ")));
  EXPECT_THAT(must({"get", "trainyard"}), HasSubstr("train")) << "by category";
  EXPECT_THAT(must({"get", "all"}), Not(HasSubstr("trainingjob")));
  EXPECT_EQ(must({"get", "tj", "train", "-o", "jsonpath={.status.nodes.ready}"}), "2");
  EXPECT_THAT(must({"explain", "tj.status.nodes.condemned"}), HasSubstr("condemned"));
  EXPECT_THAT(must({"explain", "tj.spec.failurePolicy.rules", "--recursive"}),
              AllOf(HasSubstr("onExitCodes"), HasSubstr("countTowardsMax")));
}

TEST_F(KubectlTest, ThePolicyBesideKueueAdmitsOnlySuspendedJobs) {
  const std::string policy = testing_support::source_path("manifests/policies/beside-kueue.yaml");
  apply(job_manifest("before", 1));
  ASSERT_TRUE(reaches("before", "Running"));
  must({"apply", "-f", policy});
  must({"label", "namespace", name_space(), "trainyard.dev/beside-kueue=true"});
  Json job = job_manifest("train", 1);
  testing_support::CommandResult refused;
  EXPECT_TRUE(wait_until([&] {
    refused = kubectl_with({"create", "--dry-run=server"}, job.dump());
    return refused.exit_code != 0;
  }));
  EXPECT_THAT(refused.errors, HasSubstr("Kueue manages this namespace"));
  job["spec"]["suspend"] = true;
  apply(job);
  ASSERT_TRUE(reaches("train", "Suspended"));
  EXPECT_NE(kubectl({"patch", "tj", "train", "--type=merge", "-p", R"({"spec":{"suspend":false}})"})
                .exit_code,
            0);
  patch("before", {{"ttlSecondsAfterFinished", 900}});
  must({"delete", "-f", policy});
}

TEST_F(KubectlTest, DescribeAndEventsTellTheStory) {
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Running"));
  end_container(member("train", 1), 3, "no more data");
  ASSERT_TRUE(runs("train", 2, 1));
  end_container(member("train", 0), 0);
  end_container(member("train", 1), 0);
  must({"wait", "--for=condition=Complete", "tj/train", "--timeout=60s"});
  const auto told = [&] {
    const std::string text = must({"describe", "tj", "train"});
    return text.find("Completed") != std::string::npos;
  };
  ASSERT_TRUE(wait_until(told)) << must({"describe", "tj", "train"});
  const std::string description = must({"describe", "tj", "train"});
  EXPECT_THAT(description,
              AllOf(ContainsRegex("Normal +Started .*trainyard-operator +generation 1 on 2 nodes"),
                    ContainsRegex("Warning +Restarting .*exit code 3: no more data"),
                    ContainsRegex("Normal +Completed "), ContainsRegex("Exit Code: +3")));
  EXPECT_THAT(must({"events", "--for", "trainingjob/train", "--types=Warning"}),
              AllOf(HasSubstr("Restarting"), Not(HasSubstr("Completed"))));
}

}  // namespace
}  // namespace trainyard::apiserver
