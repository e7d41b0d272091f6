#include "tests/support/ledger_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace trainyard::testing_support {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Ten seconds and a half of wall time, two of them stopped.
json books() {
  return json::parse(R"({
    "startTime": "2026-01-02T03:04:05.0004Z",
    "completionTime": "2026-01-02T03:04:15.5009Z",
    "goodput": {
      "wallSeconds": "8.5", "productiveSeconds": "6.375", "ratio": "0.75", "stoppedSeconds": "2",
      "badputSeconds": {"startup": "2.1", "infra": "0.025"},
      "counted": {"time": "2026-01-02T03:04:15.5Z"}}})");
}

TEST(LedgerCheckTest, BooksThatBalanceHaveNoFault) {
  EXPECT_THAT(faults_of_ledger(books()), IsEmpty());
  EXPECT_THAT(faults_of_ledger(json::object()), IsEmpty()) << "a job that has not begun";
}

TEST(LedgerCheckTest, AMillisecondTooMuchIsFound) {
  json status = books();
  status["goodput"]["badputSeconds"]["queue"] = "0.001";
  EXPECT_THAT(faults_of_ledger(status),
              ElementsAre("productive + badput is 8501 ms, wall is 8500 ms"));
}

TEST(LedgerCheckTest, AMillisecondThatNobodyCountedIsFound) {
  json status = books();
  status["startTime"] = "2026-01-02T03:04:04.9999Z";
  EXPECT_THAT(faults_of_ledger(status),
              ElementsAre("wall + stopped is 10500 ms, counted - start is 10501 ms"));
  status = books();
  status["completionTime"] = "2026-01-02T03:04:15.501Z";
  EXPECT_THAT(faults_of_ledger(status), ElementsAre(HasSubstr("counted.time is ")));
}

TEST(LedgerCheckTest, WhatIsMissingOrNoNumberIsFound) {
  json status = books();
  status.erase("goodput");
  EXPECT_THAT(faults_of_ledger(status), ElementsAre("started, but has no goodput"));
  status = books();
  status["goodput"]["badputSeconds"]["infra"] = "-0.025";
  EXPECT_THAT(faults_of_ledger(status), testing::Contains("infra is \"-0.025\""));
  status = books();
  status["goodput"]["ratio"] = "0.7499";
  EXPECT_THAT(faults_of_ledger(status), ElementsAre(HasSubstr("ratio is 0.7499")));
}

TEST(LedgerCheckTest, SecondsAreWholeMilliseconds) {
  EXPECT_EQ(milliseconds_of("12.345"), 12345);
  EXPECT_EQ(milliseconds_of("0.02"), 20);
  EXPECT_EQ(milliseconds_of("7"), 7000);
  for (const char* text : {"", "-1", "1.0005", "1e3", ".5"})
    EXPECT_EQ(milliseconds_of(text), -1) << text;
}

}  // namespace
}  // namespace trainyard::testing_support
