#include "tests/support/operator_pair.h"

#include <algorithm>
#include <csignal>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/support/api_objects.h"

namespace trainyard::testing_support {
namespace {

using nlohmann::json;

constexpr kube::Resource kRoles{"rbac.authorization.k8s.io", "v1", "roles", "Role"};
constexpr kube::Resource kRoleBindings{"rbac.authorization.k8s.io", "v1", "rolebindings",
                                       "RoleBinding"};
constexpr char kName[] = "trainyard-operator";
constexpr char kHome[] = "trainyard-system";

/// A lease runs out, and a busy machine fills caches: both in far less.
constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::milliseconds kLook{50};

Status await(const std::function<bool()>& holds, const std::function<std::string()>& what) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= end)
      return Error{ErrorCode::kDeadline, fmt::format("{} s long: {}", kPatience.count(), what())};
    std::this_thread::sleep_for(kLook);
  }
  return {};
}

/// EX_TEMPFAIL (docs/reference/operator.md).
constexpr int kLeadershipLost = 75;

/// How often it has been told what the Lease is.
int64_t looks_at_lease(ProxiedOperator& member) {
  const std::vector<ProxiedRequest> requests = member.proxy().requests();
  return std::count_if(requests.begin(), requests.end(), [](const ProxiedRequest& request) {
    return request.resource == "leases" && request.method == "GET";
  });
}

}  // namespace

Status OperatorPair::grant_lease(const kube::Client& admin, const std::string& name_space) {
  const auto role = admin.get(kRoles, {kHome, kName});
  if (!role) return role.error().to_error("the operator's Role");
  const auto made = admin.create(kRoles, name_space,
                                 {{"metadata", {{"name", kName}}}, {"rules", (*role)["rules"]}});
  if (!made) return made.error().to_error("make a Role in " + name_space);
  const json account = {{"kind", "ServiceAccount"}, {"name", kName}, {"namespace", kHome}};
  const auto bound = admin.create(
      kRoleBindings, name_space,
      {{"metadata", {{"name", kName}}},
       {"roleRef", {{"apiGroup", kRoles.group}, {"kind", kRoles.kind}, {"name", kName}}},
       {"subjects", json::array({account})}});
  if (!bound) return bound.error().to_error("bind a Role in " + name_space);
  return {};
}

OperatorPair::OperatorPair(const ControlPlane& plane, const kube::Client& admin,
                           const json& kubeconfig, const std::filesystem::path& folder,
                           std::string name_space)
    : admin_(admin), namespace_(std::move(name_space)) {
  const ProxiedOperator::Options options{
      .flags = {"--leader-elect", "--leader-elect-namespace", namespace_},
      .revival = ProxiedOperator::Revival::kNone};
  for (size_t i = 0; i < members_.size(); ++i)
    members_[i] = std::make_unique<ProxiedOperator>(
        plane, kubeconfig, folder / fmt::format("member-{}", i + 1), namespace_, options);
}

OperatorPair::Lease OperatorPair::lease() const {
  const auto found = admin_.get(kube::kLeases, {namespace_, kName});
  if (!found) return {};
  const json& spec = at(*found, "spec");
  return {text(spec, "holderIdentity"), number(spec, "leaseTransitions")};
}

Status OperatorPair::start(ProxiedOperator& member, FaultScript script) {
  const size_t index = &member == members_[0].get() ? 0 : 1;
  started_.at(index) = true;
  member.proxy().script(std::move(script));
  member.start();
  return await([&] { return member.end() || (member.is_ready() && looks_at_lease(member) > 0); },
               [&] { return "an operator does not come up:\n" + member.log(); });
}

Status OperatorPair::stand() {
  for (size_t i = 0; i < members_.size(); ++i) {
    ProxiedOperator& member = *members_[i];
    const std::optional<ChildEnd> end = started_[i] ? member.end() : std::nullopt;
    if (started_[i] && !end) continue;
    if (end && end->signal != SIGKILL && end->exit_code != kLeadershipLost) {
      return Error{ErrorCode::kInternal, fmt::format("an operator has ended with code {}:\n{}",
                                                     end->exit_code, member.log())};
    }
    const bool fresh = lease().transitions < 0;
    TRAINYARD_TRY(start(member));
    if (fresh) TRAINYARD_TRY(await_leader(member));
  }
  const auto leads = [&](size_t i) { return lease().holder == members_[i]->identity(); };
  return await(
      [&] {
        leader_ = leads(1) ? 1 : 0;
        return leads(leader_);
      },
      [&] { return "the Lease is held by '" + lease().holder + "':\n" + log(); });
}

Status OperatorPair::await_leader(ProxiedOperator& member) const {
  return await([&] { return lease().holder == member.identity(); },
               [&] {
                 return fmt::format("wanted {} to hold the Lease, it is held by '{}':\n{}",
                                    member.identity(), lease().holder, log());
               });
}

std::string OperatorPair::stop() {
  std::string complaints;
  for (size_t i = 0; i < members_.size(); ++i)
    if (started_[i]) complaints += members_[i]->stop();
  return complaints;
}

std::string OperatorPair::log() const {
  std::string all;
  for (const auto& member : members_)
    all += member->log();
  return all;
}

}  // namespace trainyard::testing_support
