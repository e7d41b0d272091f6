// However many ranks a pod says have ended, the log gets few lines of it.
#include "control/coordinator/exit_log.h"

#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace trainyard::control {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class ExitLogTest : public testing::Test {
 protected:
  void ends(const std::string& pod, int count) {
    RankExit exit;
    exit.pod_name = pod;
    exit.exit_code = 7;
    for (exit.rank = 0; exit.rank < count; ++exit.rank)
      log_.note("uid of " + pod, exit, now_);
  }
  void pass(seconds time) {
    now_ += time;
    log_.tell_rest(now_);
  }
  /// The lines since the last call.
  std::vector<std::string> lines() {
    std::vector<std::string> all;
    std::ifstream file(folder_.path() / "log");
    for (std::string line; std::getline(file, line);)
      all.push_back(line);
    std::vector<std::string> fresh(all.begin() + static_cast<std::ptrdiff_t>(read_), all.end());
    read_ = all.size();
    return fresh;
  }

  const testing_support::TemporaryDirectory folder_;
  const std::unique_ptr<Logger> logger_ =
      *Logger::to_file(folder_.path() / "log", LogLevel::kInfo, LogFormat::kJson);
  ExitLog log_{*logger_};
  MonoTime now_{seconds(1000)};
  size_t read_ = 0;
};

TEST_F(ExitLogTest, TheRanksOfANodeAreToldOneByOne) {
  ends("tiny-0", 8);
  EXPECT_THAT(lines(), AllOf(SizeIs(8), Each(AllOf(HasSubstr("rank exited"), HasSubstr("tiny-0"),
                                                   HasSubstr("\"exit_code\":7")))));
  pass(ExitLog::kWhile);
  EXPECT_THAT(lines(), IsEmpty()) << "all of them were told";
}

TEST_F(ExitLogTest, OfTooManyTheRestIsCounted) {
  ends("hostile-0", 4096);
  EXPECT_THAT(lines(), SizeIs(ExitLog::kLinesOfAPod));
  pass(ExitLog::kWhile - seconds(1));
  EXPECT_THAT(lines(), IsEmpty());
  pass(seconds(1));
  EXPECT_THAT(lines(), ElementsAre(AllOf(HasSubstr("hostile-0"), HasSubstr("\"others\":4032"))));
  pass(ExitLog::kWhile);
  EXPECT_THAT(lines(), IsEmpty()) << "told once";
  ends("hostile-0", 1);
  EXPECT_THAT(lines(), SizeIs(1));
}

TEST_F(ExitLogTest, OnePodTakesNoLineOfAnother) {
  ends("hostile-0", 4096);
  lines();
  ends("tiny-0", 2);
  EXPECT_THAT(lines(), AllOf(SizeIs(2), Each(HasSubstr("tiny-0"))));
}

}  // namespace
}  // namespace trainyard::control
