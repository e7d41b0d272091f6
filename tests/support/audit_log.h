#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/shared_json.h"

namespace trainyard::testing_support {

/// One request as the API server's audit log has it (audit.k8s.io/v1).
struct AuditEvent {
  std::string time;  ///< when the answer was given, an eviction asked for; comparable as text
  std::string user;
  std::string verb;
  std::string group;     ///< API group; empty: core
  std::string resource;  ///< with its subresource: "trainingjobs/status"
  std::string name_space;
  std::string name;
  int code = 0;          ///< of the HTTP answer
  bool allowed = false;  ///< by RBAC
  bool dry_run = false;
  SharedJson request;  ///< its body, where the policy keeps it; else null
  SharedJson answer;   ///< the object, where the policy keeps it; else null
};

/// Every request about a resource that has been answered, watches from their first byte on, in the
/// order in which the server stored what they changed; what changed nothing stands where it was
/// answered. A line that is being written is left out.
std::vector<AuditEvent> read_audit_log(const std::filesystem::path& path);

/// The rights ("pods create", "trainyard.dev/trainingjobs/status update") that a user needed,
/// whether it had them or not.
std::set<std::string> rights_used(const std::vector<AuditEvent>& events, std::string_view user);

/// The rights that the rules of a Role or ClusterRole object grant.
std::set<std::string> rights_granted(const nlohmann::json& role);

/// Writes of a user that could meet another object or another version than the one it has seen: a
/// DELETE or PATCH without a UID, a PUT without a resource version. Events and leases of its own
/// aside, and requests that were refused because their body never came.
std::vector<std::string> unguarded_writes(const std::vector<AuditEvent>& events,
                                          std::string_view user);

}  // namespace trainyard::testing_support
