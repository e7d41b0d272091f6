#pragma once

#include <string>
#include <string_view>

namespace trainyard::kube {

enum class Scope { kNamespaced, kCluster };

/// A kind of object as the server's paths name it.
struct Resource {
  std::string_view group;  ///< empty: core
  std::string_view version;
  std::string_view plural;
  std::string_view kind;
  Scope scope = Scope::kNamespaced;
};

/// "v1" or "group/version", as in an object's apiVersion.
std::string api_version(const Resource& resource);

/// Which object. `ns` is empty for cluster-scoped ones.
struct ObjectName {
  std::string ns;
  std::string name;

  bool operator==(const ObjectName&) const = default;
};

inline constexpr Resource kPods{"", "v1", "pods", "Pod"};
inline constexpr Resource kServices{"", "v1", "services", "Service"};
inline constexpr Resource kConfigMaps{"", "v1", "configmaps", "ConfigMap"};
inline constexpr Resource kNamespaces{"", "v1", "namespaces", "Namespace", Scope::kCluster};
inline constexpr Resource kNodes{"", "v1", "nodes", "Node", Scope::kCluster};
inline constexpr Resource kPersistentVolumeClaims{"", "v1", "persistentvolumeclaims",
                                                  "PersistentVolumeClaim"};
inline constexpr Resource kEvents{"events.k8s.io", "v1", "events", "Event"};
inline constexpr Resource kSecrets{"", "v1", "secrets", "Secret"};
inline constexpr Resource kTokenReviews{"authentication.k8s.io", "v1", "tokenreviews",
                                        "TokenReview", Scope::kCluster};
inline constexpr Resource kLeases{"coordination.k8s.io", "v1", "leases", "Lease"};
inline constexpr Resource kPodDisruptionBudgets{"policy", "v1", "poddisruptionbudgets",
                                                "PodDisruptionBudget"};
inline constexpr Resource kEndpointSlices{"discovery.k8s.io", "v1", "endpointslices",
                                          "EndpointSlice"};
inline constexpr Resource kTrainingJobs{"trainyard.dev", "v1alpha1", "trainingjobs", "TrainingJob"};

/// The path of a collection: of one namespace, or of all where `ns` is empty. Names are
/// percent-encoded.
std::string collection_path(const Resource& resource, std::string_view ns);

/// The path of an object, or of its subresource ("status") where that is not empty.
std::string object_path(const Resource& resource, const ObjectName& name,
                        std::string_view subresource = {});

}  // namespace trainyard::kube
