#include "agent/event_loop.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <random>
#include <signal.h>
#include <span>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <utility>

#include "agent/agent_metrics.h"
#include "agent/gpu_watch.h"
#include "agent/nvml.h"
#include "agent/process_host.h"
#include "agent/supervisor.h"
#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/http/status_server.h"
#include "common/io/file.h"
#include "common/io/gpu_files.h"
#include "common/worker_contract.h"
#include "control/coordinator/grpc_channel.h"
#include "control/exit_json.h"
#include "control/local/pod_exit.h"

namespace trainyard::agent {
namespace {

/// How long the last facts may take to reach the coordinator; after that exit.json tells.
constexpr std::chrono::seconds kFinishTimeout{1};
constexpr std::chrono::milliseconds kAdoptedTimeout{2000};
/// Kubernetes cuts what is longer.
constexpr size_t kMaxLastWordsBytes = 4096;
/// Age of what the status server shows; turns come at least once a second.
constexpr std::chrono::milliseconds kSnapshotInterval{500};

sigset_t agent_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal_number : {SIGTERM, SIGINT, SIGCHLD})
    sigaddset(&signals, signal_number);
  return signals;
}

int poll_timeout_ms(MonoTime now, MonoTime next) {
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - now);
  return static_cast<int>(std::max<int64_t>(0, wait.count()));
}

class EventLoop {
 public:
  EventLoop(const AgentOptions& options, std::vector<std::string> environment, UniqueFd signals,
            Logger& logger)
      : options_(options),
        logger_(logger),
        signals_(std::move(signals)),
        channel_(options.control_address, options.security),
        gpus_(watch_gpus()),
        host_(options, std::move(environment), gpus_.get()),
        supervisor_(options, channel_, host_, clock_, logger, std::random_device{}()),
        metrics_(options.job_name, options.job_namespace, clock_, gpus_.get()) {
    listener_.on_line = [this](int local_rank, const std::string& line) {
      supervisor_.on_rank_line(local_rank, line);
    };
    listener_.on_end = [this](int local_rank, RankEnd end) {
      supervisor_.on_rank_end(local_rank, end);
    };
  }

  AgentExit run() {
    serve_status();
    supervisor_.begin();
    while (!supervisor_.finished()) {
      turn();
      if (server_ && clock_.mono() >= next_snapshot_) refresh_status();
    }
    channel_.finish(kFinishTimeout);
    return *supervisor_.finished();
  }
  const std::optional<contract::RunResult>& result() const { return supervisor_.result(); }

 private:
  /// Where the kernel shows GPUs and nobody watches them, that is worth a warning.
  std::unique_ptr<GpuWatch> watch_gpus() {
    auto watch = GpuWatch::start(nvml_paths());
    if (watch) {
      logger_.info("GPUs are watched", {{"count", (*watch)->count()}});
      return *std::move(watch);
    }
    if (count_gpu_files() > 0) {
      logger_.warning(
          "GPUs are not watched: neither their metrics nor the driver's errors are reported; the "
          "container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility",
          {{"error", watch.error().message}});
    }
    return nullptr;
  }

  /// Training does not depend on being watched: a port that is taken is worth a warning.
  void serve_status() {
    if (options_.metrics_address.empty()) return;
    auto server = http::StatusServer::start(
        {.address = options_.metrics_address,
         .pages = http::status_pages(
             [this](const http::ServerCounters& counters) { return metrics_.text(counters); },
             [this] { return metrics_.ready(); })});
    if (!server) {
      logger_.warning("no metrics are served", {{"error", server.error().message}});
      return;
    }
    server_ = *std::move(server);
    logger_.info("metrics are served", {{"address", server_->address()}});
    if (options_.pod_dir.empty()) return;
    const Status recorded =
        write_file_atomic(options_.pod_dir / kMetricsAddressFile, server_->address() + "\n");
    if (!recorded) {
      logger_.warning("metrics address not recorded", {{"error", recorded.error().message}});
    }
  }

  void refresh_status() {
    metrics_.update(supervisor_.snapshot());
    next_snapshot_ = clock_.mono() + kSnapshotInterval;
  }

