#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "common/api/training_job.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/log/log.h"
#include "common/worker_contract.h"
#include "worker/comm/groups.h"
#include "worker/device/cuda_device.h"
#include "worker/rank/progress.h"
#include "worker/rank/stage_meter.h"
#include "worker/trace/span.h"

namespace trainyard::engine {

/// Everything one rank's run is given. Nothing is owned.
struct TrainContext {
  api::EngineSpec spec;  ///< as the manifest says; train() resolves it
  api::CheckpointPolicy checkpoint_policy;
  std::filesystem::path checkpoint_root;  ///< empty: no checkpoints
  std::string job_uid;
  contract::ResumePlan resume;
  /// Descriptor of the memory file (contract::kEnvMemoryFd); -1: none.
  int memory_fd = -1;
  const CudaSupport* cuda = nullptr;  ///< null: the program has none
  int local_rank = 0;                 ///< of this machine's: its GPU
  int local_world_size = 1;           ///< ranks on this machine, for the default number of threads
  comm::Groups* groups = nullptr;
  Progress* progress = nullptr;
  Logger* log = nullptr;
  const Clock* clock = nullptr;
  /// For what peers do over NCCL, as Options::deadline of their groups in the host's memory.
  std::chrono::milliseconds peer_timeout = std::chrono::seconds(30);
  Duration data_timeout = std::chrono::seconds(60);  ///< for tokens that are not there yet
  /// Told of everything the rank's time goes to; may be null.
  trace::SpanSink* spans = nullptr;
  bool traces = false;  ///< one of those told keeps the newest spans
  /// One of those told; asked after each turn of the loop. May be null.
  StageMeter* meter = nullptr;
  /// Once true it stays so.
  std::function<bool()> stop_requested;
  /// Tells people of what went wrong though training goes on; may be empty.
  std::function<void(const std::string&)> warn;
  /// Ends the process as one that failed so, freeing nothing: a call into NCCL does not return, and
  /// to free what its kernels may use would never return either. May be empty.
  std::function<void(const Error&)> end_at_once;
};

/// Tells people of a doubt, in the log as well; nothing where it is empty.
void warn(const TrainContext& context, const std::string& doubt);

/// How a run ended.
struct TrainOutcome {
  bool complete = false;  ///< all steps done and evaluated; otherwise stopped at a step boundary
  /// What has been trained is in a committed checkpoint; also where nothing has been.
  bool checkpointed = false;
  contract::RunResult result;
};

/// Trains from the newest good checkpoint (or from the beginning) to the last step, or until asked
/// to stop: then the step under way is the last one, an evaluation is cut short where a checkpoint
/// lets a later run make up for it, and a rank that restores gives up. Collective over the world.
/// Errors: kInvalidConfig, kInvalidData (data set, checkpoint, a model that has diverged: every
/// step is skipped), kPeerLost and its kin from the communicator.
Result<TrainOutcome> train(const TrainContext& context);

}  // namespace trainyard::engine
