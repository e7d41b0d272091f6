// Random stories under random faults, each drawn from one number: several jobs, users that change
// their minds, programs that fail, nodes that go, and faults at writes all the way. When all is
// healed, every job is at rest where it belongs, and no invariant was broken on the way.
//
//   TRAINYARD_SIM_SEED=N        plays that story alone
//   TRAINYARD_SIM_FIRST=N       begins with that story (default: one of the first 500, drawn by
//                               TRAINYARD_TEST_SEED: the first without it)
//   TRAINYARD_SIM_SECONDS=N     how long stories are played (default: 40 of them, however long that
//                               takes; eight minutes under TRAINYARD_LONG_TESTS=1)
//   TRAINYARD_SIM_THREADS=N     how many are played at once (default: one a core)
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/extent.h"
#include "tests/support/sim/random_story.h"

namespace trainyard::sim {
namespace {

using std::chrono::seconds;

/// Each cell of a whole run's matrix has at least so many.
constexpr int64_t kCellMin = 100;
/// Stories among which the first is drawn: so many, and those that follow, are known to be green. A
/// run whose first story nobody has played yet would be red by what it finds, not by what changed.
constexpr uint64_t kDrawn = 500;
/// Played where nobody says for how long: the same ones on every machine.
constexpr uint64_t kStories = 40;

std::optional<int64_t> number_in_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return std::stoll(text);
}

uint64_t first_story() {
  if (const auto first = number_in_environment("TRAINYARD_SIM_FIRST")) {
    return static_cast<uint64_t>(*first);
  }
  return 1 + testing_support::test_seed() % kDrawn;
}

/// Fault by write, as text; the first row is of the writes that met none.
void print(const FaultMatrix& matrix) {
  std::cout << "fault x write";
  for (int write = 0; write < kWriteKinds; ++write)
    std::cout << "," << name_of(static_cast<WriteKind>(write));
  std::cout << "\n";
  for (size_t fault = 0; fault < matrix.size(); ++fault) {
    std::cout << name_of(static_cast<Fault>(fault));
    for (const int64_t count : matrix.at(fault))
      std::cout << "," << count;
    std::cout << "\n";
  }
}

/// Of a story that ends the process, by a CHECK or an exception, its number: the name of its
/// thread.
void name_story(int signal) {
  std::array<char, 32> text{};
  std::memcpy(text.data(), "in ", 3);
  prctl(PR_GET_NAME, text.data() + 3);
  text.at(std::strlen(text.data())) = '\n';
  if (write(STDERR_FILENO, text.data(), std::strlen(text.data())) < 0) _exit(1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

class RandomTest : public testing::Test {
 protected:
  RandomTest() { std::signal(SIGABRT, name_story); }
  ~RandomTest() override { std::signal(SIGABRT, SIG_DFL); }
  RandomTest(const RandomTest&) = delete;
  RandomTest& operator=(const RandomTest&) = delete;

  /// Plays one story and holds it to everything. Any thread.
  void play(uint64_t seed) {
    prctl(PR_SET_NAME, ("story " + std::to_string(seed)).c_str());
    const Told told = tell_story(seed);
    const std::lock_guard lock(mutex_);
    for (const std::string& violation : told.violations)
      ADD_FAILURE() << "seed " << seed << ": " << violation;
    EXPECT_GE(told.reconciles, kReconcilesMin) << "seed " << seed;
    EXPECT_GE(told.faults, kFaultsMin) << "seed " << seed;
    EXPECT_GE(told.pods, kPodsMin) << "seed " << seed;
    for (size_t fault = 0; fault < matrix_.size(); ++fault) {
      for (size_t write = 0; write < matrix_.at(fault).size(); ++write)
        matrix_.at(fault).at(write) += told.matrix.at(fault).at(write);
    }
    reconciles_ += told.reconciles;
    faults_ += told.faults;
    ++stories_;
    if (!has_failed_ && HasFailure()) {
      std::cout << "repeat: TRAINYARD_SIM_SEED=" << seed << " build/dev/test/sim_random_test\n";
    }
    has_failed_ = HasFailure();
  }

  /// Plays `count` stories from the first on, and more until the time is over; none after one has
  /// failed. Each that is begun is played to its end, so that what was played is a range without
  /// gaps.
  void play_from(uint64_t first, uint64_t count, std::chrono::steady_clock::time_point end) {
    std::atomic<uint64_t> next = first;
    const auto play_on = [&] {
      for (uint64_t story = next++; story < first + count || std::chrono::steady_clock::now() < end;
           story = next++) {
        play(story);
        if (has_failed_) return;
      }
    };
    const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
    const int64_t threads = number_in_environment("TRAINYARD_SIM_THREADS").value_or(cores);
    std::vector<std::jthread> players;
    for (int64_t i = 0; i < std::max<int64_t>(threads, 1); ++i)
      players.emplace_back(play_on);
  }

  int64_t smallest_cell() const {
    int64_t smallest = INT64_MAX;
    for (size_t fault = 1; fault < matrix_.size(); ++fault) {
      const auto& row = matrix_.at(fault);
      smallest = std::min(smallest, *std::min_element(row.begin(), row.end()));
    }
    return smallest;
  }

  std::mutex mutex_;  ///< guards the failures and all below
  FaultMatrix matrix_{};
  int64_t stories_ = 0;
  int64_t reconciles_ = 0;
  int64_t faults_ = 0;
  std::atomic<bool> has_failed_ = false;
};

TEST_F(RandomTest, StoriesUnderFaultsComeToTheirRest) {
  if (const auto only = number_in_environment("TRAINYARD_SIM_SEED")) {
    play(static_cast<uint64_t>(*only));
    print(matrix_);
    return;
  }
  const bool is_long = testing_support::runs_everything();
  const seconds limit(number_in_environment("TRAINYARD_SIM_SECONDS").value_or(is_long ? 480 : 0));
  const uint64_t first = first_story();
  play_from(first, limit > seconds(0) ? 1 : kStories, std::chrono::steady_clock::now() + limit);
  std::cout << stories_ << " stories from seed " << first << ", " << reconciles_ << " reconciles, "
            << faults_ << " faults, smallest cell " << smallest_cell() << "\n";
  print(matrix_);
  // A machine that is slow plays fewer: the cells are counted where the stories were.
  if (stories_ >= kStoriesForTheMatrix) {
    EXPECT_GE(smallest_cell(), kCellMin);
  }
}

/// 428: a pod that is made and goes while the watch is cut is in no event; its job waited for it.
/// 291: a new leader made a pod beside one of an older generation that its cache did not show yet.
/// Stories were drawn otherwise then: unit tests of what they found hold it.
/// 501564: a leader that had stood still put the addresses of its pods of yesterday back.
/// 502097: a status whose answer was lost was written, and pods were made as if it had not been.
/// 272: addresses were written of a list of pods, then those of a cache that was older than it.
/// 43: the creation of a disruption budget that was found missing was lost, and nobody told.
/// 63: what one look had shown too early was taken for old when it was true.
/// 820284: the same within one look, which keeps what stands beside the pods twice.
/// 1543: a disruption budget that was made and taken away while the watch was cut is in no event.
/// 88123671: a job that another leader had begun was taken for the own, as the first view was
/// older.
TEST_F(RandomTest, StoriesThatHaveFoundSomethingComeToTheirRest) {
  for (const uint64_t seed : {428, 291, 501564, 502097, 272, 820284, 43, 63, 1543, 88123671})
    play(seed);
}

TEST_F(RandomTest, TheSameSeedTellsTheSameStory) {
  const Told once = tell_story(7);
  const Told again = tell_story(7);
  EXPECT_EQ(once.reconciles, again.reconciles);
  EXPECT_EQ(once.digest, again.digest);
  EXPECT_NE(once.digest, tell_story(8).digest);
}

}  // namespace
}  // namespace trainyard::sim
