#include "operator/runtime/connection.h"

#include <utility>

#include "operator/kube/http_transport.h"
#include "operator/kube/tls_setup.h"

namespace trainyard::operator_runtime {

constexpr char kUserAgent[] = "trainyard-operator/" TRAINYARD_VERSION;

Result<Connection> find_server(const std::string& kubeconfig, const std::string& context,
                               const Clock& clock) {
  kube::ConfigSources sources = kube::sources_from_environment();
  sources.kubeconfig = kubeconfig;
  sources.context = context;
  Connection found;
  TRAINYARD_ASSIGN(found.config, kube::find_config(sources));
  if (!found.config.authority.empty()) kube::leave_system_authorities_unread();
  TRAINYARD_ASSIGN(found.transport, kube::make_http_transport(found.config, clock, kUserAgent));
  return found;
}

}  // namespace trainyard::operator_runtime
