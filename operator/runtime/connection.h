#pragma once

#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "operator/kube/config.h"
#include "operator/kube/transport.h"

namespace trainyard::operator_runtime {

/// The way to an API server.
struct Connection {
  kube::ServerConfig config;
  std::unique_ptr<kube::Transport> transport;
};

/// Finds the API server as the flags --kubeconfig and --context and the environment say; connects
/// nothing yet. `clock` outlives the result. Errors: kInvalidConfig, kNotFound for what names no
/// server.
Result<Connection> find_server(const std::string& kubeconfig, const std::string& context,
                               const Clock& clock);

}  // namespace trainyard::operator_runtime
