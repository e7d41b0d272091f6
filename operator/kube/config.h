#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/error.h"

namespace trainyard::kube {

/// Certificates or a key, with where they came from for messages. Keys are never logged.
struct Pem {
  std::string text;
  std::string origin;  ///< a path, or `certificate-authority-data of cluster "kind"`
  std::filesystem::path
      file;  ///< read again for each new connection, as files are rotated; or empty

  bool empty() const { return text.empty(); }
};

/// Which server, whom to trust, who we are.
struct ServerConfig {
  std::string server;  ///< https://host:port, perhaps with a path; http:// without identity
  std::string tls_server_name;  ///< what the server's certificate must say; empty: the host
  std::string ns;               ///< the context's or the pod's namespace; "default" if none is said
  Pem authority;                ///< CA certificates, the only ones trusted; empty: the system's
  Pem client_certificate;       ///< empty: none; then the key is empty, too
  Pem client_key;
  std::string token;                 ///< a bearer token that does not change; empty: none
  std::filesystem::path token_file;  ///< a bearer token that is rotated; empty: none
};

/// Reads a kubeconfig's text: one context (`context` empty: current-context). Relative paths in it
/// are against `directory`; files that it names are read now, except tokenFile. Errors:
/// kInvalidConfig names the field, what it holds and what to do; refused are exec and auth-provider
/// plugins, user names and passwords, impersonation, proxies and insecure-skip-tls-verify.
/// Source: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
Result<ServerConfig> parse_kubeconfig(std::string_view text, const std::filesystem::path& directory,
                                      std::string_view context);

/// parse_kubeconfig of a file. Errors also: kNotFound, kIo.
Result<ServerConfig> load_kubeconfig(const std::filesystem::path& path, std::string_view context);

/// What a pod is given: KUBERNETES_SERVICE_HOST and _PORT, and the files `token`, `ca.crt` and
/// `namespace` in a directory.
struct PodEnvironment {
  std::string service_host;
  std::string service_port;
  std::filesystem::path directory = "/var/run/secrets/kubernetes.io/serviceaccount";
};

/// The pod's own identity. Errors: kNotFound (not in a pod: no such environment), kInvalidConfig,
/// kIo.
Result<ServerConfig> in_cluster_config(const PodEnvironment& environment);

/// Where a program may find its server, in the order in which they count.
struct ConfigSources {
  std::string kubeconfig;      ///< of --kubeconfig
  std::string context;         ///< of --context
  std::string kubeconfig_env;  ///< of KUBECONFIG; one file
  PodEnvironment pod;
  std::string home;  ///< of HOME: .kube/config in it
};

/// The first that is there. Errors: those of the one that is there; kNotFound says where was
/// looked.
Result<ServerConfig> find_config(const ConfigSources& sources);

/// What this process's environment names, for find_config.
ConfigSources sources_from_environment();

}  // namespace trainyard::kube
