#include "operator/runtime/leader_election.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/wait.h"
#include "common/text/rfc3339.h"

namespace trainyard::operator_runtime {
namespace {

using nlohmann::json;

/// client-go's JitterFactor.
constexpr double kJitter = 1.2;

std::string holder_of(const json& spec) {
  const auto holder = spec.find("holderIdentity");
  return holder != spec.end() && holder->is_string() ? holder->get<std::string>() : std::string();
}

int64_t number_of(const json& spec, const char* key) {
  const auto number = spec.find(key);
  return number != spec.end() && number->is_number_integer() ? number->get<int64_t>() : 0;
}

json spec_of(const json& lease) {
  const auto spec = lease.find("spec");
  return spec != lease.end() && spec->is_object() ? *spec : json::object();
}

}  // namespace

LeaderElection::LeaderElection(Options options) : options_(std::move(options)) {}

LeaderElection::End LeaderElection::run(const std::stop_token& stop,
                                        const std::function<void()>& on_leading) {
  while (!try_acquire_or_renew()) {
    const Duration wait =
        std::chrono::duration_cast<Duration>(options_.retry * (1.0 + kJitter * options_.random()));
    if (wait_for_stop(stop, wait)) return End::kStopped;
  }
  leading_ = true;
  options_.logger->info("became the leader", {{"lease", options_.ns + "/" + options_.name},
                                              {"identity", options_.identity},
                                              {"transitions", transitions_.load()}});
  on_leading();
  if (renew(stop)) return End::kStopped;
  leading_ = false;
  options_.logger->error("the leadership is lost",
                         {{"lease", options_.ns + "/" + options_.name}, {"error", last_error_}});
  return End::kLost;
}

/// True when stopped, false when the lease is lost.
bool LeaderElection::renew(const std::stop_token& stop) {
  while (!wait_for_stop(stop, options_.retry)) {
    if (!try_acquire_or_renew() && !holds()) return false;
  }
  return true;
}

bool LeaderElection::holds() const {
  return leading_ && options_.clock->mono() - renewed_.load() < options_.renew_deadline;
}

json LeaderElection::record(int64_t transitions, const json& before) const {
  const std::string now = text::format_micro_time(options_.clock->now());
  const bool ours = holder_of(before) == options_.identity && before.contains("acquireTime");
  return {{"holderIdentity", options_.identity},
          {"leaseDurationSeconds", options_.lease.count()},
          {"acquireTime", ours ? before["acquireTime"] : json(now)},
          {"renewTime", now},
          {"leaseTransitions", transitions}};
}

bool LeaderElection::note(const kube::ApiResult<json>& reply) {
  if (reply) {
    seen_record_ = spec_of(*reply).dump();
    seen_at_ = options_.clock->mono();
    last_error_.clear();
    return true;
  }
  const std::string error = reply.error().to_error("lease").message;
  // A lost race is no news.
  if (reply.error().reason != kube::Reason::kConflict && error != last_error_) {
    options_.logger->warning("cannot get the lease",
                             {{"lease", options_.ns + "/" + options_.name}, {"error", error}});
  }
  last_error_ = error;
  return false;
}

bool LeaderElection::create(const json& spec) {
  return note(options_.client->create(kube::kLeases, options_.ns,
                                      {{"metadata", {{"name", options_.name}}}, {"spec", spec}}));
}

bool LeaderElection::try_acquire_or_renew() {
  const MonoTime asked = options_.clock->mono();
  const auto found = options_.client->get(kube::kLeases, {options_.ns, options_.name});
  if (!found) {
    if (found.error().reason != kube::Reason::kNotFound) return note(found);
    // Somebody may have deleted it: what ran under it knows a term that is not to come again.
    if (!create(record(highest_seen_ + 1, json::object()))) return false;
    transitions_ = ++highest_seen_;
    renewed_ = asked;
    return true;
  }
  json lease = *found;
  const json spec = spec_of(lease);
  if (spec.dump() != seen_record_) {
    seen_record_ = spec.dump();
    seen_at_ = options_.clock->mono();
  }
  highest_seen_ = std::max(highest_seen_, number_of(spec, "leaseTransitions"));
  const std::string holder = holder_of(spec);
  const bool ours = holder == options_.identity;
  const std::chrono::seconds held(number_of(spec, "leaseDurationSeconds"));
  if (!holder.empty() && !ours && options_.clock->mono() - seen_at_ < held) return false;
  const int64_t transitions = highest_seen_ + (ours ? 0 : 1);
  lease["spec"] = record(transitions, spec);
  if (!note(options_.client->update(kube::kLeases, lease))) return false;
  transitions_ = highest_seen_ = transitions;
  renewed_ = asked;
  return true;
}

void LeaderElection::release() {
  if (!leading_.exchange(false)) return;
  const auto found = options_.client->get(kube::kLeases, {options_.ns, options_.name});
  if (!found || holder_of(spec_of(*found)) != options_.identity) return;
  json lease = *found;
  lease["spec"]["holderIdentity"] = "";
  lease["spec"]["leaseDurationSeconds"] = 1;
  lease["spec"]["renewTime"] = text::format_micro_time(options_.clock->now());
  if (note(options_.client->update(kube::kLeases, lease))) {
    options_.logger->info("released the lease", {{"lease", options_.ns + "/" + options_.name}});
  }
}

}  // namespace trainyard::operator_runtime
