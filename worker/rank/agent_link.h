#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/base/error.h"
#include "common/base/unique_fd.h"
#include "common/worker_contract.h"

namespace trainyard::engine {

/// The rank's end of its socket to the agent, and of SIGTERM. A thread reads both; training only
/// looks at stop_requested().
class AgentLink {
 public:
  /// `fd`: the inherited socket (kEnvAgentFd), or -1 without an agent. SIGTERM must already be
  /// blocked in every thread; the link receives it. `on_dump_stacks` is called on the link's thread
  /// when the agent asks for stacks. Errors: kIo.
  static Result<std::unique_ptr<AgentLink>> open(int fd, std::function<void()> on_dump_stacks = {});
  ~AgentLink();

  /// Sends one line. Errors: kIo when the agent is gone.
  Status send(const std::string& line);
  /// Waits for the start message. Errors: kDeadline, kAborted (stop came first or the agent went).
  Result<contract::Start> wait_start(std::chrono::milliseconds timeout);
  /// True once the agent or SIGTERM has asked for a checkpoint and the end, or the agent is gone.
  bool stop_requested() const { return stop_.load(std::memory_order_acquire); }

 private:
  AgentLink(UniqueFd socket, UniqueFd signals, std::function<void()> on_dump_stacks);
  void read_loop(const std::stop_token& token);
  void handle(const std::string& line);

  UniqueFd socket_;
  UniqueFd signals_;
  const std::function<void()> on_dump_stacks_;
  std::mutex sending_;  ///< lines do not mix
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<contract::Start> start_;
  std::string failure_;
  std::atomic<bool> stop_{false};
  std::jthread reader_;
};

}  // namespace trainyard::engine
