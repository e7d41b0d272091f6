#include "agent/gpu_watch.h"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Two GPUs of a management library that a file scripts (tests/support/fake_nvml.cc).
class GpuWatchTest : public ::testing::Test {
 protected:
  GpuWatchTest() {
    ::setenv("TRAINYARD_FAKE_NVML", path().c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
    say("count 2");
    for (const char* gpu : {"0", "1"}) {
      say(std::string(gpu) + ".name NVIDIA H200");
      say(std::string(gpu) + ".uuid GPU-" + gpu);
    }
  }
  ~GpuWatchTest() override { ::unsetenv("TRAINYARD_FAKE_NVML"); }  // NOLINT(concurrency-mt-unsafe)

  std::string path() const { return folder_.path() / "script"; }
  void say(const std::string& line) const { std::ofstream(path(), std::ios::app) << line << '\n'; }
  static Result<std::unique_ptr<GpuWatch>> start(
      const std::string& library = "trainyard-fake-nvml") {
    return GpuWatch::start(std::vector{testing_support::build_path("tests/lib" + library + ".so")});
  }
  static std::string metrics_of(const GpuWatch& watch) {
    metrics::Exposition out("job");
    watch.add_metrics(out);
    return out.text();
  }
  template <class Condition>
  static bool wait_until(const Condition& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(90);
    while (!condition()) {
      if (std::chrono::steady_clock::now() >= end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  const testing_support::TemporaryDirectory folder_;
};

TEST_F(GpuWatchTest, ShowsWhatEachGpuTells) {
  for (const char* line : {"0.used 1000", "0.total 4000", "0.utilization 75", "0.temperature 61",
                           "0.power 350500", "0.power_limit 700000", "0.clock 1980",
                           "0.throttle 0x24", "0.ecc_corrected 7", "0.ecc_uncorrected 1"})
    say(line);
  const auto watch = start();
  ASSERT_TRUE(watch) << watch.error().message;
  const std::string text = metrics_of(**watch);
  for (const char* sample :
       {R"(trainyard_gpu_info{trainer_job="job",gpu="0",name="NVIDIA H200",uuid="GPU-0"} 1)",
        R"(trainyard_gpu_memory_used_bytes{trainer_job="job",gpu="0"} 1000)",
        R"(trainyard_gpu_memory_bytes{trainer_job="job",gpu="0"} 4000)",
        R"(trainyard_gpu_utilization_ratio{trainer_job="job",gpu="0"} 0.75)",
        R"(trainyard_gpu_temperature_celsius{trainer_job="job",gpu="0"} 61)",
        R"(trainyard_gpu_power_watts{trainer_job="job",gpu="0"} 350.5)",
        R"(trainyard_gpu_power_limit_watts{trainer_job="job",gpu="0"} 700)",
        R"(trainyard_gpu_clock_hertz{trainer_job="job",gpu="0"} 1980000000)",
        R"(trainyard_gpu_slowed{trainer_job="job",gpu="0",reason="heat"} 1)",
        R"(trainyard_gpu_slowed{trainer_job="job",gpu="0",reason="power"} 1)",
        R"(trainyard_gpu_ecc_errors_total{trainer_job="job",gpu="0",kind="corrected"} 7)",
        R"(trainyard_gpu_ecc_errors_total{trainer_job="job",gpu="0",kind="uncorrected"} 1)",
        R"(trainyard_gpu_info{trainer_job="job",gpu="1",name="NVIDIA H200",uuid="GPU-1"} 1)",
        R"(trainyard_gpu_lost{trainer_job="job",gpu="1"} 0)"})
    EXPECT_THAT(text, HasSubstr(sample));
  EXPECT_THAT(text, Not(HasSubstr(R"(power_watts{trainer_job="job",gpu="1")")))
      << "what it does not tell is no zero";
}

TEST_F(GpuWatchTest, FollowsReadingsAndKeepsTheNameOfALostGpu) {
  say("0.total 9");
  say("0.used 1");
  const auto watch = start();
  ASSERT_TRUE(watch) << watch.error().message;
  say("0.used 2");
  say("1.lost 1");
  for (const char* sample : {R"(gpu_memory_used_bytes{trainer_job="job",gpu="0"} 2)",
                             R"(gpu_lost{trainer_job="job",gpu="1"} 1)"}) {
    EXPECT_TRUE(wait_until([&] { return metrics_of(**watch).find(sample) != std::string::npos; }))
        << sample;
  }
  EXPECT_THAT(metrics_of(**watch), HasSubstr(R"(gpu="1",name="NVIDIA H200")"));
  const GpuFailure failure = (*watch)->failure(0, 1);
  EXPECT_EQ(failure.words,
            "GPU 1 (NVIDIA H200, GPU-1) is lost: its driver gives no access to it any more");
  EXPECT_TRUE(failure.hardware);
  EXPECT_EQ((*watch)->failure(0, 0).words, "");
}

TEST_F(GpuWatchTest, NamesTheErrorOfARanksOwnGpu) {
  say("xid 0 31");
  const auto watch = start();
  ASSERT_TRUE(watch) << watch.error().message;
  ASSERT_TRUE(wait_until([&] { return (*watch)->errors() == 1; }));
  const size_t before = (*watch)->errors();
  EXPECT_EQ((*watch)->failure(before, 0).words, "") << "what was before the rank";
  say("xid 1 43");
  say("xid 0 79");
  ASSERT_TRUE(wait_until([&] { return (*watch)->errors() == 3; }));
  const GpuFailure of_first = (*watch)->failure(before, 0);
  EXPECT_EQ(of_first.words,
            "GPU 0 (NVIDIA H200, GPU-0) reported Xid 79: the GPU has fallen off the bus");
  EXPECT_TRUE(of_first.hardware);
  const GpuFailure of_second = (*watch)->failure(before, 1);
  EXPECT_THAT(of_second.words, HasSubstr("GPU 1 (NVIDIA H200, GPU-1) reported Xid 43: "));
  EXPECT_FALSE(of_second.hardware);
  EXPECT_TRUE((*watch)->failure(before, -1).hardware) << "hardware explains the others";
  EXPECT_THAT(metrics_of(**watch),
              HasSubstr(R"(xid_errors_total{trainer_job="job",gpu="0",xid="79"} 1)"));
}

TEST_F(GpuWatchTest, SumsUpWhatHasTooManyKinds) {
  for (int xid = 200; xid < 220; ++xid)
    say("xid 0 " + std::to_string(xid));
  const auto watch = start();
  ASSERT_TRUE(watch) << watch.error().message;
  ASSERT_TRUE(wait_until([&] { return (*watch)->errors() == 20; }));
  EXPECT_THAT(metrics_of(**watch), HasSubstr(R"(trainer_job="job",gpu="0",xid="other"} 4)"));
  say("xid 1 79");
  ASSERT_TRUE(wait_until([&] { return (*watch)->errors() == 21; }));
  EXPECT_THAT(metrics_of(**watch), HasSubstr(R"(gpu="1",xid="79"} 1)")) << "alerts know it";
  EXPECT_EQ((*watch)->failure(19, 0).words, "GPU 0 (NVIDIA H200, GPU-0) reported Xid 219");
}

TEST_F(GpuWatchTest, WatchesTheOthersWhereOneIsLostOrForbidden) {
  say("0.handle 15");
  say("1.used 5");
  say("1.total 9");
  auto watch = start();
  ASSERT_TRUE(watch) << watch.error().message;
  EXPECT_EQ((*watch)->count(), 2);
  EXPECT_THAT(metrics_of(**watch), HasSubstr(R"(gpu_lost{trainer_job="job",gpu="0"} 1)"));
  EXPECT_THAT(metrics_of(**watch), HasSubstr(R"(memory_used_bytes{trainer_job="job",gpu="1"} 5)"));
  watch->reset();
  say("0.handle 4");
  watch = start();
  ASSERT_TRUE(watch) << watch.error().message;
  EXPECT_EQ((*watch)->count(), 1) << "it is somebody else's";
}

TEST_F(GpuWatchTest, WorksWhereTheDriverTellsOfNoErrors) {
  say("events 0");
  say("xid 0 79");
  const auto watch = start();
  ASSERT_TRUE(watch) << watch.error().message;
  EXPECT_THAT(metrics_of(**watch), HasSubstr(R"(trainyard_gpu_info{trainer_job="job",gpu="0")"));
  EXPECT_EQ((*watch)->failure(0, -1).words, "");
}

TEST_F(GpuWatchTest, WorksWhereTheLibraryHasNoMoreThanGpus) {
  const auto watch = start("trainyard-bare-nvml");
  ASSERT_TRUE(watch) << watch.error().message;
  EXPECT_EQ((*watch)->count(), 2);
  EXPECT_THAT(metrics_of(**watch), HasSubstr(R"(gpu_lost{trainer_job="job",gpu="1"} 0)"));
  EXPECT_THAT(metrics_of(**watch), Not(HasSubstr("celsius{")));
}

TEST_F(GpuWatchTest, SaysWhyThereIsNothingToWatch) {
  EXPECT_THAT(start("trainyard-no-such").error().message, HasSubstr("trainyard-no-such"));
  EXPECT_EQ(start("trainyard-old-nvml").error().message,
            "libnvidia-ml.so.1 has no nvmlDeviceGetHandleByIndex_v2: a newer driver is needed");
  say("count 0");
  EXPECT_EQ(start().error().message, "there is no GPU");
  say("init 9");
  EXPECT_EQ(start().error().message, "Driver Not Loaded");
}

TEST_F(GpuWatchTest, ADriverThatHangsHoldsNobodyUp) {
  const auto watch = start();
  ASSERT_TRUE(watch) << watch.error().message;
  say("hang 1");
  EXPECT_TRUE(wait_until([&] {
    const std::string text = metrics_of(**watch);
    const std::string name = R"(reading_age_seconds{trainer_job="job"} )";
    const size_t at = text.find(name);
    return at != std::string::npos && std::stod(text.substr(at + name.size())) > 1.5;
  }));
  EXPECT_EQ((*watch)->errors(), 0U);
}

TEST_F(GpuWatchTest, ADriverThatHangsFromTheBeginningHoldsNobodyUpEither) {
  say("hang 1");
  const auto watch = start();
  ASSERT_TRUE(watch) << watch.error().message;
  EXPECT_EQ((*watch)->count(), 0);
  EXPECT_EQ((*watch)->failure(0, -1).words, "");
  EXPECT_THAT(metrics_of(**watch), HasSubstr("trainyard_gpu_reading_age_seconds"));
}

}  // namespace
}  // namespace trainyard::agent
