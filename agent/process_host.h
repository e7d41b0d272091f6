#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <poll.h>
#include <string>
#include <sys/types.h>
#include <vector>

#include "agent/agent_options.h"
#include "agent/gpu_watch.h"
#include "agent/oom_watch.h"
#include "agent/rank_host.h"
#include "agent/rank_log.h"
#include "common/base/unique_fd.h"

namespace trainyard::agent {

/// Rank processes of this machine: forked from the calling thread, each with a progress page, a
/// socket and two pipes whose lines go into POD_DIR/rank-<rank>.log. Not thread-safe. It waits for
/// no process to end, but in its destructor.
class ProcessHost final : public RankHost {
 public:
  /// What a serve or reap call found.
  struct Listener {
    std::function<void(int local_rank, const std::string& line)> on_line;
    std::function<void(int local_rank, RankEnd end)> on_end;
  };

  /// Bounds how long the destructor waits for killed ranks. A rank that waits in the kernel may
  /// outlive it.
  static constexpr std::chrono::milliseconds kEndTimeout{2000};

  /// `environment` (NAME=value) is what ranks inherit. `gpus`, null where there are none, outlives
  /// this.
  ProcessHost(const AgentOptions& options, std::vector<std::string> environment,
              const GpuWatch* gpus = nullptr);
  /// Kills what still runs, and reaps what has ended within kEndTimeout.
  ~ProcessHost() override;

  Status start(const RankLaunch& launch) override;
  Status clear() override;
  std::string left() const override;
  int64_t pid(int local_rank) const override;
  void send(int local_rank, const std::string& line) override;
  void signal(int local_rank, int signal_number) override;
  void read_progress(int local_rank, coordination::RankProgress& progress) const override;
  contract::RankCountersReading read_counters(int local_rank) const override;
  std::vector<std::string> last_lines(int local_rank) const override;

  /// Appends what poll(2) is to watch.
  void add_poll_fds(std::vector<pollfd>& fds) const;
  /// Reads and writes what the descriptor is ready for; nothing happens for one of others.
  void serve(const pollfd& ready, const Listener& listener);
  /// Reaps every child that has ended, adopted ones included; what an ended rank wrote last is
  /// handed over before its end.
  void reap(const Listener& listener);

 private:
  struct Process;

  /// Reads until nothing is left, the end, or `limit_bytes`.
  void read_messages(Process& process, int64_t limit_bytes, const Listener& listener);
  void read_output(Process& process, size_t stream, int64_t limit_bytes);
  void write_unsent(Process& process);
  RankLog log_of(int rank) const;
  Result<int> memory_file(size_t local_rank);

  const AgentOptions options_;
  const std::vector<std::string> environment_;
  std::vector<std::unique_ptr<Process>> processes_;  ///< by local rank
  /// By local rank: what a rank keeps for the one that takes its place. Nothing here reads it.
  std::vector<UniqueFd> memory_files_;
  OomWatch oom_watch_;
  const GpuWatch* const gpus_;
};

/// Kills and reaps what ranks have left behind: descendants that this process, as their subreaper,
/// has inherited. Errors: kUnavailable, naming those that have not ended within `timeout`.
Status end_adopted_children(std::chrono::milliseconds timeout);

}  // namespace trainyard::agent
