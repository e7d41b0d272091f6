#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/error.h"
#include "common/base/time.h"
#include "operator/kube/transport.h"

namespace trainyard::bench {

/// Everything that is sent for one new job, made beforehand, so that a loop that sends it pays for
/// the requests alone.
struct JobRequests {
  std::string name;
  /// What writes the status: status_request() puts it together.
  std::string path;
  std::string metadata_head;          ///< of the object, up to the resource version's value
  std::string status_tail;            ///< of the object, after it
  std::string resource_version;       ///< the newest known
  std::vector<kube::Request> before;  ///< Service, event
  std::vector<kube::Request> pods;
  std::vector<kube::Request> after;  ///< disruption budget, event
};

/// The requests that the operator's brain (control::plan) and its renderers make of a TrainingJob
/// that nobody has begun; its managedBy is passed over. Errors: kInvalidData for any other object.
Result<JobRequests> requests_of(const nlohmann::json& job, Time now);

/// The PUT of the job's status as it is written before the pods are made.
kube::Request status_request(const JobRequests& job);

}  // namespace trainyard::bench
