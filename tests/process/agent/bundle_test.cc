// The agent as it is put into other images: nothing of the image may be needed to run it.
#include "agent/bundle.h"

#include <chrono>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/unique_fd.h"
#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::agent {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::ChildProcess;

constexpr seconds kDeadline{60};

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Programs and libraries that the process has in its memory: proc(5), "maps".
std::set<fs::path> programs_in(pid_t pid) {
  std::set<fs::path> found;
  std::istringstream lines(content("/proc/" + std::to_string(pid) + "/maps"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string address, rights, offset, device, inode, path;
    words >> address >> rights >> offset >> device >> inode >> path;
    if (rights.find('x') != std::string::npos && path.starts_with("/")) found.insert(path);
  }
  return found;
}

std::ptrdiff_t threads_of(pid_t pid) {
  std::error_code error;
  const fs::directory_iterator tasks("/proc/" + std::to_string(pid) + "/task", error);
  return std::distance(begin(tasks), end(tasks));
}

class BundleTest : public ::testing::Test {
 protected:
  int install(const fs::path& folder) const {
    ChildProcess::Spec spec;
    spec.argv = {testing_support::program_path("trainyard-agent"), "install", folder};
    spec.output = scratch_.path() / "output";
    spec.errors = scratch_.path() / "errors";
    return ChildProcess(spec).wait(kDeadline).value_or(testing_support::ChildEnd{}).exit_code;
  }

  /// As a pod starts it, for a coordinator that never answers.
  ChildProcess::Spec start(const std::map<std::string, std::string>& more = {}) const {
    ChildProcess::Spec spec;
    spec.argv = {folder_ / kBundleStarter, "--", "true"};
    spec.environment = {{"TRAINYARD_JOB", "a"},
                        {"TRAINYARD_JOB_UID", "b"},
                        {"TRAINYARD_POD_NAME", "c"},
                        {"TRAINYARD_POD_UID", "d"},
                        {"TRAINYARD_NODE_INDEX", "0"},
                        {"TRAINYARD_GENERATION", "1"},
                        {"TRAINYARD_STOP_GRACE_SECONDS", "1"},
                        {"TRAINYARD_CONTROL_ADDRESS", "unix:" + (folder_ / "nobody").string()}};
    for (const auto& [name, value] : more)
      spec.environment[name] = value;
    spec.output = scratch_.path() / "output";
    spec.errors = scratch_.path() / "errors";
    return spec;
  }

  const testing_support::TemporaryDirectory scratch_;
  const fs::path folder_ = scratch_.path() / "agent";
};

TEST_F(BundleTest, RunsWithoutAnythingOfTheImage) {
  ASSERT_EQ(install(folder_), 0) << content(scratch_.path() / "errors");
  ChildProcess agent(start());
  // More than one thread: gRPC is at work, and everything has been loaded.
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (threads_of(agent.pid()) < 2 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(milliseconds(10));
  const std::set<fs::path> programs = programs_in(agent.pid());
  EXPECT_TRUE(programs.contains(folder_ / kBundleProgram));
  EXPECT_TRUE(programs.contains(folder_ / kBundleLoader));
  EXPECT_GT(programs.size(), 5U);
  for (const fs::path& program : programs)
    EXPECT_TRUE(program.string().starts_with(folder_.string())) << program << " is the image's";
  agent.signal(SIGTERM);
  const auto end = agent.wait(kDeadline);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->signal, 0);
}

/// Those of the image are of another libc.
TEST_F(BundleTest, BringsTheLibrariesThatTheDriversLibraryNeeds) {
  ASSERT_EQ(install(folder_), 0) << content(scratch_.path() / "errors");
  for (const char* const name : {"libdl.so.2", "libpthread.so.0", "librt.so.1", "libc.so.6"})
    EXPECT_TRUE(fs::is_regular_file(folder_ / kBundleLibraries / name)) << name;
}

/// An image may have every program load a library that is not made for ours.
TEST_F(BundleTest, LoadsNothingThatTheImageWantsLoaded) {
  ASSERT_EQ(install(folder_), 0) << content(scratch_.path() / "errors");
  const std::string unwanted = testing_support::build_path("tests/libtrainyard-unwanted.so");
  // AddressSanitizer's runtime would end it before, for not being the first library itself.
  ChildProcess::Spec without =
      start({{"LD_PRELOAD", unwanted}, {"ASAN_OPTIONS", "verify_asan_link_order=0"}});
  without.argv = {folder_ / kBundleLoader,
                  "--library-path",
                  folder_ / kBundleLibraries,
                  folder_ / kBundleProgram,
                  "--",
                  "true"};
  const auto ended = ChildProcess(without).wait(kDeadline);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->exit_code, 99) << "the library ends every program that loads it";

  ChildProcess agent(start({{"LD_PRELOAD", unwanted},
                            {"LD_AUDIT", unwanted},
                            {"LD_LIBRARY_PATH", "/nowhere"},
                            {"GLIBC_TUNABLES", "glibc.malloc.check=3"},
                            {"LDFLAGS", "-O2"}}));
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (threads_of(agent.pid()) < 2 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(milliseconds(10));
  EXPECT_FALSE(programs_in(agent.pid()).contains(unwanted));
  const std::string environment =
      std::string(1, '\0') + content("/proc/" + std::to_string(agent.pid()) + "/environ");
  for (const std::string name : {"LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "GLIBC_TUNABLES"}) {
    EXPECT_THAT(environment, testing::HasSubstr(std::string(1, '\0') + kEnvForRanks + name + "="))
        << "the ranks get it";
    EXPECT_THAT(environment, testing::Not(testing::HasSubstr(std::string(1, '\0') + name + "=")));
  }
  EXPECT_THAT(environment, testing::HasSubstr(std::string(1, '\0') + "LDFLAGS=-O2"));
  agent.signal(SIGTERM);
  const auto end = agent.wait(kDeadline);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->signal, 0);
}

TEST_F(BundleTest, SaysWhatIsMissing) {
  ASSERT_EQ(install(folder_), 0);
  fs::remove(folder_ / kBundleLoader);
  const auto end = ChildProcess(start()).wait(kDeadline);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->exit_code, 75) << "another node may have it";
  EXPECT_THAT(content(scratch_.path() / "errors"),
              testing::HasSubstr((folder_ / kBundleLoader).string() + ": No such file"));
}

