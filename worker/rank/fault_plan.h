#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/worker_contract.h"

namespace trainyard::engine {

/// Faults that a rank brings upon itself at exact places, so that tests of recovery can be repeated
/// (docs/reference/worker-contract.md, TRAINYARD_FAULT). Without that variable there are none, and
/// the hooks cost a comparison.
class FaultPlan {
 public:
  enum class Action {
    kKill,       ///< SIGKILL to this rank
    kStop,       ///< SIGSTOP to this rank
    kTerminate,  ///< SIGTERM to this rank, which waits until that asks it to stop
    kSpin,       ///< never comes back, busily
    kKillAgent,
    kStopAgent,
    kTerminateAgent,  ///< SIGTERM to the agent; the rank waits until the agent asks it to stop
  };
  /// Where: a phase, or the first instruction at or after `instruction` of step `step` + 1.
  struct Fault {
    int64_t rank = 0;
    int64_t generation = 0;
    std::optional<contract::Phase> phase;
    int64_t step = 0;
    int64_t instruction = 0;
    Action action = Action::kKill;
  };

  FaultPlan() = default;

  /// Reads "RANK:GENERATION:PLACE:ACTION" items, separated by commas; PLACE is a phase (starting,
  /// rendezvous, restoring, training, evaluating, checkpointing, done) or STEP.INSTRUCTION; ACTION
  /// is kill, stop, term, spin, agent-kill, agent-stop or agent-term. Keeps those of this rank in
  /// this generation. Errors: kInvalidConfig.
  static Result<FaultPlan> parse(std::string_view text, int64_t rank, int64_t generation);

  /// Where each fault is written down, a line each, before it happens; empty: nowhere.
  void set_journal(std::string path) { journal_ = std::move(path); }
  /// Whether this rank has been asked to stop, from any thread. After SIGTERM the rank waits for
  /// it, 60 s at most: otherwise the job may end before the request arrives. Empty: no wait.
  void set_stop_requested(std::function<bool()> asked) { stop_requested_ = std::move(asked); }

  bool empty() const { return faults_.empty(); }
  const std::vector<Fault>& faults() const { return faults_; }

  /// The rank enters a phase.
  void at_phase(contract::Phase phase);
  /// The rank begins an instruction after `step` completed steps.
  void at_instruction(int64_t step, int64_t instruction);

 private:
  void commit(const Fault& fault) const;
  void await_request() const;

  std::vector<Fault> faults_;
  std::string journal_;
  std::function<bool()> stop_requested_;
};

}  // namespace trainyard::engine
