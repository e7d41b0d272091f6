#include "operator/cluster/endpoints.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include <nlohmann/json.hpp>

#include "operator/cache/meta.h"
#include "operator/cluster/members.h"
#include "operator/cluster/refusals.h"
#include "operator/cluster/standing.h"
#include "operator/cluster/views.h"
#include "operator/render/companions.h"
#include "operator/render/names.h"

namespace trainyard::cluster {
namespace {

using nlohmann::json;
using render::Endpoint;

/// Between two writes while a gang gathers.
constexpr std::chrono::seconds kPause{3};

/// Of the pods that count and have not ended, by node index. An index is a pod's label, which
/// whoever may write pods can set to anything: one that a gang of `nodes` does not have counts for
/// nothing.
std::vector<Endpoint> wanted_of(const std::vector<control::ObservedPod>& pods, int64_t nodes) {
  using control::PodPhase;
  std::vector<Endpoint> wanted;
  for (const control::ObservedPod& pod : pods) {
    const bool lives = pod.phase == PodPhase::kPending || pod.phase == PodPhase::kRunning;
    if (!pod.member || pod.terminating || !lives || pod.address.empty()) continue;
    if (pod.node_index < 0 || pod.node_index >= nodes) continue;
    wanted.push_back({pod.node_index, pod.address, pod.node, pod.name, pod.uid});
  }
  std::sort(wanted.begin(), wanted.end());
  return wanted;
}

/// Those whose index falls into the part.
std::span<const Endpoint> part_of(const std::vector<Endpoint>& all, int64_t part) {
  const auto from = [&](int64_t index) {
    return std::lower_bound(all.begin(), all.end(), index, [](const Endpoint& one, int64_t value) {
      return one.node_index < value;
    });
  };
  return {from(part * render::kEndpointsOfSlice), from((part + 1) * render::kEndpointsOfSlice)};
}

int64_t parts_of(const std::vector<Endpoint>& all) {
  return all.empty() ? 0 : all.back().node_index / render::kEndpointsOfSlice + 1;
}

const Endpoint* first_of(const std::vector<Endpoint>& all) {
  return all.empty() || all.front().node_index != 0 ? nullptr : &all.front();
}

bool same_first(const std::vector<Endpoint>& a, const std::vector<Endpoint>& b) {
  const Endpoint* const x = first_of(a);
  const Endpoint* const y = first_of(b);
  return (x == nullptr) == (y == nullptr) && (x == nullptr || *x == *y);
}

/// Refused for what it is, by admission; not for want of a right, which may come.
bool is_kept_from_us(const kube::ApiError& error) {
  return refusal_of(error) && error.message.find("cannot create resource") == std::string::npos;
}

/// What follows the last dash of a host name; -1 where that is no number.
int64_t index_of(const std::string& host) {
  int64_t index = -1;
  const char* const end = host.data() + host.size();
  const size_t from = host.rfind('-') + 1;  // 0 where there is no dash
  const auto read = std::from_chars(host.data() + from, end, index);
  return read.ec == std::errc() && read.ptr == end ? index : -1;
}

render::AddressType type_of(const json& slice) {
  using render::AddressType;
  const bool six = text_at(slice, "addressType") == render::name_of(AddressType::kIPv6);
  return six ? AddressType::kIPv6 : AddressType::kIPv4;
}

/// What a slice holds. What somebody else has made of one differs from all that is wanted.
void read_slice(const json& slice, std::vector<Endpoint>& found) {
  for (const json& one : at(slice, "endpoints")) {
    const json& addresses = at(one, "addresses");
    const json& target = at(one, "targetRef");
    const bool ours = addresses.is_array() && addresses.size() == 1 && addresses[0].is_string();
    found.push_back({index_of(text_at(one, "hostname")),
                     ours ? addresses[0].get<std::string>() : std::string(),
                     text_at(one, "nodeName"), text_at(target, "name"), text_at(target, "uid")});
  }
}

}  // namespace

Endpoints::Endpoints(const kube::Client& client, const Clock& clock, Logger& logger,
                     ListPods list_pods)
    : client_(client), clock_(clock), logger_(logger), list_pods_(std::move(list_pods)) {}

std::shared_ptr<Endpoints::Kept> Endpoints::kept_of(const std::string& job_uid) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Kept>& kept = kept_[job_uid];
  if (!kept) kept = std::make_shared<Kept>();
  return kept;
}

