#include "common/io/control_group.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGiB = int64_t{1} << 30;

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
  EXPECT_EQ(limits("0::/kubepods/pod7/trainer\n"), (GroupLimits{4.0, 4 * kGiB, 4 * kGiB}));
  EXPECT_EQ(limits("0::/kubepods/pod7\n"), (GroupLimits{4.0, 8 * kGiB, 8 * kGiB}));
  EXPECT_EQ(limits("0::/\n"), GroupLimits{});
}

TEST_F(ControlGroupTest, AContainerSeesItsOwnGroupAsTheRoot) {
  write("mount/cpu.max", "150000 100000\n");
  write("mount/memory.max", "1073741824\n");
  const GroupLimits wanted{1.5, kGiB, kGiB};
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
  EXPECT_EQ(limits(memberships), (GroupLimits{3.0, std::nullopt, std::nullopt}));
  write("mount/memory/memory.limit_in_bytes", "2147483648\n");
  write("mount/cpu/cpu.cfs_quota_us", "200000\n");
  write("mount/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(limits(memberships), (GroupLimits{2.0, 2 * kGiB, 2 * kGiB}));
}

TEST_F(ControlGroupTest, WhatAGroupHoldsIsNotFreeUnlessItCanBeDropped) {
  write("mount/pods/memory.max", "4294967296\n");
  write("mount/pods/memory.current", "3221225472\n");
  write("mount/pods/memory.stat",
        "anon 1073741824\nfile 2147483648\ninactive_file 1073741824\nactive_file 536870912\n"
        "slab_reclaimable 536870912\nslab 1\n");
  write("mount/pods/pod7/memory.max", "max\n");
  write("mount/pods/pod7/memory.current", "1\n");
  EXPECT_EQ(limits("0::/pods/pod7\n"), (GroupLimits{std::nullopt, 4 * kGiB, 3 * kGiB}));
  // The group with the least room need not be the one with the least limit.
  write("mount/pods/pod7/memory.max", "3758096384\n");
  EXPECT_EQ(limits("0::/pods/pod7\n"), (GroupLimits{std::nullopt, 7 * kGiB / 2, 3 * kGiB}));
  write("mount/pods/memory.current", "9999999999\n");
  EXPECT_EQ(limits("0::/pods/pod7\n"), (GroupLimits{std::nullopt, 7 * kGiB / 2, 0}));
  write("mount/pods/memory.current", "5\n");
  EXPECT_EQ(limits("0::/pods/pod7\n").memory_room_bytes, 7 * kGiB / 2 - 1) << "never more";
}

TEST_F(ControlGroupTest, VersionOneCountsTheGroupsWithinAndNamesLimitsOfGroupsOutOfSight) {
  write("mount/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("mount/memory/memory.usage_in_bytes", "1073741824\n");
  write("mount/memory/memory.stat",
        "inactive_file 7\nhierarchical_memory_limit 2147483648\ntotal_inactive_file 536870912\n"
        "hierarchical_memsw_limit 9223372036854771712\n");
  EXPECT_EQ(limits("4:memory:/\n"), (GroupLimits{std::nullopt, 2 * kGiB, 3 * kGiB / 2}));
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
