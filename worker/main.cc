#include "common/base/program_help.h"
#include "common/io/last_words.h"
#include "common/log/log.h"
#if defined(TRAINYARD_WORKER_WITH_CUDA)
#include "worker/comm/nccl_transport.h"
#endif
#include "worker/rank/rank.h"

namespace {

constexpr char kHelp[] =
    R"(Runs one rank of a TrainingJob. The rank trains its part of the model with the built-in
engine. `trainyard-agent` starts one worker per rank. To train on this machine, use
`trainyard run FILE`.
Usage: trainyard-worker
       trainyard-worker --help | --version

The agent configures the worker through environment variables. The worker logs to standard error,
one JSON object per line. Exit codes: 0 done, 64 a bad setting, 65 bad data, 75 try again, 143
stopped with a checkpoint.
)";

/// What the program has for GPUs.
const trainyard::engine::CudaSupport* cuda() {
#if defined(TRAINYARD_WORKER_WITH_CUDA)
  static const trainyard::engine::CudaSupport support = {trainyard::engine::find_cuda_device,
                                                         trainyard::engine::make_cuda_device,
                                                         trainyard::comm::make_nccl_transport};
  return &support;
#else
  return nullptr;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  trainyard::say_last_words("trainyard-worker", trainyard::LastWords::kJson);
  if (const auto answered = trainyard::answer_about_itself(
          argc, argv, {"trainyard-worker", TRAINYARD_VERSION, kHelp})) {
    return *answered;
  }
  const auto log = trainyard::Logger::to_stderr(trainyard::LogLevel::kInfo);
  return trainyard::engine::run_rank(*log, cuda());
}
