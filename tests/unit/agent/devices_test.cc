#include "agent/devices.h"

#include <fstream>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace trainyard::agent {
namespace {

TEST(DevicesTest, AreThoseTheContainerWasGiven) {
  const testing_support::TemporaryDirectory folder;
  EXPECT_EQ(count_devices(folder.path()), 0);
  for (const char* name : {"null", "nvidiactl", "nvidia-uvm", "nvidia", "nvidia3", "nvidia11"})
    std::ofstream(folder.path() / name) << "";
  EXPECT_EQ(count_devices(folder.path()), 2);
  EXPECT_EQ(count_devices(folder.path() / "missing"), 0);
}

}  // namespace
}  // namespace trainyard::agent
