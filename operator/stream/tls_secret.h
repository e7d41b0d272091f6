#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/log/log.h"
#include "control/coordinator/grpc_port_transport.h"
#include "operator/kube/client.h"

namespace trainyard::stream {

/// What the Secret of the control stream holds, in PEM, under the keys that cert-manager uses too.
struct SecretContent {
  std::string certificate;    ///< tls.crt
  std::string key;            ///< tls.key
  std::string authorities;    ///< ca.crt: who may be trusted, the one that signs first
  std::string authority_key;  ///< ca.key: only in a Secret that is ours to write

  bool operator==(const SecretContent&) const = default;
};

// A young authority is trusted everywhere long before the old one ends.
inline constexpr std::chrono::hours kAuthorityLifetime{24 * 365 * 10};
inline constexpr std::chrono::hours kAuthorityRenewal{24 * 365};
inline constexpr std::chrono::hours kServerLifetime{24 * 90};
inline constexpr std::chrono::hours kServerRenewal{24 * 30};

/// The content as it is to be at `now`: what is missing, damaged, for other hosts or near its end
/// is made anew. A new authority comes before the old one, which stays trusted while it lives; a
/// server certificate that is still good stays until the next call, so that nobody meets one of an
/// authority that he does not know yet. Errors: kInvalidConfig for hosts that are none.
Result<SecretContent> renewed(const SecretContent& content, const std::vector<std::string>& hosts,
                              Time now);

/// What is wrong with content that is somebody else's to renew; empty: nothing.
std::string fault_of(const SecretContent& content, const std::vector<std::string>& hosts, Time now);

/// What the coordinator shows, and what agents are to trust.
struct ControlIdentity {
  control::TlsIdentity server;
  std::string authorities;
};

/// Annotation of a Secret that is ours: the highest term that was ever led in.
inline constexpr char kTermAnnotation[] = "trainyard.dev/control-term";

/// The Secret with certificate and key of the control stream. One that is empty, or that holds a
/// ca.key, is ours: it is filled and renewed, and remembers terms. Another one (cert-manager's, a
/// person's) is read only. Used from one thread.
class TlsSecret {
 public:
  struct Options {
    const kube::Client* client = nullptr;  ///< as clock and logger: required, outlives it
    const Clock* clock = nullptr;
    Logger* logger = nullptr;
    kube::ObjectName name;
    std::vector<std::string> hosts;  ///< what agents connect to
  };

  explicit TlsSecret(Options options) : options_(std::move(options)) {}

  /// Reads the Secret and renews it where that is due. Errors: kNotFound where there is none,
  /// kInvalidConfig for one of somebody else that cannot be used, those of the API server.
  Result<ControlIdentity> refresh();

  /// A term higher than all that were ever taken from this Secret, `least` or above, which it
  /// remembers from then on: a Lease may be deleted and count from 0 again while nobody looks, and
  /// agents refuse terms below those they have heard of. Of somebody else's Secret, which remembers
  /// nothing, `least`. Errors: kConflict where another was faster, those of the API server.
  Result<int64_t> take_term(int64_t least);

 private:
  Result<nlohmann::json> read() const;
  Status write(const nlohmann::json& secret, const SecretContent& content) const;

  const Options options_;
};

}  // namespace trainyard::stream
