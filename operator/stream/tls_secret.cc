#include "operator/stream/tls_secret.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "operator/kube/base64.h"
#include "operator/kube/resource.h"
#include "operator/stream/certificates.h"

namespace trainyard::stream {
namespace {

using nlohmann::json;

constexpr char kCertificate[] = "tls.crt";
constexpr char kKey[] = "tls.key";
constexpr char kAuthorities[] = "ca.crt";
constexpr char kAuthorityKey[] = "ca.key";
constexpr char kAuthorityName[] = "trainyard-control-ca";

/// The text under a key; empty where there is none that can be read.
std::string text_of(const json& data, const char* key) {
  const auto found = data.find(key);
  if (found == data.end() || !found->is_string()) return {};
  const Result<std::string> text = kube::decode_base64(found->get_ref<const std::string&>());
  return text ? *text : std::string();
}

bool is_good_until(const std::string& pem, Time time) {
  const Result<CertificateFacts> facts = read_certificate(pem);
  return facts && facts->not_after > time;
}

bool names_all(const std::string& pem, const std::vector<std::string>& hosts) {
  const Result<CertificateFacts> facts = read_certificate(pem);
  return facts && std::all_of(hosts.begin(), hosts.end(), [&](const std::string& host) {
           return std::find(facts->hosts.begin(), facts->hosts.end(), host) != facts->hosts.end();
         });
}

bool serves(const SecretContent& content, const std::vector<std::string>& hosts, Time until) {
  return is_good_until(content.certificate, until) && names_all(content.certificate, hosts) &&
         is_key_of(content.key, content.certificate) &&
         is_signed_by(content.authorities, content.certificate);
}

}  // namespace

Result<SecretContent> renewed(const SecretContent& content, const std::vector<std::string>& hosts,
                              Time now) {
  SecretContent made = content;
  const bool signs = is_key_of(made.authority_key, made.authorities) &&
                     is_good_until(made.authorities, now + kAuthorityRenewal);
  if (!signs) {
    const Credential authority = make_authority(kAuthorityName, now, kAuthorityLifetime);
    made.authorities = authority.certificate;
    made.authority_key = authority.key;
    for (const std::string& old : living_certificates(content.authorities, now))
      made.authorities += old;
    if (serves(made, hosts, now)) return made;
  }
  if (serves(made, hosts, now + kServerRenewal)) return made;
  TRAINYARD_ASSIGN(const Credential server,
                   issue({made.authorities, made.authority_key}, hosts, now, kServerLifetime));
  made.certificate = server.certificate;
  made.key = server.key;
  return made;
}

std::string fault_of(const SecretContent& content, const std::vector<std::string>& hosts,
                     Time now) {
  const Result<CertificateFacts> facts = read_certificate(content.certificate);
  if (!facts) return std::string(kCertificate) + ": " + facts.error().message;
  if (facts->not_after <= now) return std::string(kCertificate) + ": found one that has expired";
  if (!is_key_of(content.key, content.certificate)) {
    return std::string(kKey) + ": found no PEM key of the certificate in " + kCertificate;
  }
  if (!read_certificate(content.authorities)) {
    return std::string(kAuthorities) + ": found no certificate, wanted that of who signed " +
           kCertificate;
  }
  if (!names_all(content.certificate, hosts)) {
    return std::string(kCertificate) + ": does not name " + hosts.front() +
           ", which agents connect to";
  }
  return {};
}

Result<ControlIdentity> TlsSecret::refresh() {
  const std::string what = "Secret " + options_.name.ns + "/" + options_.name.name;
  const auto secret = options_.client->get(kube::kSecrets, options_.name);
  if (!secret) return secret.error().to_error("get " + what);
  const auto found = secret->find("data");
  const json data = found == secret->end() || !found->is_object() ? json::object() : *found;
  SecretContent content{text_of(data, kCertificate), text_of(data, kKey),
                        text_of(data, kAuthorities), text_of(data, kAuthorityKey)};
  const Time now = options_.clock->now();
  const bool ours = data.empty() || data.contains(kAuthorityKey);
  if (ours) {
    TRAINYARD_ASSIGN(SecretContent made, renewed(content, options_.hosts, now));
    if (made != content) TRAINYARD_TRY(write(*secret, made));
    content = std::move(made);
  } else if (const std::string fault = fault_of(content, options_.hosts, now); !fault.empty()) {
    return Error{ErrorCode::kInvalidConfig, what + ": " + fault};
  }
  return ControlIdentity{{content.certificate, content.key}, content.authorities};
}

Status TlsSecret::write(const json& secret, const SecretContent& content) const {
  json changed = secret;
  changed["stringData"] = {{kCertificate, content.certificate},
                           {kKey, content.key},
                           {kAuthorities, content.authorities},
                           {kAuthorityKey, content.authority_key}};
  const auto reply = options_.client->update(kube::kSecrets, changed);
  if (!reply) return reply.error().to_error("update Secret " + options_.name.name);
  options_.logger->info("made certificates for the control stream",
                        {{"namespace", options_.name.ns}, {"secret", options_.name.name}});
  return {};
}

}  // namespace trainyard::stream