  void turn() {
    fds_.assign({{signals_.get(), POLLIN, 0}, {channel_.wake_fd(), POLLIN, 0}});
    host_.add_poll_fds(fds_);
    const int timeout_ms = poll_timeout_ms(clock_.mono(), supervisor_.next_timer());
    const int ready = ::poll(fds_.data(), fds_.size(), timeout_ms);
    const MonoTime begin = clock_.mono();
    if (ready > 0) {
      for (size_t i = 2; i < fds_.size(); ++i)
        host_.serve(fds_[i], listener_);
      if (fds_[0].revents != 0) take_signals();
      if (fds_[1].revents != 0) supervisor_.on_channel();
    }
    supervisor_.on_timer();
    metrics_.note_turn(clock_.mono() - begin);
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD) {
        host_.reap(listener_);
      } else {
        supervisor_.on_terminate();
      }
    }
  }

  const AgentOptions& options_;
  Logger& logger_;
  UniqueFd signals_;
  SystemClock clock_;
  control::GrpcChannel channel_;
  const std::unique_ptr<GpuWatch> gpus_;  ///< null: none
  ProcessHost host_;
  Supervisor supervisor_;
  ProcessHost::Listener listener_;
  std::vector<pollfd> fds_;
  AgentMetrics metrics_;
  MonoTime next_snapshot_;
  std::unique_ptr<http::StatusServer> server_;  ///< asks metrics_: gone before it
};

control::ContainerExit record_of(const AgentExit& exit) {
  control::ContainerExit record;
  record.exit_code = exit.exit_code;
  record.signal = exit.signal;
  record.rank = exit.rank;
  record.reason = exit.reason;
  record.message = exit.message;
  record.last_step = exit.last_step;
  record.asked = exit.asked;
  record.finished_at = SystemClock().now();
  return record;
}

/// For a coordinator that was away when rank 0 told it.
void keep_result(const AgentOptions& options, const contract::RunResult& result, Logger& logger) {
  if (options.pod_dir.empty()) return;
  const Status kept =
      write_file_atomic(options.pod_dir / contract::kResultFile, contract::encode(result));
  if (!kept) logger.error("result not written", {{"error", kept.error().message}});
}

/// How the agent ended, for whoever asks later.
void leave_record(const AgentOptions& options, const control::ContainerExit& exit, Logger& logger) {
  Status written;
  if (!options.pod_dir.empty()) {
    written = control::local::write_pod_exit(options.pod_dir, options.pod_uid, exit);
  }
  if (!written) logger.error("exit record not written", {{"error", written.error().message}});
  if (options.termination_log.empty()) return;
  // A file that the kubelet has mounted: it cannot be replaced by a rename.
  const std::string words = control::to_line(exit, kMaxLastWordsBytes);
  const UniqueFd file(
      ::open(options.termination_log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  written =
      write_all(file.get(), std::as_bytes(std::span(words)), options.termination_log.string());
  if (!written) logger.error("last words not written", {{"error", written.error().message}});
}

}  // namespace

void prepare_signals() {
  const sigset_t signals = agent_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  // Where a parent ignores it, the kernel keeps no exit status of children.
  ::signal(SIGCHLD, SIG_DFL);
}

int run_agent(const AgentOptions& options, std::vector<std::string> environment, Logger& logger) {
  if (!options.pod_dir.empty()) {
    // A disk without that much room has more to say soon.
    static_cast<void>(control::local::reserve_pod_exit(options.pod_dir));
  }
  const sigset_t signals = agent_signals();
  UniqueFd signal_fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  // Descendants of ranks come to us when their parents die, so that nothing is left behind.
  if (!signal_fd.valid() || ::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    logger.error("cannot supervise", {{"error", io_error("signalfd or prctl", errno).message}});
    return contract::kExitRetry;
  }
  AgentExit exit;
  {
    EventLoop loop(options, std::move(environment), std::move(signal_fd), logger);
    exit = loop.run();
    if (loop.result()) keep_result(options, *loop.result(), logger);
  }
  if (const Status gone = end_adopted_children(kAdoptedTimeout); !gone) {
    logger.warning("processes are left behind", {{"error", gone.error().message}});
  }
  logger.info("agent ends", {{"exit_code", exit.exit_code}, {"reason", exit.reason}});
  leave_record(options, record_of(exit), logger);
  return exit.exit_code;
}

}  // namespace trainyard::agent
