// One rank as a process of its own, for the tests that kill, stop and measure real processes:
//   comm_rank KIND RANK SIZE DEADLINE_MS ELEMENTS [OPERATION|PPxDPxFSDP]
// prints its address, reads the table (one line), prints "ready" after the first all-reduce, goes
// on with operations (all_reduce; with a mesh messages through the stages and back, one all_reduce
// over the shard group and one over the copies) until one fails or "stop" comes on standard input,
// and prints how it ended:
//   failed CODE MILLISECONDS_OF_THE_FAILED_OPERATION LOST,RANKS MESSAGE     or     stopped STEPS

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <poll.h>
#include <sstream>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "tests/comm/worker/comm/any_operation.h"
#include "worker/comm/factory.h"
#include "worker/comm/groups.h"

namespace trainyard::comm {
namespace {

using Clock = std::chrono::steady_clock;

TransportKind kind_of(const std::string& name) {
  return name == "shm" ? TransportKind::kShm : TransportKind::kTcp;
}

Operation op_of(const std::string& name) {
  for (const Operation op : kOperations) {
    if (name_of(op) == name) return op;
  }
  std::cerr << "no operation: " << name << "\n";
  std::exit(64);
}

int64_t ms_since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count();
}

bool told_to_stop() {
  pollfd entry{STDIN_FILENO, POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

int report(const Error& error, const std::vector<int>& lost, int64_t ms) {
  std::cout << "failed " << name_of(error.code) << ' ' << ms << ' ';
  for (size_t i = 0; i < lost.size(); ++i)
    std::cout << (i > 0 ? "," : "") << lost[i];
  std::cout << ' ' << error.message << std::endl;
  return 3;
}

std::optional<layout::Mesh> mesh_of(const std::string& text) {
  std::istringstream numbers(text);
  layout::Mesh mesh;
  char cross = 0;
  if (!(numbers >> mesh.pp >> cross >> mesh.dp >> cross >> mesh.fsdp)) return std::nullopt;
  return mesh;
}

/// A micro-batch goes forward through the stages and back, as in a step.
Status pass_through(const Groups& groups, std::span<std::byte> data) {
  constexpr std::pair<Channel, Channel> kWays[] = {
      {Channel::kActivationIn, Channel::kActivationOut},
      {Channel::kGradientIn, Channel::kGradientOut}};
  for (const auto& [from, to] : kWays) {
    if (StepCommunicator* const group = groups.channel(from))
      TRAINYARD_TRY(group->receive(data, 1 - group->rank())->wait());
    if (StepCommunicator* const group = groups.channel(to))
      TRAINYARD_TRY(group->send(data, 1 - group->rank())->wait());
  }
  return {};
}

int run(const std::vector<std::string>& arguments) {
  Options options;
  options.rank = std::atoi(arguments[2].c_str());
  const int size = std::atoi(arguments[3].c_str());
  options.deadline = std::chrono::milliseconds(std::atoi(arguments[4].c_str()));
  options.generation = 1;
  options.job_uid = "processes";
  auto listener = Listener::bind("127.0.0.1");
  if (!listener) return report(listener.error(), {}, 0);
  std::cout << listener->address() << std::endl;
  std::string line;
  std::getline(std::cin, line);
  std::istringstream table(line);
  for (int rank = 0; rank < size; ++rank) {
    Endpoint endpoint{rank, "this-host", ""};
    table >> endpoint.address;
    options.endpoints.push_back(endpoint);
  }
  const auto begin = Clock::now();
  auto made = make_communicator(kind_of(arguments[1]), options, *std::move(listener));
  if (!made) return report(made.error(), {}, ms_since(begin));
  Communicator& communicator = **made;
  testing::AnyOperation buffers(communicator, std::atoll(arguments[5].c_str()));
  const std::string what = arguments.size() > 6 ? arguments[6] : "all_reduce";
  const std::optional<layout::Mesh> mesh = mesh_of(what);
  const Operation op = mesh ? Operation::kAllReduce : op_of(what);
  auto groups = Groups::make(communicator, mesh.value_or(layout::Mesh{.fsdp = size}));
  if (!groups) return report(groups.error(), {}, ms_since(begin));
  std::vector<int64_t> summed(static_cast<size_t>(std::atoll(arguments[5].c_str())), 1);
  for (int64_t step = 0;; ++step) {
    // Rank 0 decides when all stop, so that all run the same operations.
    int64_t stop = options.rank == 0 && told_to_stop() ? 1 : 0;
    const auto step_begin = Clock::now();
    Status status =
        communicator
            .all_reduce(std::as_writable_bytes(std::span(&stop, 1)), DType::kInt64, ReduceOp::kMax)
            ->wait();
    if (status && stop != 0) {
      std::cout << "stopped " << step << std::endl;
      return 0;
    }
    if (status && !mesh) status = buffers.start(op)->wait();
    if (status && mesh) status = pass_through(*groups, std::as_writable_bytes(std::span(summed)));
    for (StepCommunicator* group : {groups->shard, groups->copies({})}) {
      if (!status || !mesh) break;
      if (group == nullptr) continue;
      status =
          group
              ->all_reduce(std::as_writable_bytes(std::span(summed)), DType::kInt64, ReduceOp::kMax)
              ->wait();
    }
    if (!status) {
      const std::vector<int> lost = groups->lost_ranks();
      if (mesh) groups->abort(status.error());
      return report(status.error(), lost, ms_since(step_begin));
    }
    if (step == 0) std::cout << "ready" << std::endl;
  }
}

}  // namespace
}  // namespace trainyard::comm

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  if (arguments.size() != 6 && arguments.size() != 7) {
    std::cerr << "usage: comm_rank KIND RANK SIZE DEADLINE_MS ELEMENTS [OPERATION|PPxDPxFSDP]\n";
    return 64;
  }
  return trainyard::comm::run(arguments);
}
