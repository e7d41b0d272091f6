#include "operator/cluster/room.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace trainyard::cluster {
namespace {

using nlohmann::json;

TEST(NeedsTest, SumsContainersAndTakesTheLargestInitContainer) {
  const PodNeeds needs = needs_of(json::parse(R"({
      "containers":[{"resources":{"requests":{"cpu":"1","memory":"1Gi"},"limits":{"cpu":"4"}}},
                    {"resources":{"limits":{"cpu":"500m","nvidia.com/gpu":2}}}],
      "initContainers":[{"resources":{"requests":{"cpu":"3"}}},
                        {"resources":{"requests":{"cpu":"2"}}}]})"));
  EXPECT_EQ(needs.requests.at("cpu"), 3000);
  EXPECT_EQ(needs.requests.at("memory"), int64_t{1024} * 1024 * 1024 * 1000);
  EXPECT_EQ(needs.requests.at("nvidia.com/gpu"), 2000);
  EXPECT_EQ(needs.requests.at("pods"), 1000);
}

TEST(NeedsTest, MoreThanCanBeCountedFitsNowhere) {
  const json huge = json::parse(R"({"resources":{"requests":{"memory":"4E"}}})");
  const PodNeeds needs = needs_of({{"containers", {huge, huge, huge}}});
  EXPECT_EQ(needs.requests.at("memory"), 4'000'000'000'000'000'000);
  const Amounts node = amounts_of(json::parse(R"({"memory":"1Ti","pods":"110"})"));
  EXPECT_EQ(pods_that_fit(needs, node, {}), 0);
  Amounts used = needs.requests;
  add_to(used, needs.requests);
  const PodNeeds small =
      needs_of(json::parse(R"({"containers":[{"resources":{"requests":{"memory":"1Gi"}}}]})"));
  EXPECT_EQ(pods_that_fit(small, node, used), 0);
}

TEST(RoomTest, TheScarcestResourceDecides) {
  const PodNeeds needs = needs_of(json::parse(
      R"({"containers":[{"resources":{"requests":{"cpu":"2","nvidia.com/gpu":"4"}}}]})"));
  const Amounts node =
      amounts_of(json::parse(R"({"cpu":"64","nvidia.com/gpu":"8","pods":"110","memory":"1Ti"})"));
  EXPECT_EQ(pods_that_fit(needs, node, {}), 2);
  EXPECT_EQ(pods_that_fit(needs, node, needs.requests), 1);
  Amounts twice = needs.requests;
  add_to(twice, needs.requests);
  EXPECT_EQ(pods_that_fit(needs, node, twice), 0);
  add_to(twice, needs.requests);
  EXPECT_EQ(pods_that_fit(needs, node, twice), 0) << "overcommitted is none, not less than none";
  EXPECT_EQ(pods_that_fit(needs, amounts_of(json::parse(R"({"cpu":"64","pods":"110"})")), {}), 0)
      << "no such device";
}

TEST(RoomTest, LabelsAndTaintsMustFit) {
  const PodNeeds needs = needs_of(json::parse(R"({"nodeSelector":{"gpu":"h100"},"tolerations":[
      {"key":"dedicated","operator":"Equal","value":"training","effect":"NoSchedule"},
      {"key":"spot","operator":"Exists"}]})"));
  EXPECT_TRUE(may_go_to(needs, {{"gpu", "h100"}, {"zone", "a"}}, {}));
  EXPECT_FALSE(may_go_to(needs, {{"gpu", "a100"}}, {}));
  EXPECT_FALSE(may_go_to(needs, {}, {}));
  const std::map<std::string, std::string> labels = {{"gpu", "h100"}};
  EXPECT_TRUE(may_go_to(needs, labels, {{"dedicated", "training", "NoSchedule"}}));
  EXPECT_FALSE(may_go_to(needs, labels, {{"dedicated", "training", "NoExecute"}}));
  EXPECT_FALSE(may_go_to(needs, labels, {{"dedicated", "serving", "NoSchedule"}}));
  EXPECT_TRUE(may_go_to(needs, labels, {{"spot", "x", "NoExecute"}}));
  EXPECT_FALSE(may_go_to(needs, labels, {{"node.kubernetes.io/unreachable", "", "NoExecute"}}));
  const PodNeeds passing = needs_of(json::parse(R"({"tolerations":[
      {"key":"node.kubernetes.io/unreachable","operator":"Exists","tolerationSeconds":0},
      {"key":"spot","operator":"Exists","tolerationSeconds":600}]})"));
  EXPECT_FALSE(may_go_to(passing, {}, {{"node.kubernetes.io/unreachable", "", "NoExecute"}}))
      << "it would be evicted there";
  EXPECT_TRUE(may_go_to(passing, {}, {{"spot", "x", "NoSchedule"}})) << "that evicts nobody";
  PodNeeds all;
  all.tolerations = {{"", "", "", true}};
  EXPECT_TRUE(may_go_to(all, {}, {{"anything", "x", "NoExecute"}}));
}

}  // namespace
}  // namespace trainyard::cluster
