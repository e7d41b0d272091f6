#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/time.h"
#include "common/worker_contract.h"
#include "worker/comm/staged_communicator.h"
#include "worker/rank/fault_plan.h"

namespace trainyard::engine {

/// What one finished step reports.
struct StepProgress {
  int64_t step = 0;
  int64_t samples_consumed = 0;
  int64_t tokens_consumed = 0;
  contract::Figures<double> figures;  ///< those whose source is a step
};

/// Writes the ProgressPage that the supervisor reads: stores, some under a lock that threads of
/// groups rarely hold, no system call.
class Progress final : public comm::DeviceWaits {
 public:
  /// Maps the page behind `fd` (kEnvProgressFd), or a private page when fd < 0. Errors: kIo.
  static Result<Progress> map(int fd);
  Progress(Progress&& other) noexcept
      : page_(std::exchange(other.page_, nullptr)),
        level_(other.level_),
        waits_(other.waits_),
        behind_(std::move(other.behind_)),
        faults_(std::move(other.faults_)) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  Progress& operator=(Progress&&) = delete;
  ~Progress() override;

  /// Faults that happen at the places this is told of.
  void set_faults(FaultPlan faults) { faults_ = std::move(faults); }

  void set_phase(contract::Phase phase);
  void set_total_steps(int64_t steps);
  void instruction(int id);
  /// The instruction about to begin, in words.
  void position(const contract::InstructionName& name);
  /// Its place in logical time, or that of what follows a program.
  void level(int64_t level);
  /// Whether it waits for other ranks: then it is later than ranks at the same level that do not,
  /// for which it may wait there.
  void waits(bool waits);
  int64_t place() const override { return level_; }
  /// While an operation waits for the device, the rank's place is no later than that operation's.
  void waits_for_device(int64_t place, bool waits) override;
  /// Waits for other ranks outside of programs, as long as it lives. Not nested.
  class Waiting {
   public:
    explicit Waiting(Progress& progress) : progress_(progress) { progress_.waits(true); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() { progress_.waits(false); }

   private:
    Progress& progress_;
  };
  /// This rank's own part of a step, smoothed.
  void work_seconds(double seconds);
  void step_done(const StepProgress& progress);
  void validation_loss(double loss);
  void checkpoint_step(int64_t step);
  void checkpoints(const contract::CheckpointFigures& figures);
  void restored_step(int64_t step);

  /// One optimizer step: how long it took, and what this rank trained in it.
  void count_step(Duration took, int64_t tokens, bool skipped);
  /// What a turn of the training loop was spent on, nanoseconds; stages it did not meet are zero.
  void count_stages(const std::array<int64_t, contract::kStages>& split_ns);
  /// What the training group's operations of one kind (by its place in kCollectiveNames) have cost
  /// so far.
  void set_collective(size_t kind, const contract::CollectiveReading& so_far);
  void set_memory(contract::MemoryPurpose purpose, int64_t bytes);

 private:
  explicit Progress(contract::ProgressPage* page) : page_(page) {}
  void store_arrivals();

  contract::ProgressPage* page_;
  int64_t level_ = 1;  ///< as that of the first instruction
  bool waits_ = false;
  /// Places of operations that wait for the device.
  struct Behind {
    std::mutex mutex;
    std::vector<int64_t> places;
  };
  std::unique_ptr<Behind> behind_ = std::make_unique<Behind>();
  FaultPlan faults_;
};

}  // namespace trainyard::engine