std::optional<Duration> Endpoints::due_in(const std::string& job_uid) {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(job_uid);
  if (found == kept_.end() || !found->second->due) return std::nullopt;
  const Duration left = *found->second->due - clock_.mono();
  return left > Duration::zero() ? left : kPause;
}

bool Endpoints::lost(const std::string& job_uid) {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(job_uid);
  if (found == kept_.end()) return false;  // whoever looks first finds out
  found->second->lost = true;
  return true;
}

void Endpoints::lost_service(const std::string& job_uid) {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(job_uid);
  if (found != kept_.end()) found->second->lost_service = true;
}

/// What is gone is to be found out anew.
void Endpoints::take_losses(Kept& kept) {
  const std::lock_guard lock(mutex_);
  const bool lost_selector = std::exchange(kept.lost_service, false) && kept.selected;
  if (lost_selector) kept.selected = false;
  if (std::exchange(kept.lost, false) || lost_selector) kept.sight = Sight::kDoubtful;
}

void Endpoints::forget(const std::string& job_uid) {
  const std::lock_guard lock(mutex_);
  kept_.erase(job_uid);
}

void Endpoints::put_off(Kept& kept, std::optional<MonoTime> until) {
  const std::lock_guard lock(mutex_);
  kept.due = until;
}

void Endpoints::keep(const control::Observed& observed, const api::TrainingJobStatus& status) {
  if (status.membership.generation == 0 || observed.metadata.deletion_timestamp) return;
  const std::shared_ptr<Kept> kept = kept_of(observed.metadata.uid);
  const MonoTime now = clock_.mono();
  if (kept->not_before && now < *kept->not_before) return;
  kept->not_before.reset();
  put_off(*kept, std::nullopt);
  take_losses(*kept);
  const Status done = keep(observed, status, *kept);
  if (done) return;
  kept->sight = Sight::kDoubtful;
  kept->not_before = now + kPause;
  put_off(*kept, kept->not_before);
  logger_.warning("addresses of the pods not written yet",
                  {{"namespace", observed.metadata.namespace_name},
                   {"job", observed.metadata.name},
                   {"error", done.error().message}});
}

Status Endpoints::keep(const control::Observed& observed, const api::TrainingJobStatus& status,
                       Kept& kept) {
  if (kept.selected) return {};
  std::vector<Endpoint> wanted = wanted_of(observed.pods, status.nodes.target);
  // Of a gang that gathers for the first time there is hardly anything yet: a creation finds out.
  const bool gathers = !stand_already(status) && !is_over(status);
  if (kept.sight == Sight::kDoubtful || (kept.sight == Sight::kNone && !gathers)) {
    TRAINYARD_TRY(learn(observed.metadata, kept));
    // What is seen of the pods may be older than what was read just now: a leader of yesterday that
    // stood still would put back the pods of yesterday, with the version of today.
    if (wanted != kept.written) {
      TRAINYARD_ASSIGN(const std::vector<control::ObservedPod> pods, list_pods_(observed));
      const std::vector<Endpoint> seen =
          std::exchange(wanted, wanted_of(pods, status.nodes.target));
      if (seen != wanted) kept.outdated_look = observed.look;
    }
  } else if (observed.look == kept.outdated_look) {
    return {};  // the second time that the same look comes here
  }
  kept.sight = Sight::kClear;
  if (wanted == kept.written) return {};
  const bool whole = static_cast<int64_t>(wanted.size()) == status.nodes.target;
  const bool lost = !kept.written.empty() && status.membership.generation != kept.generation;
  const bool last = wanted.empty() && is_over(status);
  const MonoTime now = clock_.mono();
  const bool at_once = whole || lost || last || !same_first(wanted, kept.written);
  if (!at_once && kept.written_at && now < *kept.written_at + kPause) {
    put_off(kept, *kept.written_at + kPause);
    return {};
  }
  // Not read and written again at once where another has written meanwhile: this may be the leader
  // of yesterday, with the pods of yesterday.
  TRAINYARD_TRY(write(observed, wanted, kept));
  kept.generation = status.membership.generation;
  kept.written_at = now;
  return {};
}

