#include "cli/run/control_socket.h"

#include <filesystem>
#include <fstream>
#include <sys/stat.h>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace trainyard::cli {
namespace {

class ControlSocketTest : public ::testing::Test {
 protected:
  void record(const std::filesystem::path& folder) const {
    std::ofstream(run_dir_.path() / "control-socket") << folder.string();
  }

  const testing_support::TemporaryDirectory run_dir_;
};

TEST_F(ControlSocketTest, IsOursAlone) {
  auto folder = ControlSocketFolder::prepare(run_dir_.path());
  ASSERT_TRUE(folder) << folder.error().message;
  struct stat status {};
  ASSERT_EQ(::stat(folder->socket_path().parent_path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  folder->remove();
  EXPECT_FALSE(std::filesystem::exists(folder->socket_path().parent_path()));
  EXPECT_FALSE(std::filesystem::exists(run_dir_.path() / "control-socket"));
}

TEST_F(ControlSocketTest, LiesInTheRunDirectory) {
  auto folder = ControlSocketFolder::prepare(run_dir_.path());
  ASSERT_TRUE(folder) << folder.error().message;
  EXPECT_EQ(folder->socket_path(), run_dir_.path() / "control/control.sock");
  EXPECT_FALSE(std::filesystem::exists(run_dir_.path() / "control-socket"));
  folder->remove();
}

TEST_F(ControlSocketTest, AFolderThatOthersMayEnterIsClosedToThem) {
  std::filesystem::create_directory(run_dir_.path() / "control");
  ::chmod((run_dir_.path() / "control").c_str(), 0777);
  auto folder = ControlSocketFolder::prepare(run_dir_.path());
  ASSERT_TRUE(folder) << folder.error().message;
  EXPECT_EQ(folder->socket_path(), run_dir_.path() / "control/control.sock");
  struct stat status {};
  ASSERT_EQ(::stat((run_dir_.path() / "control").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  folder->remove();
}

/// A run directory that can hold no socket: something else has the folder's name.
TEST_F(ControlSocketTest, ElsewhereTheNextRunListensWhereAgentsLook) {
  std::ofstream(run_dir_.path() / "control") << "a file";
  auto first = ControlSocketFolder::prepare(run_dir_.path());
  ASSERT_TRUE(first) << first.error().message;
  auto second = ControlSocketFolder::prepare(run_dir_.path());
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_NE(first->socket_path().parent_path().parent_path(), run_dir_.path());
  EXPECT_EQ(first->socket_path(), second->socket_path());
  second->remove();
  EXPECT_FALSE(std::filesystem::exists(run_dir_.path() / "control-socket"));
}

TEST_F(ControlSocketTest, WhatAKilledRunHasLeftIsCleanedAway) {
  auto folder = ControlSocketFolder::prepare(run_dir_.path());
  ASSERT_TRUE(folder) << folder.error().message;
  std::ofstream(folder->socket_path()) << "as if a socket";
  ControlSocketFolder::clean(run_dir_.path());
  EXPECT_FALSE(std::filesystem::exists(run_dir_.path() / "control"));
  ControlSocketFolder::clean(run_dir_.path());  // nothing there: nothing happens
}

TEST_F(ControlSocketTest, DoesNotUseAFolderThatOthersMayEnter) {
  const testing_support::TemporaryDirectory planted;
  ::chmod(planted.path().c_str(), 0755);
  record(planted.path());
  auto folder = ControlSocketFolder::prepare(run_dir_.path());
  ASSERT_TRUE(folder) << folder.error().message;
  EXPECT_NE(folder->socket_path().parent_path(), planted.path());
  folder->remove();
}

TEST_F(ControlSocketTest, DoesNotFollowALinkSomebodyPlanted) {
  const testing_support::TemporaryDirectory target;
  const auto link = run_dir_.path() / "trainyard-link";
  std::filesystem::create_directory_symlink(target.path(), link);
  record(link);
  auto folder = ControlSocketFolder::prepare(run_dir_.path());
  ASSERT_TRUE(folder) << folder.error().message;
  EXPECT_NE(folder->socket_path().parent_path(), link);
  folder->remove();
}

TEST_F(ControlSocketTest, AFolderThatIsGoneIsMadeAgain) {
  record("/tmp/trainyard-was-cleaned-away");
  auto folder = ControlSocketFolder::prepare(run_dir_.path());
  ASSERT_TRUE(folder) << folder.error().message;
  EXPECT_TRUE(std::filesystem::is_directory(folder->socket_path().parent_path()));
  folder->remove();
}

}  // namespace
}  // namespace trainyard::cli
