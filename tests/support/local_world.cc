#include "tests/support/local_world.h"

#include <chrono>
#include <fcntl.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/base/unique_fd.h"

namespace trainyard::testing_support {
namespace {

constexpr char kManifest[] = R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: job, namespace: default}
spec:
  numNodes: 2
  template:
    spec:
      containers:
      - {name: trainer, image: none, command: [/bin/true]}
)";

}  // namespace

bool wait_until(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

control::local::LocalClusterOptions script_options(const std::filesystem::path& run_dir,
                                                   const Clock& clock, const std::string& script) {
  control::local::LocalClusterOptions options;
  options.run_dir = run_dir;
  auto job = api::decode_training_job(kManifest);
  EXPECT_TRUE(job.has_value()) << (job ? "" : job.error().message);
  if (job) options.job = *std::move(job);
  options.pod_command = {"/bin/sh", "-c", script};
  options.clock = &clock;
  return options;
}

bool tell_to_exit(const std::filesystem::path& run_dir, const std::string& pod_name,
                  int exit_code) {
  const std::filesystem::path fifo = run_dir / "pods" / pod_name / "end";
  const std::string line = std::to_string(exit_code) + "\n";
  // Opening for writing fails until the pod reads.
  return wait_until([&] {
    UniqueFd fd(::open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    return fd.valid() &&
           ::write(fd.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
  });
}

}  // namespace trainyard::testing_support
