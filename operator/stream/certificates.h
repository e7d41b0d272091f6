#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/base/time.h"

/// X.509 certificates for the control stream: an authority of our own and what it signs. Pure but
/// for the random numbers of keys and serial numbers.
namespace trainyard::stream {

/// A certificate and its key (P-256), both in PEM.
struct Credential {
  std::string certificate;
  std::string key;  ///< secret

  bool operator==(const Credential&) const = default;
};

/// An authority that signs itself, good from five minutes before `now`.
Credential make_authority(const std::string& common_name, Time now, Duration lifetime);

/// A server's certificate for these hosts: DNS names or numeric addresses. Errors: kInvalidConfig
/// for a host that cannot be one, or an authority that cannot be read.
Result<Credential> issue(const Credential& authority, const std::vector<std::string>& hosts,
                         Time now, Duration lifetime);

/// What a certificate says, as far as it matters here.
struct CertificateFacts {
  Time not_after;
  std::vector<std::string> hosts;  ///< subject alternative names: DNS names and numeric addresses
};

/// Of the first certificate of a PEM text. Errors: kInvalidData.
Result<CertificateFacts> read_certificate(std::string_view pem);

/// Whether `key` belongs to the first certificate of `pem`.
bool is_key_of(std::string_view key, std::string_view pem);

/// Whether one of the authorities in `bundle` has signed the first certificate of `pem`.
bool is_signed_by(std::string_view bundle, std::string_view pem);

/// The certificates of a bundle that are good at `now`, each as PEM of its own, in order.
std::vector<std::string> living_certificates(std::string_view bundle, Time now);

}  // namespace trainyard::stream
