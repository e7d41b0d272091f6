#include "common/io/gpu_files.h"

#include <fstream>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

TEST(GpuFilesTest, AreThoseTheContainerWasGiven) {
  const testing_support::TemporaryDirectory folder;
  EXPECT_EQ(count_gpu_files(folder.path()), 0);
  for (const char* name : {"null", "nvidiactl", "nvidia-uvm", "nvidia", "nvidia3", "nvidia11"})
    std::ofstream(folder.path() / name) << "";
  EXPECT_EQ(count_gpu_files(folder.path()), 2);
  EXPECT_EQ(count_gpu_files(folder.path() / "missing"), 0);
}

TEST(GpuFilesTest, AProgramSeesThoseThatAreListedBeforeTheFirstThatIsNone) {
  EXPECT_EQ(count_visible_gpus(8, std::nullopt), 8);
  EXPECT_EQ(count_visible_gpus(8, ""), 0);
  EXPECT_EQ(count_visible_gpus(8, "3"), 1);
  EXPECT_EQ(count_visible_gpus(8, "0,GPU-8932f937,2"), 3);
  EXPECT_EQ(count_visible_gpus(8, "0,-1,2"), 1);
  EXPECT_EQ(count_visible_gpus(8, "0,,2"), 1);
  EXPECT_EQ(count_visible_gpus(1, "0,1"), 1);
}

}  // namespace
}  // namespace trainyard
