#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "common/io/last_words.h"
#if defined(TRAINYARD_PROGRAM_WITH_CUDA)
#include "worker/device/cuda_device.h"
#endif

namespace {

/// What `evaluate` and `sample` have for GPUs.
const trainyard::engine::CudaSupport* cuda() {
#if defined(TRAINYARD_PROGRAM_WITH_CUDA)
  static const trainyard::engine::CudaSupport support = {
      trainyard::engine::find_cuda_device, trainyard::engine::make_cuda_device, nullptr};
  return &support;
#else
  return nullptr;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  trainyard::say_last_words("trainyard", trainyard::LastWords::kText);
  // Where a parent ignores it, the kernel keeps no exit status of children.
  std::signal(SIGCHLD, SIG_DFL);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return trainyard::cli::run(arguments, std::cout, std::cerr, cuda());
}