/// What reads a container's output may die alone.
TEST_F(BundleTest, OutlivesWhoReadsItsLog) {
  ASSERT_EQ(install(folder_), 0) << content(scratch_.path() / "errors");
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  ChildProcess::Spec spec = start();
  spec.output = spec.errors = "/proc/self/fd/" + std::to_string(writer.get());
  ChildProcess agent(spec);
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (threads_of(agent.pid()) < 2 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(milliseconds(10));
  reader.reset();
  agent.signal(SIGTERM);  // it says why it ends
  const auto end = agent.wait(kDeadline);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->signal, 0);
}

TEST_F(BundleTest, EverybodyMayRunIt) {
  const mode_t before = ::umask(077);
  const int code = install(folder_);
  ::umask(before);
  ASSERT_EQ(code, 0);
  for (const auto& entry : fs::recursive_directory_iterator(folder_))
    EXPECT_EQ(entry.status().permissions(), fs::perms(0755)) << entry.path();
  EXPECT_EQ(fs::status(folder_).permissions(), fs::perms(0755));
}

/// An init container that runs again finds what the first one has left.
TEST_F(BundleTest, TakesThePlaceOfAnOlderOneThatRuns) {
  ASSERT_EQ(install(folder_), 0);
  const ChildProcess agent(start());
  EXPECT_EQ(install(folder_), 0) << content(scratch_.path() / "errors");
}

TEST_F(BundleTest, SaysWhichFileItCannotWrite) {
  std::ofstream(scratch_.path() / "file") << "";
  EXPECT_NE(install(scratch_.path() / "file"), 0);
  EXPECT_THAT(content(scratch_.path() / "errors"),
              testing::HasSubstr((scratch_.path() / "file").string()));
}

}  // namespace
}  // namespace trainyard::agent
