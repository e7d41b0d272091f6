// A disk that takes no more while something is written: the commands say so, and leave nothing that
// would be taken for whole.

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/worker_contract.h"
#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

using testing::HasSubstr;
using testing_support::ChildEnd;
using testing_support::ChildProcess;

class FullDiskTest : public testing::Test {
 protected:
  const std::filesystem::path& folder() const { return folder_.path(); }

  /// `trainyard` with these arguments, none of whose files may pass `kibibytes` (0: any): a write
  /// beyond fails as it does on a full disk.
  int trainyard(const std::string& arguments, int kibibytes) const {
    const std::string limit =
        kibibytes > 0 ? "trap '' XFSZ; ulimit -f " + std::to_string(kibibytes) + "; " : "";
    ChildProcess child(
        {.argv = {"/bin/bash", "-c",
                  limit + "exec " + testing_support::program_path("trainyard") + " " + arguments},
         .working_directory = folder(),
         .output = folder() / "out",
         .errors = folder() / "err"});
    return child.wait(std::chrono::seconds(120)).value_or(ChildEnd{}).exit_code;
  }
  std::string errors() const {
    std::ifstream file(folder() / "err");
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  const testing_support::TemporaryDirectory folder_;
};

TEST_F(FullDiskTest, NoHalfDataSetIsLeft) {
  std::ofstream(folder() / "text.txt") << std::string(100'000, 'a');
  EXPECT_EQ(trainyard("data prepare text.txt --out data", 64), contract::kExitRetry);
  EXPECT_THAT(errors(), HasSubstr("data.partial/train/00000.tokens"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "data"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "data.partial"));
  EXPECT_EQ(trainyard("data prepare text.txt --out data", 0), 0) << errors();
  EXPECT_EQ(trainyard("data verify data", 0), 0) << errors();
}

TEST_F(FullDiskTest, NoHalfModelIsLeft) {
  const std::string kept = testing_support::source_path("tests/fixtures/formats/v1/lone");
  const std::string command = "export --checkpoint " + kept + " --hugging-face model";
  EXPECT_EQ(trainyard(command, 4), contract::kExitRetry);
  EXPECT_THAT(errors(), HasSubstr("model/model.safetensors"));
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder() / "model"))
    left.push_back(entry.path().filename());
  EXPECT_THAT(left, testing::ElementsAre("config.json"));
  EXPECT_EQ(trainyard(command, 0), 0) << errors();
  EXPECT_TRUE(std::filesystem::exists(folder() / "model/model.safetensors"));
}

}  // namespace
}  // namespace trainyard
