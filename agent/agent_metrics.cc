#include "agent/agent_metrics.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "control/telemetry/rank_metrics.h"
#include "control/telemetry/server_metrics.h"

namespace trainyard::agent {
namespace {

using metrics::Family;
using metrics::Kind;

constexpr Family kInfo{
    "trainyard_agent_info", Kind::kGauge, "Always 1; tells the agent's version.", {"version"}};
constexpr Family kStream{"trainyard_agent_stream_connected", Kind::kGauge,
                         "1 while the control stream to the coordinator is open."};
constexpr Family kStreams{"trainyard_agent_streams_opened_total", Kind::kCounter,
                          "Control streams opened; more than one means reconnects."};
constexpr Family kRunning{"trainyard_agent_running_ranks", Kind::kGauge,
                          "Rank processes of this agent that have not ended."};
constexpr Family kStarts{"trainyard_rank_starts_total", Kind::kCounter,
                         "Rank processes started, in all generations of the pod."};
constexpr Family kLongestTurn{
    "trainyard_agent_longest_turn_seconds", Kind::kGauge,
    "Longest turn of the agent's event loop since the agent began, without its wait for events."};
constexpr std::array kFamilies = {kInfo, kStream, kStreams, kRunning, kStarts, kLongestTurn};

}  // namespace

std::span<const Family> agent_families() { return kFamilies; }

void AgentMetrics::update(AgentSnapshot snapshot) {
  const std::lock_guard lock(mutex_);
  snapshot_ = std::move(snapshot);
}

void AgentMetrics::note_turn(Duration length) {
  const std::lock_guard lock(mutex_);
  longest_turn_ = std::max(longest_turn_, length);
}

std::string AgentMetrics::text(const http::ServerCounters& server) const {
  AgentSnapshot snapshot;
  std::chrono::duration<double> longest_turn{};
  {
    const std::lock_guard lock(mutex_);
    snapshot = snapshot_;
    longest_turn = longest_turn_;
  }
  metrics::Exposition out(trainer_job_, trainer_namespace_);
  out.add(kInfo, {TRAINYARD_VERSION}, 1);
  out.add(kStream, {}, snapshot.stream_open ? 1 : 0);
  out.add(kStreams, {}, static_cast<double>(snapshot.streams_opened));
  out.add(kRunning, {}, static_cast<double>(snapshot.ranks_running));
  out.add(kStarts, {}, static_cast<double>(snapshot.rank_starts));
  out.add(kLongestTurn, {}, longest_turn.count());
  control::add_rank_metrics(out, snapshot.ranks, {}, clock_.now());
  if (gpus_ != nullptr) gpus_->add_metrics(out);
  control::add_server_metrics(out, server);
  return out.text();
}

http::Health AgentMetrics::ready() const {
  const std::lock_guard lock(mutex_);
  if (!snapshot_.stream_open) return {false, "no control stream"};
  if (!snapshot_.ranks_started) return {false, "no ranks started yet"};
  if (snapshot_.waits_for_order) return {false, "ranks have failed; waiting for an order"};
  if (snapshot_.joins) return {false, "joining a newer generation"};
  if (snapshot_.ending) return {false, "ending"};
  return {true, "ok"};
}

}  // namespace trainyard::agent
