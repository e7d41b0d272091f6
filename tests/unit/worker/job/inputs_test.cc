#include "worker/job/inputs.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <sys/inotify.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/unique_fd.h"
#include "tests/support/temporary_directory.h"
#include "worker/data/prepare.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;

TEST(InputsTest, OneDatasetJsonServesAllThatIsHeldAgainstIt) {
  const testing_support::TemporaryDirectory directory;
  const std::filesystem::path texts = directory.path() / "texts";
  std::filesystem::create_directory(texts);
  std::ofstream(texts / "1.txt") << "a text to train on";
  std::ofstream(texts / "2.txt") << "a text that is held";
  data::PrepareOptions options;
  options.inputs = {texts};
  options.output = directory.path() / "set";
  options.splits = {{"heldout", "^2"}};
  ASSERT_TRUE(data::prepare(options));
  api::EngineSpec spec;
  spec.data.tokens = {(options.output / "train").string()};
  spec.data.validation = {(options.output / "heldout").string()};

  const UniqueFd watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  const std::filesystem::path manifest = options.output / "dataset.json";
  // Both, for the kernel tells of several events of one kind in a row as one.
  ASSERT_GE(::inotify_add_watch(watch.get(), manifest.c_str(), IN_OPEN | IN_CLOSE_NOWRITE), 0)
      << "errno " << errno;
  const auto inputs = open_inputs(spec, {});
  ASSERT_TRUE(inputs) << inputs.error().message;
  EXPECT_EQ(inputs->shared_text, "");
  std::array<inotify_event, 16> events;  // of a watched file: without a name
  EXPECT_EQ(::read(watch.get(), events.data(), sizeof(events)),
            static_cast<ssize_t>(2 * sizeof(inotify_event)))
      << "it was opened and closed once";
}

}  // namespace
}  // namespace trainyard::engine
