#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace trainyard::testing_support {

/// A certificate and its key, PEM.
struct Identity {
  std::string certificate;
  std::string key;
};

struct CertificateRequest {
  std::string common_name = "test";
  /// As OpenSSL writes them: "DNS:localhost", "IP:127.0.0.1".
  std::vector<std::string> names;
  std::chrono::seconds valid_for = std::chrono::hours(1);  ///< from an hour ago on; may be negative
};

/// A certificate authority made at run time (P-256).
class TestAuthority {
 public:
  explicit TestAuthority(const std::string& common_name = "test-ca");
  ~TestAuthority();

  /// Its own certificate.
  const std::string& pem() const { return identity_.certificate; }
  /// A certificate signed by it, for servers and clients alike.
  Identity issue(const CertificateRequest& request) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  Identity identity_;
};

}  // namespace trainyard::testing_support
