#include "operator/kube/resource.h"

#include "operator/kube/uri.h"

namespace trainyard::kube {

std::string api_version(const Resource& resource) {
  if (resource.group.empty()) return std::string(resource.version);
  return std::string(resource.group) + "/" + std::string(resource.version);
}

std::string collection_path(const Resource& resource, std::string_view ns) {
  std::string path = resource.group.empty() ? "/api/" : "/apis/";
  path += api_version(resource);
  if (resource.scope == Scope::kNamespaced && !ns.empty()) {
    path += "/namespaces/" + percent_encode(ns);
  }
  return path + "/" + std::string(resource.plural);
}

std::string object_path(const Resource& resource, const ObjectName& name,
                        std::string_view subresource) {
  std::string path = collection_path(resource, name.ns) + "/" + percent_encode(name.name);
  if (!subresource.empty()) path += "/" + std::string(subresource);
  return path;
}

}  // namespace trainyard::kube
