#include "cli/run/limits.h"

#include <algorithm>
#include <future>
#include <pthread.h>
#include <string>
#include <sys/resource.h>
#include <vector>

#include "common/io/open_files.h"

namespace trainyard::cli {
namespace {

// What this process, an agent and a rank have open whatever the job, and how many more at least for
// each node, each rank of a node and each other rank; counted in /proc.
constexpr int64_t kFilesAlways = 40;
constexpr int64_t kFilesPerNode = 2;
constexpr int64_t kFilesPerLocalRank = 5;
constexpr int64_t kFilesPerPeer = 2;
constexpr int64_t kFilesPerPeerOverTcp = 4;

// Threads of this process, an agent and a rank, each with a few to spare; counted in /proc.
constexpr int64_t kThreadsOfRun = 20;
constexpr int64_t kThreadsOfAgent = 16;
constexpr int64_t kThreadsOfRank = 10;
/// More are not tried: whoever has this many has no limit that matters.
constexpr int64_t kThreadsTried = 512;

// Address space of this process at its largest (stacks and the allocator's arenas, most of it never
// touched), and the least that ranks write as one file: what they share, and their logs.
constexpr int64_t kBytesPerMiB = 1 << 20;
constexpr int64_t kAddressMiB = 1024;
constexpr int64_t kFileMiB = 16;
// Of a thread, of this process, agents and ranks alike: the system gives each as much as the first.
constexpr int64_t kStackMiB = 1;

struct Size {
  int64_t nodes;
  int64_t ranks_of_node;
  std::string text() const {
    return std::to_string(nodes) + " x " + std::to_string(ranks_of_node) + " ranks";
  }
};

Size size_of(const api::TrainingJobSpec& spec) {
  return {spec.num_nodes, std::max<int64_t>(1, spec.num_proc_per_node)};
}

Status check_open_files(const api::TrainingJobSpec& spec) {
  const Size size = size_of(spec);
  const bool tcp = spec.engine && spec.engine->runtime.transport == api::Transport::kTcp;
  const int64_t per_peer = tcp ? kFilesPerPeerOverTcp : kFilesPerPeer;
  const int64_t most =
      std::max({kFilesPerNode * size.nodes, kFilesPerLocalRank * size.ranks_of_node,
                spec.engine ? per_peer * size.nodes * size.ranks_of_node : 0});
  return allow_open_files(kFilesAlways + most, size.text());
}

/// A limit in bytes, which ulimit counts in KiB.
Status check_bytes(int resource, int64_t wanted_mib, const char* what, const char* option) {
  rlimit limit{};
  const bool known = ::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) == 0;
  if (!known || limit.rlim_cur == RLIM_INFINITY) return {};
  if (limit.rlim_cur >= static_cast<rlim_t>(wanted_mib * kBytesPerMiB)) return {};
  return Error{ErrorCode::kInvalidConfig, std::string(what) + ": found " +
                                              std::to_string(limit.rlim_cur / 1024) +
                                              " KiB (ulimit " + option + "), wanted at least " +
                                              std::to_string(wanted_mib * 1024) +
                                              "; raise it (ulimit " + option + " unlimited)"};
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

Status check_threads(const api::TrainingJobSpec& spec) {
  const Size size = size_of(spec);
  const int64_t of_rank =
      spec.engine ? kThreadsOfRank + std::max<int64_t>(1, spec.engine->runtime.threads) - 1 : 1;
  const int64_t wanted = std::min(
      kThreadsTried, kThreadsOfRun + size.nodes * (kThreadsOfAgent + size.ranks_of_node * of_rank));
  const int64_t found = threads_possible(wanted);
  if (found >= wanted) return {};
  return Error{ErrorCode::kInvalidConfig,
               "limit of processes and threads: found room for " + std::to_string(found) +
                   ", wanted at least " + std::to_string(wanted) + " for " + size.text() +
                   "; raise it (ulimit -u, or pids.max of the control group) or end others"};
}

}  // namespace

Status check_limits(const api::TrainingJobSpec& spec) {
  TRAINYARD_TRY(check_open_files(spec));
  TRAINYARD_TRY(check_bytes(RLIMIT_AS, kAddressMiB, "limit of address space", "-v"));
  TRAINYARD_TRY(check_bytes(RLIMIT_STACK, kStackMiB, "limit of stack size", "-s"));
  TRAINYARD_TRY(check_bytes(RLIMIT_FSIZE, kFileMiB, "limit of file size", "-f"));
  return check_threads(spec);
}

}  // namespace trainyard::cli
