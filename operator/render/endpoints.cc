#include "operator/render/endpoints.h"

#include <charconv>
#include <system_error>

#include <nlohmann/json.hpp>

#include "common/hash/hash.h"
#include "operator/render/companions.h"
#include "operator/render/names.h"

namespace trainyard::render {
namespace {

using nlohmann::json;

constexpr size_t kLetters = 5;
/// Far beyond any job, so that a name cannot make anybody take memory without end.
constexpr int64_t kPartsAtMost = 1000;

/// Tells service proxies of all nodes that the slice is none of their business.
constexpr char kLabelHeadless[] = "service.kubernetes.io/headless";
constexpr char kLabelServiceName[] = "kubernetes.io/service-name";
constexpr char kLabelManagedBy[] = "endpointslice.kubernetes.io/managed-by";
constexpr char kManager[] = "trainyard-operator";

json render_endpoint(const api::ObjectMeta& job, const Endpoint& endpoint) {
  json made = {{"addresses", json::array({endpoint.address})},
               {"conditions", {{"ready", true}, {"serving", true}, {"terminating", false}}},
               {"hostname", host_name(job.name, endpoint.node_index)},
               {"targetRef",
                {{"kind", "Pod"},
                 {"namespace", job.namespace_name},
                 {"name", endpoint.pod_name},
                 {"uid", endpoint.pod_uid}}}};
  if (!endpoint.node.empty()) made["nodeName"] = endpoint.node;
  return made;
}

}  // namespace

std::string endpoint_slice_name(const api::ObjectMeta& job, int64_t part) {
  const Hash128 digest = xxh3_128(std::as_bytes(std::span(job.uid)));
  std::string name = job.name + "-";
  for (size_t i = 0; i < kLetters; ++i)
    name += static_cast<char>('a' + digest[i] % 26);
  return part == 0 ? name : name + "-" + std::to_string(part);
}

int64_t part_of_slice(const api::ObjectMeta& job, const std::string& name) {
  const std::string first = endpoint_slice_name(job, 0);
  if (name == first) return 0;
  if (!name.starts_with(first + "-")) return -1;
  int64_t part = -1;
  const char* const end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + first.size() + 1, end, part);
  const bool ours =
      read.ec == std::errc() && part < kPartsAtMost && name == endpoint_slice_name(job, part);
  return ours ? part : -1;
}

AddressType address_type_of(std::span<const Endpoint> endpoints, AddressType before) {
  if (endpoints.empty()) return before;
  const bool six = endpoints.front().address.find(':') != std::string::npos;
  return six ? AddressType::kIPv6 : AddressType::kIPv4;
}

const char* name_of(AddressType type) { return type == AddressType::kIPv6 ? "IPv6" : "IPv4"; }

json render_endpoint_slice(const api::ObjectMeta& job, const api::TrainingJobSpec& spec,
                           int64_t part, AddressType type, std::span<const Endpoint> endpoints) {
  json made = {
      {"apiVersion", "discovery.k8s.io/v1"},
      {"kind", "EndpointSlice"},
      {"metadata", companion_metadata(job, endpoint_slice_name(job, part))},
      {"addressType", name_of(type)},
      {"ports", json::array({{{"name", kRendezvousPort}, {"port", spec.rendezvous.port}}})},
      {"endpoints", json::array()}};
  json& labels = made["metadata"]["labels"];
  labels[kLabelServiceName] = service_name(job);
  labels[kLabelManagedBy] = kManager;
  labels[kLabelHeadless] = "";
  for (const Endpoint& endpoint : endpoints)
    made["endpoints"].push_back(render_endpoint(job, endpoint));
  return made;
}

}  // namespace trainyard::render
