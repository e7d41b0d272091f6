#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/error.h"

namespace trainyard::kube {

/// Something secret or signed, with where it came from for messages. Never logged.
struct Pem {
  std::string text;
  std::string origin;  ///< a path, or "certificate-authority-data of cluster \"kind\""

  bool empty() const { return text.empty(); }
};

/// Which server, whom to trust, who we are.
struct ServerConfig {
  std::string server;      ///< https://host:port, perhaps with a path; http:// only for tests
  std::string ns;          ///< the context's or the pod's namespace; "default" where none is said
  Pem authority;           ///< CA certificates; empty: the system's
  Pem client_certificate;  ///< empty: none; then the key is empty, too
  Pem client_key;
  std::string token;                 ///< a bearer token that does not change; empty: none
  std::filesystem::path token_file;  ///< a bearer token that is rotated; empty: none
};

/// Reads a kubeconfig's text: one context (`context` empty: current-context). Relative paths in it
/// are against `directory`; files that it names are read now, except tokenFile. Errors:
/// kInvalidConfig names the field, what it holds and what to do; refused are exec and auth-provider
/// plugins, user names and passwords, impersonation, proxies, tls-server-name and
/// insecure-skip-tls-verify.
Result<ServerConfig> parse_kubeconfig(std::string_view text, const std::filesystem::path& directory,
                                      std::string_view context);

/// parse_kubeconfig of a file. Errors also: kNotFound, kIo.
Result<ServerConfig> load_kubeconfig(const std::filesystem::path& path, std::string_view context);

/// What a pod is given: KUBERNETES_SERVICE_HOST and _PORT, and the files `token`, `ca.crt` and
/// `namespace` in `directory`. Errors: kNotFound (not in a pod: no such environment),
/// kInvalidConfig, kIo.
struct PodEnvironment {
  std::string service_host;
  std::string service_port;
  std::filesystem::path directory = "/var/run/secrets/kubernetes.io/serviceaccount";
};
Result<ServerConfig> in_cluster_config(const PodEnvironment& environment);

/// How a program finds its server: the file `kubeconfig` where one is given (a flag), else what
/// KUBECONFIG names (one file), else the pod's credentials, else ~/.kube/config. Errors: kNotFound
/// says where was looked.
struct ConfigSources {
  std::string kubeconfig;      ///< of --kubeconfig
  std::string context;         ///< of --context
  std::string kubeconfig_env;  ///< of KUBECONFIG
  std::string home;            ///< of HOME
  PodEnvironment pod;
};
Result<ServerConfig> find_config(const ConfigSources& sources);

/// The sources that this process's environment names, for find_config.
ConfigSources sources_from_environment();

/// The bearer token of a config: the fixed one, or a file's, read again when it is older than
/// kTokenAge and when the server has refused it. Thread-safe.
class TokenSource {
 public:
  /// Kubelets write a new token when 80 % of an hour are over, client-go reads each minute.
  static constexpr Duration kTokenAge = std::chrono::seconds(60);

  /// `clock` outlives it.
  TokenSource(const ServerConfig& config, const Clock& clock);

  /// The token; empty: there is none. A file that cannot be read now gives the last token that
  /// could be. Errors: kUnavailable where there never was one.
  Result<std::string> token();

  /// The server answered 401 to `refused`: reads the file now. Whether there is another token,
  /// with which to try again.
  bool renew(const std::string& refused);

 private:
  Status read_locked();

  const Clock& clock_;
  const std::string fixed_;
  const std::filesystem::path file_;
  std::mutex mutex_;
  std::string last_;
  MonoTime read_at_{};
};

}  // namespace trainyard::kube
