// All-reduce between two processes of this machine: latency of small buffers, bandwidth of large
// ones.
//   comm_bench [shm|tcp]...        (default: both)
// algbw is buffer bytes / time, busbw = algbw x 2(P-1)/P (equal for two ranks). Medians.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "worker/comm/factory.h"

extern char** environ;

namespace trainyard::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// Medians of one all-reduce: wall time, and processor time of this rank, which other load on the
/// machine disturbs less.
struct Cost {
  double seconds = 0;
  double processor_seconds = 0;
};

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Both ranks call it.
Cost cost_of(Communicator& communicator, int64_t bytes, int repetitions) {
  std::vector<int64_t> data(static_cast<size_t>(bytes / 8), 1);
  std::vector<double> seconds;
  std::vector<double> processor;
  const int warm_up = repetitions / 4 + 2;
  for (int i = 0; i < warm_up + repetitions; ++i) {
    const auto begin = Clock::now();
    const double processor_begin = processor_seconds();
    const Status status =
        communicator
            .all_reduce(std::as_writable_bytes(std::span(data)), DType::kInt64, ReduceOp::kSum)
            ->wait();
    if (!status) {
      std::fprintf(stderr, "%s\n", status.error().message.c_str());
      std::exit(70);
    }
    if (i < warm_up) continue;
    processor.push_back(processor_seconds() - processor_begin);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return {median(seconds), median(processor)};
}

int run(TransportKind kind, int rank, Listener listener, const std::string& peer) {
  Options options;
  options.rank = rank;
  options.job_uid = "comm_bench";
  options.endpoints = {{0, "host", rank == 0 ? listener.address() : peer},
                       {1, "host", rank == 1 ? listener.address() : peer}};
  auto made = make_communicator(kind, options, std::move(listener));
  if (!made) {
    std::fprintf(stderr, "%s\n", made.error().message.c_str());
    return 70;
  }
  const std::string name(name_of(kind));
  for (const int64_t bytes :
       {8L, 1L << 10, 16L << 10, 64L << 10, 1L << 20, 16L << 20, 64L << 20, 128L << 20}) {
    const Cost cost = cost_of(**made, bytes, bytes <= 64 * 1024 ? 4000 : 9);
    if (rank != 0) continue;
    std::printf("%s %9ld B  %9.2f us  %6.2f GB/s  (processor %9.2f us)\n", name.c_str(), bytes,
                cost.seconds * 1e6, static_cast<double>(bytes) / cost.seconds * 1e-9,
                cost.processor_seconds * 1e6);
  }
  return 0;
}

/// The second rank is this program again, told the first one's address; it prints its own.
int run_pair(const char* self, TransportKind kind) {
  auto listener = Listener::bind("127.0.0.1");
  if (!listener) return 70;
  int out[2];
  if (::pipe(out) != 0) return 70;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::string name(name_of(kind));
  std::string address = listener->address();
  std::string flag = "--second";
  std::string program = self;
  char* argv[] = {program.data(), flag.data(), name.data(), address.data(), nullptr};
  pid_t child = 0;
  if (::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv, environ) != 0) return 70;
  posix_spawn_file_actions_destroy(&actions);
  ::close(out[1]);
  std::string peer;
  char byte = 0;
  while (::read(out[0], &byte, 1) == 1 && byte != '\n')
    peer += byte;
  const int code = run(kind, 0, *std::move(listener), peer);
  ::close(out[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return code;
}

TransportKind kind_of(const std::string& name) {
  return name == "tcp" ? TransportKind::kTcp : TransportKind::kShm;
}

}  // namespace
}  // namespace trainyard::comm

int main(int argc, char** argv) {
  using trainyard::comm::kind_of;
  if (argc == 4 && std::strcmp(argv[1], "--second") == 0) {
    auto listener = trainyard::comm::Listener::bind("127.0.0.1");
    if (!listener) return 70;
    std::printf("%s\n", listener->address().c_str());
    std::fflush(stdout);
    return trainyard::comm::run(kind_of(argv[2]), 1, *std::move(listener), argv[3]);
  }
  std::vector<std::string> names(argv + 1, argv + argc);
  if (names.empty()) names = {"shm", "tcp"};
  for (const std::string& name : names) {
    if (const int code = trainyard::comm::run_pair(argv[0], kind_of(name)); code != 0) return code;
  }
  return 0;
}
