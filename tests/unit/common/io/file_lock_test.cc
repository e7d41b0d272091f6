#include <chrono>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/io/file.h"
#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

using std::chrono::milliseconds;
using testing_support::TemporaryDirectory;

/// Locks `directory` in a process that ends at once, but for a child of its own that has the lock
/// as well until `held_for` is over, as one that has not begun its program yet. Returns when the
/// process has ended.
void leave_lock(const std::filesystem::path& directory, milliseconds held_for) {
  const pid_t holder = ::fork();
  if (holder == 0) {
    const auto lock = DirectoryLock::acquire(directory);
    if (!lock) ::_exit(1);
    if (::fork() == 0) std::this_thread::sleep_for(held_for);
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(holder, &status, 0), holder);
  ASSERT_EQ(status, 0);
}

TEST(DirectoryLockTest, WhatADeadProcessHasLeftToAChildIsWaitedFor) {
  const TemporaryDirectory folder;
  leave_lock(folder.path(), milliseconds(200));
  const auto lock = DirectoryLock::acquire(folder.path());
  ASSERT_TRUE(lock) << lock.error().message;
  EXPECT_TRUE(lock->is_at(folder.path()));
}

TEST(DirectoryLockTest, OneThatIsHeldIsRefusedWithItsHolder) {
  const TemporaryDirectory folder;
  const auto held = DirectoryLock::acquire(folder.path());
  ASSERT_TRUE(held);
  const auto refused = DirectoryLock::acquire(folder.path());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_THAT(refused.error().message,
              testing::HasSubstr(": locked by process " + std::to_string(::getpid()) +
                                 "; wait for it or stop it"));
}

}  // namespace
}  // namespace trainyard
