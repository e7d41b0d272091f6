#include "common/io/control_group.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;

class ControlGroupTest : public ::testing::Test {
 protected:
  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((folder_.path() / file).parent_path());
    std::ofstream(folder_.path() / file) << text;
  }
  GroupLimits limits(const std::string& memberships) const {
    write("memberships", memberships);
    return group_limits(folder_.path() / "memberships", folder_.path() / "mount");
  }

  testing_support::TemporaryDirectory folder_;
};

TEST_F(ControlGroupTest, OfAGroupAndThoseAroundItTheLeastCounts) {
  write("mount/cgroup.procs", "");
  write("mount/kubepods/cpu.max", "400000 100000\n");
  write("mount/kubepods/memory.max", "8589934592\n");
  write("mount/kubepods/pod7/cpu.max", "max 100000\n");
  write("mount/kubepods/pod7/memory.max", "max\n");
  write("mount/kubepods/pod7/trainer/cpu.max", "250000 50000\n");
  write("mount/kubepods/pod7/trainer/memory.max", "4294967296\n");
  EXPECT_EQ(limits("0::/kubepods/pod7/trainer\n"), (GroupLimits{4.0, int64_t{4} << 30}));
  EXPECT_EQ(limits("0::/kubepods/pod7\n"), (GroupLimits{4.0, int64_t{8} << 30}));
  EXPECT_EQ(limits("0::/\n"), GroupLimits{});
}

TEST_F(ControlGroupTest, AContainerSeesItsOwnGroupAsTheRoot) {
  write("mount/cpu.max", "150000 100000\n");
  write("mount/memory.max", "1073741824\n");
  const GroupLimits wanted{1.5, int64_t{1} << 30};
  EXPECT_EQ(limits("0::/\n"), wanted);
  EXPECT_EQ(limits("0::/../../elsewhere\n"), wanted) << "moved out of its namespace";
  EXPECT_EQ(limits("0::/docker/0123\n"), wanted) << "told by its name outside";
}

TEST_F(ControlGroupTest, VersionOneHasAMountForEveryController) {
  write("mount/cpu,cpuacct/docker/01/cpu.cfs_quota_us", "300000\n");
  write("mount/cpu,cpuacct/docker/01/cpu.cfs_period_us", "100000\n");
  write("mount/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("mount/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  write("mount/memory/docker/01/memory.limit_in_bytes", "9223372036854771712\n");
  const std::string memberships =
      "12:memory:/docker/01\n4:cpu,cpuacct:/docker/01\n1:name=systemd:/docker/01\n0::/\n";
  EXPECT_EQ(limits(memberships), (GroupLimits{3.0, std::nullopt}));
  write("mount/memory/memory.limit_in_bytes", "2147483648\n");
  write("mount/cpu/cpu.cfs_quota_us", "200000\n");
  write("mount/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(limits(memberships), (GroupLimits{2.0, int64_t{2} << 30}));
}

TEST_F(ControlGroupTest, WhatMakesNoSenseLimitsNothing) {
  write("mount/cpu.max", "-5 0 and more\n");
  write("mount/memory.max", "\n");
  EXPECT_EQ(limits("0::/\n"), GroupLimits{});
  EXPECT_EQ(limits("\n:\n::\n7:cpu\nno line of this kind"), GroupLimits{});
  EXPECT_EQ(group_limits(folder_.path() / "none", folder_.path() / "none"), GroupLimits{});
}

TEST_F(ControlGroupTest, ProcessorsAreWholeAndAtLeastOne) {
  EXPECT_EQ(usable_cpus(64, {}), 64);
  EXPECT_EQ(usable_cpus(64, {.cpus = 4.0}), 4);
  EXPECT_EQ(usable_cpus(64, {.cpus = 2.9}), 2);
  EXPECT_EQ(usable_cpus(64, {.cpus = 0.25}), 1);
  EXPECT_EQ(usable_cpus(2, {.cpus = 16.0}), 2);
  EXPECT_EQ(usable_cpus(0, {}), 1);
  EXPECT_GE(usable_cpus(), 1);
}

}  // namespace
}  // namespace trainyard
