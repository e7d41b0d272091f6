// `trainyard bench comm` as a user starts it: real processes, every result checked.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing_support::ChildProcess;
using testing_support::TemporaryDirectory;

constexpr std::chrono::seconds kDeadline{120};

struct Outcome {
  int exit_code = -1;
  std::string output;
  std::string errors;
};

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Outcome bench(std::vector<std::string> arguments) {
  const TemporaryDirectory folder;
  arguments.insert(arguments.begin(),
                   {testing_support::program_path("trainyard"), "bench", "comm"});
  ChildProcess child({.argv = std::move(arguments),
                      .output = folder.path() / "output",
                      .errors = folder.path() / "errors"});
  const auto end = child.wait(kDeadline);
  return {end ? end->exit_code : -1, content(folder.path() / "output"),
          content(folder.path() / "errors")};
}

TEST(BenchCommTest, EveryOperationIsRightAndSendsTheBytesOfTheFormulas) {
  const Outcome end =
      bench({"--ops",        "all",  "--transports", "local,shm,tcp", "--ranks",     "3",
             "--dtype",      "BF16", "--ring-order", "2,0,1",         "--min-bytes", "200",
             "--max-bytes",  "200K", "--factor",     "1024",          "--rounds",    "1",
             "--iterations", "2",    "-o",           "json"});
  ASSERT_EQ(end.exit_code, 0) << end.output << end.errors;
  const json result = json::parse(end.output);
  EXPECT_EQ(result["faultyRows"], 0);
  std::map<std::string, int> rows_of;
  for (const json& row : result["rows"]) {
    ++rows_of[row["op"]];
    EXPECT_EQ(row["wireBytes"], row["formulaBytes"]) << row;
    EXPECT_EQ(row["wrong"], 0) << row;
    EXPECT_GT(row["p50Us"], 0) << row;
    EXPECT_GE(row["p99Us"], row["p50Us"]) << row;
    if (row["op"] == "all_reduce") {
      // P = 3: busbw = algbw x 4/3.
      EXPECT_NEAR(row["busbwGBps"].get<double>(), row["algbwGBps"].get<double>() * 4 / 3, 1e-9);
    }
  }
  EXPECT_EQ(rows_of.size(), 10U);
  for (const auto& [op, rows] : rows_of)
    EXPECT_EQ(rows, op == "barrier" ? 3 : 6) << op;
}

TEST(BenchCommTest, TheRawPairIsMeasuredBesideUs) {
  const Outcome end =
      bench({"--transports", "tcp", "--raw", "--dtype", "I64", "--min-bytes", "1000", "--max-bytes",
             "200001", "--factor", "1000", "--rounds", "1", "--iterations", "2", "-o", "json"});
  ASSERT_EQ(end.exit_code, 0) << end.output << end.errors;
  const json result = json::parse(end.output);
  ASSERT_EQ(result["rows"].size(), 4U);
  for (const json& row : result["rows"]) {
    EXPECT_EQ(row["wrong"], 0) << row;
    const bool raw = row["transport"] == "raw";
    EXPECT_EQ(row["rawOverThis"].is_null(), raw) << row;
    // Of the pair with the kernel's buffer and the one with the engine's bound the better is shown.
    const std::string buffer = row.value("sendBuffer", "");
    EXPECT_EQ(buffer == "kernel" || buffer == "bounded", raw) << row;
  }
  EXPECT_THAT(result["peerNote"].get<std::string>(), HasSubstr("peer not measured"));
}

TEST(BenchCommTest, APythonWithoutTorchIsSaidAndHurtsNothing) {
  const Outcome end = bench({"--max-bytes", "8", "--transports", "shm", "--rounds", "1",
                             "--iterations", "1", "--peer-python", "/bin/false"});
  EXPECT_EQ(end.exit_code, 0) << end.output << end.errors;
  EXPECT_THAT(end.output, HasSubstr("peer not measured: /bin/false did not start"));
}

TEST(BenchCommTest, WrongUsageIsNamed) {
  const Outcome sizes = bench({"--min-bytes", "1M", "--max-bytes", "1K"});
  EXPECT_EQ(sizes.exit_code, 64);
  EXPECT_THAT(sizes.errors, HasSubstr("--max-bytes: found 1024"));
  const Outcome raw = bench({"--raw", "--ranks", "3"});
  EXPECT_EQ(raw.exit_code, 64);
  EXPECT_THAT(raw.errors, HasSubstr("--raw: wanted --ranks 2, found 3"));
}

}  // namespace
}  // namespace trainyard
