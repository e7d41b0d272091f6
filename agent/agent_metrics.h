#pragma once

#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "agent/gpu_watch.h"
#include "common/base/clock.h"
#include "common/http/status_server.h"
#include "common/metrics/exposition.h"
#include "control/coordinator/job_run.h"

namespace trainyard::agent {

/// The agent at one moment.
struct AgentSnapshot {
  bool stream_open = false;
  int64_t streams_opened = 0;
  bool ranks_started = false;
  bool ending = false;
  bool waits_for_order = false;  ///< its ranks have failed
  bool joins = false;            ///< ends its ranks for a newer generation
  int64_t rank_starts = 0;       ///< of all generations
  int64_t ranks_running = 0;
  std::vector<control::RankReading> ranks;  ///< of the built-in engine, by local rank
};

/// The series of trainyard-agent beside those of its ranks.
std::span<const metrics::Family> agent_families();

/// What the agent's status server answers, made from the newest snapshot. Thread-safe.
class AgentMetrics {
 public:
  /// Of the job of that name, in that namespace where there is one. `clock` outlives this, and so
  /// does `gpus`, null where there are none.
  AgentMetrics(std::string trainer_job, std::string trainer_namespace, const Clock& clock,
               const GpuWatch* gpus = nullptr)
      : trainer_job_(std::move(trainer_job)),
        trainer_namespace_(std::move(trainer_namespace)),
        clock_(clock),
        gpus_(gpus) {}

  void update(AgentSnapshot snapshot);
  /// The agent has looked at no event for so long.
  void note_turn(Duration length);
  /// The body of /metrics.
  std::string text(const http::ServerCounters& server) const;
  /// Ready: the control stream is open and the ranks run.
  http::Health ready() const;

 private:
  const std::string trainer_job_;
  const std::string trainer_namespace_;
  const Clock& clock_;
  const GpuWatch* const gpus_;
  mutable std::mutex mutex_;
  AgentSnapshot snapshot_;
  Duration longest_turn_{};
};

}  // namespace trainyard::agent
