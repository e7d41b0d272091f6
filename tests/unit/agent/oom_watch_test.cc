#include "agent/oom_watch.h"

#include <fstream>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace trainyard::agent {
namespace {

class OomWatchTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    std::ofstream(folder_.path() / name) << text;
  }
  OomWatch watch() const { return OomWatch(folder_.path() / "self", folder_.path() / "root"); }

  const testing_support::TemporaryDirectory folder_;
};

TEST_F(OomWatchTest, CountsInTheSecondVersionsFile) {
  write("self", "0::/pod/one\n");
  write("root/pod/one/memory.events", "low 0\nhigh 0\nmax 3\noom 3\noom_kill 2\n");
  OomWatch oom = watch();
  EXPECT_FALSE(oom.any_since()) << "what was before";
  write("root/pod/one/memory.events", "low 0\nhigh 0\nmax 4\noom 4\noom_kill 3\n");
  EXPECT_TRUE(oom.any_since());
  EXPECT_FALSE(oom.any_since());
}

TEST_F(OomWatchTest, CountsInTheFirstVersionsFile) {
  write("self", "9:cpu,cpuacct:/a\n4:memory:/job\n0::/\n");
  write("root/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  OomWatch oom = watch();
  write("root/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  EXPECT_TRUE(oom.any_since());
}

TEST_F(OomWatchTest, AContainersMountBeginsAtItsOwnGroup) {
  write("self", "0::/on/the/host\n");
  write("root/memory.events", "oom_kill 0\n");
  OomWatch oom = watch();
  write("root/memory.events", "oom_kill 1\n");
  EXPECT_TRUE(oom.any_since());
}

TEST_F(OomWatchTest, WithoutAGroupNothingIsCounted) {
  OomWatch oom = watch();
  EXPECT_FALSE(oom.any_since());
}

}  // namespace
}  // namespace trainyard::agent
