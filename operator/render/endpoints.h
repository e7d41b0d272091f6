#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/api/training_job.h"

/// EndpointSlices: what a job's Service resolves the names of its pods to.
namespace trainyard::render {

/// A pod's address under the pod's name.
struct Endpoint {
  int64_t node_index = 0;
  std::string address;
  std::string node;
  std::string pod_name;
  std::string pod_uid;

  auto operator<=>(const Endpoint&) const = default;
};

/// A slice holds those of this many node indexes, the most that the API takes.
inline constexpr int64_t kEndpointsOfSlice = 1000;

/// `<job>-<five letters>`, from the second part on with `-<part>`: the letters are a hash of the
/// job's UID, so that a namesake's slices are others.
std::string endpoint_slice_name(const api::ObjectMeta& job, int64_t part);

/// The part of which that is the name; -1: of none.
int64_t part_of_slice(const api::ObjectMeta& job, const std::string& name);

/// A slice's addressType, which is never changed.
enum class AddressType { kIPv4, kIPv6 };

/// That of the endpoints, which are all of one family; of none what the slice had before.
AddressType address_type_of(std::span<const Endpoint> endpoints, AddressType before);
/// "IPv4", "IPv6".
const char* name_of(AddressType type);

/// The slice of a part. Ready or not: names resolve before pods are.
nlohmann::json render_endpoint_slice(const api::ObjectMeta& job, const api::TrainingJobSpec& spec,
                                     int64_t part, AddressType type,
                                     std::span<const Endpoint> endpoints);

}  // namespace trainyard::render
