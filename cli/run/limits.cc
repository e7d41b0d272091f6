#include "cli/run/limits.h"

#include <algorithm>
#include <future>
#include <pthread.h>
#include <string>
#include <sys/resource.h>
#include <vector>

#include "common/api/job_size.h"
#include "common/io/byte_limits.h"
#include "common/io/open_files.h"
#include "worker/job/job_plan.h"

namespace trainyard::cli {
namespace {

// What this process, an agent and a rank have open whatever the job, and how many more at least for
// each node, each rank of a node and each other rank; counted in /proc.
constexpr int64_t kFilesAlways = 40;
constexpr int64_t kFilesPerNode = 2;
constexpr int64_t kFilesPerLocalRank = 5;
constexpr int64_t kFilesPerPeer = 2;
constexpr int64_t kFilesPerPeerOverTcp = 4;
/// Of a rank, for each other node that copies of its states in memory may go to or come from.
constexpr int64_t kFilesPerNodeOfCopies = 2;

// Threads of this process, an agent and a rank, each with a few to spare; counted in /proc.
constexpr int64_t kThreadsOfRun = 20;
constexpr int64_t kThreadsOfAgent = 16;
constexpr int64_t kThreadsOfRank = 10;
/// More are not tried: whoever has this many has no limit that matters.
constexpr int64_t kThreadsTried = 512;

// Address space of this process at its largest (stacks and the allocator's arenas, most of it never
// touched), and the least that ranks write as one file: what they share, and their logs.
constexpr double kBytesPerMiB = 1 << 20;
constexpr double kAddressBytes = 1024 * kBytesPerMiB;
constexpr double kFileBytes = 16 * kBytesPerMiB;
// Of a thread, of this process, agents and ranks alike: the system gives each as much as the first.
constexpr double kStackBytes = kBytesPerMiB;

/// Data of a process beside its threads' stacks: measured as VmData, with some to spare.
constexpr double kDataBytes = 96 * kBytesPerMiB;

struct Size {
  int64_t nodes;
  int64_t ranks_of_node;
  std::string text() const {
    return std::to_string(nodes) + " x " + std::to_string(ranks_of_node) + " ranks";
  }
};

Size size_of(const api::TrainingJobSpec& spec) {
  return {spec.num_nodes, api::ranks_per_node(spec)};
}

Status check_open_files(const api::TrainingJobSpec& spec) {
  const Size size = size_of(spec);
  const bool tcp = spec.engine && spec.engine->runtime.transport == api::Transport::kTcp;
  const int64_t per_peer = tcp ? kFilesPerPeerOverTcp : kFilesPerPeer;
  const int64_t copies =
      engine::ranks_with_copies(spec) > 0 ? kFilesPerNodeOfCopies * (size.nodes - 1) : 0;
  const int64_t most =
      std::max({kFilesPerNode * size.nodes, kFilesPerLocalRank * size.ranks_of_node,
                spec.engine ? per_peer * size.nodes * size.ranks_of_node + copies : 0});
  return allow_open_files(kFilesAlways + most, size.text());
}

void* wait_for_end(void* end) {
  static_cast<std::shared_future<void>*>(end)->wait();
  return nullptr;
}

/// How many of `wanted` threads may be there at once, by having them: what limits them (the user's
/// processes, a control group, the whole system) and who else counts is not to be known otherwise.
int64_t threads_possible(int64_t wanted) {
  std::promise<void> over;
  std::shared_future<void> end = over.get_future().share();
  pthread_attr_t small;
  if (::pthread_attr_init(&small) != 0) return wanted;
  ::pthread_attr_setstacksize(&small, size_t{64} << 10);
  std::vector<pthread_t> threads;
  pthread_t thread{};
  while (std::ssize(threads) < wanted &&
         ::pthread_create(&thread, &small, wait_for_end, &end) == 0) {
    threads.push_back(thread);
  }
  over.set_value();
  for (const pthread_t begun : threads)
    ::pthread_join(begun, nullptr);
  ::pthread_attr_destroy(&small);
  return std::ssize(threads);
}

/// Threads of one rank.
int64_t threads_of_rank(const api::TrainingJobSpec& spec) {
  return spec.engine ? kThreadsOfRank + std::max<int64_t>(1, spec.engine->runtime.threads) - 1 : 1;
}

Status check_threads(const api::TrainingJobSpec& spec) {
  const Size size = size_of(spec);
  const int64_t wanted = std::min(
      kThreadsTried,
      kThreadsOfRun + size.nodes * (kThreadsOfAgent + size.ranks_of_node * threads_of_rank(spec)));
  const int64_t found = threads_possible(wanted);
  if (found >= wanted) return {};
  return Error{
      ErrorCode::kInvalidConfig,
      "limit of processes and threads: found room for " + std::to_string(found) +
          ", wanted at least " + std::to_string(wanted) + " for " + size.text() +
          "; raise it (ulimit -u, or pids.max of the control group) or stop other processes"};
}

/// Of the process that takes the most before its model: the stacks of its threads count as a whole.
double data_bytes(const api::TrainingJobSpec& spec) {
  size_t stack = 0;
  pthread_attr_t usual;
  if (::pthread_getattr_default_np(&usual) == 0) {
    ::pthread_attr_getstacksize(&usual, &stack);
    ::pthread_attr_destroy(&usual);
  }
  const int64_t threads = std::max({kThreadsOfRun, kThreadsOfAgent, threads_of_rank(spec)});
  return kDataBytes + static_cast<double>(threads) * static_cast<double>(stack);
}

}  // namespace

Status check_limits(const api::TrainingJobSpec& spec) {
  TRAINYARD_TRY(check_open_files(spec));
  TRAINYARD_TRY(check_limit(kAddressSpaceLimit, kAddressBytes));
  TRAINYARD_TRY(check_limit(kDataLimit, data_bytes(spec)));
  TRAINYARD_TRY(check_limit(kStackLimit, kStackBytes));
  TRAINYARD_TRY(check_limit(kFileSizeLimit, kFileBytes));
  return check_threads(spec);
}

Status check_rank_data(const api::TrainingJobSpec& spec, int64_t planned_bytes) {
  return check_limit(
      kDataLimit, data_bytes(spec) + static_cast<double>(planned_bytes),
      " (" + std::to_string(planned_bytes / 1024) + " KiB of it for what a rank trains)");
}

Status check_planned(const api::TrainingJobSpec& spec, const engine::MemoryPlan& plan) {
  TRAINYARD_TRY(engine::check_file_size(plan));
  int64_t most = 0;
  for (int rank = 0; rank < plan.setup().mesh.size(); ++rank)
    most = std::max(most, plan.host_bytes(rank));
  return check_rank_data(spec, most);
}

std::string doubt_of_cpu_time() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return "limit of processor time: found " + std::to_string(limit.rlim_cur) +
         " s (ulimit -t); the system kills each rank that has used this much processor time, and "
         "the rank restarts from the newest checkpoint; raise it (ulimit -t unlimited)";
}

}  // namespace trainyard::cli