/// What a process before this one has written.
Status Endpoints::learn(const api::ObjectMeta& job, Kept& kept) const {
  const auto page = client_.list(
      kube::kEndpointSlices, job.namespace_name,
      {.label_selector = std::string(render::kLabelJobUid) + "=" + job.uid, .limit = 0});
  if (!page) return page.error().to_error("list EndpointSlices of " + job.name);
  kept.written.clear();
  kept.slices.clear();
  for (const json& slice : page->items) {
    if (controlling_job(slice) != job.uid) continue;
    TRAINYARD_ASSIGN(const cache::Meta meta, cache::read_meta(slice));
    const int64_t part = render::part_of_slice(job, meta.name);
    if (part < 0) continue;
    if (static_cast<size_t>(part) >= kept.slices.size()) {
      kept.slices.resize(static_cast<size_t>(part) + 1);
    }
    kept.slices[static_cast<size_t>(part)] = {meta.uid, meta.resource_version, type_of(slice)};
    read_slice(slice, kept.written);
  }
  std::sort(kept.written.begin(), kept.written.end());
  return {};
}

Status Endpoints::write(const control::Observed& observed, const Listed& wanted, Kept& kept) {
  const int64_t parts = std::max(parts_of(wanted), static_cast<int64_t>(kept.slices.size()));
  kept.slices.resize(static_cast<size_t>(parts));
  for (int64_t part = 0; part < parts && !kept.selected; ++part) {
    const auto is = part_of(wanted, part);
    const auto was = part_of(kept.written, part);
    const bool strays = part == 0 && !kept.written.empty() && kept.written.front().node_index < 0;
    if (!strays && std::equal(is.begin(), is.end(), was.begin(), was.end())) continue;
    TRAINYARD_TRY(put(observed, part, is, kept));
  }
  kept.written = wanted;
  return {};
}

Status Endpoints::put(const control::Observed& observed, int64_t part,
                      std::span<const Endpoint> endpoints, Kept& kept) {
  const api::ObjectMeta& job = observed.metadata;
  Slice& slice = kept.slices[static_cast<size_t>(part)];
  const render::AddressType type = render::address_type_of(endpoints, slice.type);
  json object = render::render_endpoint_slice(job, observed.spec, part, type, endpoints);
  const std::string what = "EndpointSlice " + object["metadata"]["name"].get<std::string>();
  const bool there = !slice.uid.empty();
  if (there) {
    // A leader of yesterday that is late does not undo what the leader of today has written.
    object["metadata"]["uid"] = slice.uid;
    object["metadata"]["resourceVersion"] = slice.resource_version;
  }
  const auto reply = there ? client_.update(kube::kEndpointSlices, object)
                           : client_.create(kube::kEndpointSlices, job.namespace_name, object);
  if (!reply && !there && is_kept_from_us(reply.error())) {
    TRAINYARD_TRY(leave_to_kubernetes(observed, reply.error().message));
    kept.selected = true;
    return {};
  }
  if (!reply) return reply.error().to_error(std::string(there ? "update " : "create ") + what);
  TRAINYARD_ASSIGN(const cache::Meta meta, cache::read_meta(*reply));
  slice = {meta.uid, meta.resource_version, type};
  return {};
}

/// Some clusters let nobody else say where pods are (OpenShift, without the right to
/// endpointslices/restricted). There the Service is made anew, with a selector.
Status Endpoints::leave_to_kubernetes(const control::Observed& observed,
                                      const std::string& why) const {
  const api::ObjectMeta& job = observed.metadata;
  const kube::ObjectName name{job.namespace_name, render::service_name(job)};
  const auto found = client_.get(kube::kServices, name);
  if (!found && found.error().reason != kube::Reason::kNotFound) {
    return found.error().to_error("get Service " + name.name);
  }
  if (found) {
    if (controlling_job(*found) != job.uid) {
      return Error{ErrorCode::kUnavailable,
                   "Service " + name.name + " still belongs to another job"};
    }
    if (at(at(*found, "spec"), "selector").is_object()) return {};
    TRAINYARD_ASSIGN(const cache::Meta meta, cache::read_meta(*found));
    const auto removed =
        client_.remove(kube::kServices, name, {.preconditions = {meta.uid, meta.resource_version}});
    if (!removed && removed.error().reason != kube::Reason::kNotFound) {
      return removed.error().to_error("delete Service " + name.name);
    }
  }
  const auto made =
      client_.create(kube::kServices, name.ns,
                     render::render_service(job, observed.spec, render::Addresses::kSelected));
  if (!made) return made.error().to_error("create Service " + name.name);
  logger_.warning("addresses of the pods are left to Kubernetes, which does more work for them",
                  {{"namespace", name.ns}, {"job", job.name}, {"reason", why}});
  return {};
}

}  // namespace trainyard::cluster
