#include "control/policies/avoid.h"

#include <algorithm>

#include "common/worker_contract.h"

namespace trainyard::control::policies {
namespace {

bool may_be_the_nodes(const api::OpenWord<api::FailureClass>& failure_class) {
  return failure_class == api::FailureClass::kInfrastructure ||
         failure_class == api::FailureClass::kHang;
}

int64_t failures_on(const std::string& node, const api::TrainingJobStatus& status, Time now) {
  return std::count_if(status.attempts.begin(), status.attempts.end(),
                       [&](const api::Attempt& attempt) {
                         return attempt.node == node && attempt.failure_class &&
                                may_be_the_nodes(*attempt.failure_class) && attempt.end_time &&
                                attempt.exit_code != contract::kExitPeerLost &&
                                now - *attempt.end_time < kNodeMemory;
                       });
}

bool is_at_fault(const Loss& loss, const api::TrainingJobStatus& status, Time now) {
  if (loss.node.empty()) return false;
  if (loss.avoids_node) return true;
  return !loss.follows_peer && may_be_the_nodes(loss.failure_class) &&
         failures_on(loss.node, status, now) >= kFailuresOfOneNode;
}

bool is_avoided(const api::AvoidedNode& node, Time now) { return node.until && *node.until > now; }

void avoid(api::TrainingJobStatus& status, const std::string& name, Time now) {
  auto& nodes = status.avoided_nodes;
  auto found = std::find_if(nodes.begin(), nodes.end(),
                            [&](const api::AvoidedNode& node) { return node.name == name; });
  if (found == nodes.end()) {
    if (nodes.size() >= static_cast<size_t>(api::kMaxAvoidedNodes)) {
      nodes.erase(std::min_element(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) {
        return a.until.value_or(Time::min()) < b.until.value_or(Time::min());
      }));
    }
    found = nodes.insert(nodes.end(), {name, std::nullopt, 0});
  }
  Duration length = kFirstAvoidance;
  for (int64_t i = 0; i < found->times && length < kNodeMemory; ++i)
    length *= 2;
  ++found->times;
  found->until =
      std::chrono::ceil<std::chrono::seconds>(now + std::min<Duration>(length, kNodeMemory));
}

}  // namespace

std::vector<std::string> avoid_nodes(api::TrainingJobStatus& status,
                                     const std::vector<Loss>& losses, Time now) {
  std::erase_if(status.avoided_nodes, [&](const api::AvoidedNode& node) {
    return !node.until || now - *node.until >= kNodeMemory;
  });
  std::vector<std::string> added;
  for (const Loss& loss : losses) {
    if (!is_at_fault(loss, status, now)) continue;
    const bool known = std::any_of(status.avoided_nodes.begin(), status.avoided_nodes.end(),
                                   [&](const api::AvoidedNode& node) {
                                     return node.name == loss.node && is_avoided(node, now);
                                   });
    if (known) continue;
    avoid(status, loss.node, now);
    added.push_back(loss.node);
  }
  return added;
}

std::vector<std::string> avoided_nodes(const api::TrainingJobStatus& status, Time now) {
  std::vector<std::string> names;
  for (const api::AvoidedNode& node : status.avoided_nodes) {
    if (is_avoided(node, now)) names.push_back(node.name);
  }
  return names;
}

}  // namespace trainyard::control::policies
