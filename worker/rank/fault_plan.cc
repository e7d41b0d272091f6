#include "worker/rank/fault_plan.h"

#include <charconv>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "common/base/unique_fd.h"

namespace trainyard::engine {
namespace {

using contract::Phase;
using Action = FaultPlan::Action;

constexpr std::pair<std::string_view, Action> kActions[] = {
    {"kill", Action::kKill},
    {"stop", Action::kStop},
    {"term", Action::kTerminate},
    {"spin", Action::kSpin},
    {"agent-kill", Action::kKillAgent},
    {"agent-stop", Action::kStopAgent},
    {"agent-term", Action::kTerminateAgent}};

template <class Value, size_t N>
std::optional<Value> named(const std::pair<std::string_view, Value> (&table)[N],
                           std::string_view name) {
  for (const auto& [key, value] : table) {
    if (key == name) return value;
  }
  return std::nullopt;
}

template <size_t N>
std::string_view name_in(const std::pair<std::string_view, Action> (&table)[N], Action action) {
  for (const auto& [key, value] : table) {
    if (value == action) return key;
  }
  return "?";
}

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// Takes what is before `separator` (all, where there is none) off the front of `text`.
std::string_view take(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view front = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return front;
}

std::optional<FaultPlan::Fault> parse_one(std::string_view text) {
  FaultPlan::Fault fault;
  const auto rank = number(take(text, ':'));
  const auto generation = number(take(text, ':'));
  std::string_view place = take(text, ':');
  const auto action = named(kActions, text);
  if (!rank || !generation || !action) return std::nullopt;
  fault.rank = *rank;
  fault.generation = *generation;
  fault.action = *action;
  fault.phase = contract::phase_named(place);
  if (fault.phase) return fault;
  const auto step = number(take(place, '.'));
  const auto instruction = number(place);
  if (!step || !instruction) return std::nullopt;
  fault.step = *step;
  fault.instruction = *instruction;
  return fault;
}

void spin() {
  const volatile bool forever = true;  // volatile: an endless loop without effects may be removed
  while (forever) {
  }
}

}  // namespace

Result<FaultPlan> FaultPlan::parse(std::string_view text, int64_t rank, int64_t generation) {
  FaultPlan plan;
  while (!text.empty()) {
    const std::string_view item = take(text, ',');
    const std::optional<Fault> fault = parse_one(item);
    if (!fault) {
      return Error{ErrorCode::kInvalidConfig, "environment " + std::string(contract::kEnvFault) +
                                                  ": found \"" + std::string(item) +
                                                  "\", wanted RANK:GENERATION:PLACE:ACTION"};
    }
    if (fault->rank == rank && fault->generation == generation) plan.faults_.push_back(*fault);
  }
  return plan;
}

void FaultPlan::at_phase(contract::Phase phase) {
  for (auto it = faults_.begin(); it != faults_.end(); ++it) {
    if (it->phase != phase) continue;
    const Fault due = *it;
    faults_.erase(it);
    return commit(due);
  }
}

void FaultPlan::at_instruction(int64_t step, int64_t instruction) {
  for (auto it = faults_.begin(); it != faults_.end(); ++it) {
    if (it->phase) continue;
    if (std::pair(step, instruction) < std::pair(it->step, it->instruction)) continue;
    const Fault due = *it;
    faults_.erase(it);
    return commit(due);
  }
}

void FaultPlan::await_request() const {
  using namespace std::chrono_literals;
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (stop_requested_ && !stop_requested_() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(1ms);
}

void FaultPlan::commit(const Fault& fault) const {
  if (!journal_.empty()) {
    const UniqueFd fd(::open(journal_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    const std::string line = std::to_string(fault.rank) + ":" + std::to_string(fault.generation) +
                             ":" + std::string(name_in(kActions, fault.action)) + "\n";
    // One write: ranks share the file. Should it fail, the test that reads it will say so.
    [[maybe_unused]] const ssize_t count = ::write(fd.get(), line.data(), line.size());
  }
  switch (fault.action) {
    case Action::kKill:
      ::raise(SIGKILL);
      return;
    case Action::kStop:
      ::raise(SIGSTOP);
      return;
    case Action::kTerminate:
      ::kill(::getpid(), SIGTERM);
      return await_request();
    case Action::kSpin:
      spin();
      return;
    case Action::kKillAgent:
      ::kill(::getppid(), SIGKILL);
      return;
    case Action::kStopAgent:
      ::kill(::getppid(), SIGSTOP);
      return;
    case Action::kTerminateAgent:
      ::kill(::getppid(), SIGTERM);
      return await_request();
  }
}

}  // namespace trainyard::engine
