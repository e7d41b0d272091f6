#pragma once

#include <functional>

#include "control/cluster.h"

namespace trainyard::cli {

/// A cluster that also shows each event to a listener, which is called after the cluster took it,
/// on the emitting thread. Everything else is the other cluster's. Thread-safe as that is.
class EventTap final : public control::Cluster {
 public:
  using EventListener = std::function<void(const control::Event&)>;

  /// `cluster` outlives this.
  EventTap(control::Cluster& cluster, EventListener listener)
      : cluster_(cluster), listener_(std::move(listener)) {}

  Result<control::Observed> observe(const control::JobKey& key) override {
    return cluster_.observe(key);
  }
  Result<std::string> put_status(const control::JobKey& key, const std::string& uid,
                                 const api::TrainingJobStatus& status,
                                 const std::string& resource_version) override {
    return cluster_.put_status(key, uid, status, resource_version);
  }
  Result<control::CreateReply> create_pod(const control::PodSpec& spec) override {
    return cluster_.create_pod(spec);
  }
  Status delete_pod(const control::PodRef& pod, Duration grace) override {
    return cluster_.delete_pod(pod, grace);
  }
  Status remove_member_label(const control::PodRef& pod) override {
    return cluster_.remove_member_label(pod);
  }
  Status promote_pod(const control::PodRef& pod, int node_index) override {
    return cluster_.promote_pod(pod, node_index);
  }
  Status delete_job(const control::JobKey& key, const std::string& uid) override {
    return cluster_.delete_job(key, uid);
  }
  Status emit_event(const control::JobKey& key, const control::Event& event) override {
    Status emitted = cluster_.emit_event(key, event);
    if (emitted) listener_(event);
    return emitted;
  }
  void set_listener(Listener listener) override { cluster_.set_listener(std::move(listener)); }

 private:
  control::Cluster& cluster_;
  const EventListener listener_;
};

}  // namespace trainyard::cli
