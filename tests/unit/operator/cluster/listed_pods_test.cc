#include "operator/cluster/listed_pods.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::cluster {
namespace {

class ListedPodsTest : public testing::Test {
 protected:
  void list(const std::string& job, const std::string& version, const std::string& ns = "n",
            int64_t asked = 10) {
    lists_.keep(job, {.ns = ns,
                      .version = version,
                      .asked = MonoTime(Duration(asked)),
                      .pods = std::make_shared<const std::vector<control::ObservedPod>>(2)});
  }
  bool is_newer_than(const std::string& version, const std::string& job = "a") {
    return lists_.newer_than(version, job) != nullptr;
  }

  ListedPods lists_;
};

TEST_F(ListedPodsTest, AListStandsUntilTheCacheHasComeUpToIt) {
  EXPECT_FALSE(is_newer_than("1"));
  list("a", "100");
  EXPECT_TRUE(is_newer_than("99"));
  EXPECT_FALSE(is_newer_than("99", "b"));
  EXPECT_FALSE(is_newer_than("100"));
  EXPECT_FALSE(is_newer_than("99")) << "nor later";
  EXPECT_EQ(lists_.size(), 0U);
}

TEST_F(ListedPodsTest, AVersionThatCannotBeComparedIsNoNewer) {
  list("a", "opaque");
  EXPECT_FALSE(is_newer_than("99"));
}

TEST_F(ListedPodsTest, AnOlderListDoesNotReplaceANewer) {
  list("a", "100");
  list("a", "90");
  EXPECT_TRUE(is_newer_than("99"));
  list("a", "110");
  EXPECT_TRUE(is_newer_than("109"));
}

TEST_F(ListedPodsTest, ACacheThatWasListedLaterIsAheadWhateverItsVersion) {
  list("a", "100", "n", 10);
  list("b", "100", "n", 30);
  list("c", "100", "m", 10);
  lists_.cache_listed("n", MonoTime(Duration(20)));
  EXPECT_FALSE(is_newer_than("5", "a"));
  EXPECT_TRUE(is_newer_than("5", "b"));
  EXPECT_TRUE(is_newer_than("5", "c"));
  lists_.cache_listed("", MonoTime(Duration(40)));
  EXPECT_EQ(lists_.size(), 0U);
}

TEST_F(ListedPodsTest, OfAJobThatIsGoneNothingStays) {
  list("a", "100");
  lists_.forget("a");
  EXPECT_FALSE(is_newer_than("99"));
}

}  // namespace
}  // namespace trainyard::cluster
