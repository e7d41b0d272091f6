#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"

namespace trainyard::cli {
namespace {

using testing::HasSubstr;

class DataOrderTest : public testing::Test {
 protected:
  int order(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"data", "order"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::ostringstream printed;
    std::ostringstream complaints;
    const int code = run(arguments, printed, complaints);
    printed_ = printed.str();
    complaints_ = complaints.str();
    return code;
  }
  std::string printed_;
  std::string complaints_;
};

// Batches longer than an epoch, that end within one, and with fewer sequences than ranks.
TEST_F(DataOrderTest, EachSampleIsVisitedOnceInEveryEpochWhateverTheRanks) {
  for (const char* batch : {"1", "16", "103", "250"}) {
    ASSERT_EQ(order({"--samples", "103", "--batch", batch, "--micro-batch", "3", "--epochs", "5",
                     "--ranks", "1,7,2,16", "-o", "json"}),
              0)
        << complaints_;
    const auto found = nlohmann::json::parse(printed_);
    ASSERT_EQ(found["epochs"].size(), 5U);
    for (const auto& epoch : found["epochs"]) {
      EXPECT_EQ(epoch["once"], 103) << batch;
      EXPECT_EQ(epoch["twiceOrMore"], 0);
      EXPECT_EQ(epoch["never"], 0);
    }
    EXPECT_EQ(found["epochs"][0]["inTheSamePlace"], 0);
    EXPECT_LT(found["epochs"][1]["inTheSamePlace"], 10);
  }
}

TEST_F(DataOrderTest, SaysWhatItCannotWalk) {
  EXPECT_EQ(order({}), 64);
  EXPECT_THAT(complaints_, HasSubstr("wanted either a folder of shards or --samples N"));
  EXPECT_EQ(order({"--samples", "1G", "--epochs", "100"}), 64);
  EXPECT_EQ(order({"--samples", "1073741824", "--epochs", "100"}), 64);
  EXPECT_THAT(complaints_, HasSubstr("found 1073741824 samples in 100 epochs"));
}

}  // namespace
}  // namespace trainyard::cli
