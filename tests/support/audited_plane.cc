#include "tests/support/audited_plane.h"

#include <filesystem>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "tests/support/api_objects.h"
#include "tests/support/invariants.h"
#include "tests/support/operator_process.h"

namespace trainyard::testing_support {
namespace {

using nlohmann::json;

std::filesystem::path late_folder(const ControlPlane& plane) {
  return plane.folder() / "late-writers";
}

json of_namespace(const json& list, const std::string& name_space) {
  json items = json::array();
  for (const json& item : at(list, "items")) {
    if (text(at(item, "metadata"), "namespace") == name_space) items.push_back(item);
  }
  return {{"items", std::move(items)}};
}

}  // namespace

void expect_late_writers(const ControlPlane& plane, const std::string& name_space) {
  std::filesystem::create_directories(late_folder(plane));
  std::ofstream(late_folder(plane) / name_space);
}

std::vector<std::string> violations_on(const ControlPlane& plane,
                                       const std::vector<AuditEvent>& events, const json& pods,
                                       const json& jobs) {
  std::map<std::string, std::vector<AuditEvent>> by_namespace;
  for (const AuditEvent& event : events)
    by_namespace[event.name_space].push_back(event);
  std::vector<std::string> found;
  for (const auto& [name, own] : by_namespace) {
    const Case judged{.events = &own,
                      .operator_user = kOperatorUser,
                      .late_writers = std::filesystem::exists(late_folder(plane) / name),
                      .remaining = of_namespace(pods, name),
                      .jobs = of_namespace(jobs, name)};
    for (const std::string& violation : invariant_violations(judged))
      found.push_back((name.empty() ? "" : name + ": ") + violation);
  }
  return found;
}

}  // namespace trainyard::testing_support
