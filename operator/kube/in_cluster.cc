#include <cstdlib>
#include <utility>

#include "common/io/file.h"
#include "operator/kube/config.h"
#include "operator/kube/server_url.h"

namespace trainyard::kube {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kAuthorityBytesMax = 1 << 20;
constexpr int64_t kNamespaceBytesMax = 256;
constexpr char kHost[] = "KUBERNETES_SERVICE_HOST";
constexpr char kPort[] = "KUBERNETES_SERVICE_PORT";

std::string variable(const char* name) {
  // Read in main before any thread is there; nobody of ours changes the environment.
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

std::string without_space(std::string text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  text.resize(end == std::string::npos ? 0 : end + 1);
  return text;
}

}  // namespace

Result<ServerConfig> in_cluster_config(const PodEnvironment& environment) {
  if (environment.service_host.empty() || environment.service_port.empty()) {
    return Error{ErrorCode::kNotFound,
                 std::string("not in a pod: ") + kHost + " and " + kPort + " are not both set"};
  }
  const bool v6 = environment.service_host.find(':') != std::string::npos;
  ServerConfig config;
  config.server = "https://" +
                  (v6 ? "[" + environment.service_host + "]" : environment.service_host) + ":" +
                  environment.service_port;
  const Result<ServerUrl> url = parse_server_url(config.server);
  if (!url) return url.error().with_context(std::string(kHost) + ", " + kPort);
  const fs::path authority = environment.directory / "ca.crt";
  TRAINYARD_ASSIGN(config.authority.text, read_file(authority, kAuthorityBytesMax));
  config.authority.origin = authority.string();
  config.authority.file = authority;
  config.token_file = environment.directory / "token";
  const Result<std::string> ns = read_file(environment.directory / "namespace", kNamespaceBytesMax);
  if (ns) config.ns = without_space(*ns);
  if (config.ns.empty()) config.ns = "default";
  return config;
}

Result<ServerConfig> find_config(const ConfigSources& sources) {
  if (!sources.kubeconfig.empty()) return load_kubeconfig(sources.kubeconfig, sources.context);
  if (!sources.kubeconfig_env.empty()) {
    if (sources.kubeconfig_env.find(':') != std::string::npos) {
      return Error{ErrorCode::kInvalidConfig,
                   "KUBECONFIG: found a list of files, wanted one (lists are not merged here); or "
                   "name one with --kubeconfig"};
    }
    return load_kubeconfig(sources.kubeconfig_env, sources.context);
  }
  if (!sources.pod.service_host.empty()) return in_cluster_config(sources.pod);
  std::error_code ignored;
  const fs::path at_home = fs::path(sources.home) / ".kube" / "config";
  if (!sources.home.empty() && fs::exists(at_home, ignored)) {
    return load_kubeconfig(at_home, sources.context);
  }
  return Error{ErrorCode::kNotFound,
               "no API server is known: no --kubeconfig, no KUBECONFIG, not in a pod (" +
                   std::string(kHost) + " is not set)" +
                   (sources.home.empty() ? "" : ", no " + at_home.string())};
}

ConfigSources sources_from_environment() {
  ConfigSources sources;
  sources.kubeconfig_env = variable("KUBECONFIG");
  sources.pod.service_host = variable(kHost);
  sources.pod.service_port = variable(kPort);
  sources.home = variable("HOME");
  return sources;
}

}  // namespace trainyard::kube
