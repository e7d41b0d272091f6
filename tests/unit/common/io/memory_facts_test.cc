#include "common/io/memory_facts.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

class MemoryFactsTest : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) const {
    std::ofstream(folder_.path() / "facts") << text;
    return folder_.path() / "facts";
  }
  testing_support::TemporaryDirectory folder_;
};

TEST_F(MemoryFactsTest, ReadsTheLineOfItsNameAlone) {
  EXPECT_EQ(available_memory(write("MemTotal: 9 kB\nMemAvailable:   23348 kB\n")), 23348 * 1024);
  EXPECT_EQ(available_memory(write("MemTotal: 9 kB\nMemAvailableNot: 8 kB\n")), std::nullopt);
  EXPECT_EQ(available_memory(write("MemAvailable:\nMemFree: 8 kB\n")), std::nullopt);
  EXPECT_EQ(available_memory(write("MemAvailable: 99999999999999999999 kB\n")), std::nullopt);
  EXPECT_EQ(available_memory(write("")), std::nullopt);
  EXPECT_EQ(available_memory(folder_.path() / "nothing"), std::nullopt);
}

TEST_F(MemoryFactsTest, LeavesFilesAndSharedMemoryOutOfThePeak) {
  const std::string status =
      "VmHWM:\t  1000 kB\nVmRSS:\t 900 kB\nRssAnon:\t 500 kB\nRssFile:\t 300 kB\n";
  EXPECT_EQ(peak_own_memory(write(status + "RssShmem:\t 100 kB\n")), 600 * 1024);
  EXPECT_EQ(peak_own_memory(write(status + "RssShmem:\t 900 kB\n")), 0);
  EXPECT_EQ(peak_own_memory(write(status)), std::nullopt) << "a kernel that does not tell them";
}

TEST_F(MemoryFactsTest, ThePeakOfThisProcessStaysWhenMemoryIsGivenBack) {
  constexpr size_t kBytes = size_t{64} << 20;
  const auto before = peak_own_memory();
  if (!before) GTEST_SKIP() << "this kernel does not tell it";
  EXPECT_EQ(std::string(kBytes, 'x').size(), kBytes);
  // The kernel counts pages in batches, a few of which may be missing.
  constexpr size_t kUncounted = size_t{1} << 20;
  EXPECT_GE(*peak_own_memory(), static_cast<int64_t>(kBytes - kUncounted));
  EXPECT_GT(available_memory().value_or(0), 0);
}

}  // namespace
}  // namespace trainyard
