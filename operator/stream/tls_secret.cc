#include "operator/stream/tls_secret.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include <nlohmann/json.hpp>

#include "operator/cluster/members.h"
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

/// Empty, or with the key that signs: a Secret of anybody else's has none.
bool is_ours(const json& data) { return data.empty() || data.contains(kAuthorityKey); }

json data_of(const json& secret) {
  const auto found = secret.find("data");
  return found == secret.end() || !found->is_object() ? json::object() : *found;
}

/// The term that a Secret remembers; -1: none, or nothing that could be one.
int64_t remembered_term(const json& secret) {
  const json& annotations = cluster::at(cluster::at(secret, "metadata"), "annotations");
  const std::string digits = cluster::text_at(annotations, kTermAnnotation);
  int64_t term = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), term);
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  return whole && term < std::numeric_limits<int64_t>::max() ? term : -1;
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
    return std::string(kAuthorities) + ": found no certificate, wanted that of the issuer of " +
           kCertificate;
  }
  if (!names_all(content.certificate, hosts)) {
    return std::string(kCertificate) + ": does not name " + hosts.front() +
           ", which agents connect to";
  }
  return {};
}

Result<json> TlsSecret::read() const {
  auto secret = options_.client->get(kube::kSecrets, options_.name);
  if (!secret) {
    return secret.error().to_error("get Secret " + options_.name.ns + "/" + options_.name.name);
  }
  return *std::move(secret);
}

Result<int64_t> TlsSecret::take_term(int64_t least) {
  TRAINYARD_ASSIGN(json secret, read());
  if (!is_ours(data_of(secret))) return least;
  const int64_t term = std::max(least, remembered_term(secret) + 1);
  json& annotations = secret["metadata"]["annotations"];
  if (!annotations.is_object()) annotations = json::object();
  annotations[kTermAnnotation] = std::to_string(term);
  // With the resource version that was read: whoever was faster is not overwritten.
  const auto reply = options_.client->update(kube::kSecrets, secret);
  if (reply) return term;
  // One that a person gives, with a key of theirs that could be ours, is for reading alone.
  if (reply.error().reason == kube::Reason::kForbidden) return least;
  return reply.error().to_error("update Secret " + options_.name.name);
}

Result<ControlIdentity> TlsSecret::refresh() {
  TRAINYARD_ASSIGN(const json secret, read());
  const std::string what = "Secret " + options_.name.ns + "/" + options_.name.name;
  const json data = data_of(secret);
  SecretContent content{text_of(data, kCertificate), text_of(data, kKey),
                        text_of(data, kAuthorities), text_of(data, kAuthorityKey)};
  const Time now = options_.clock->now();
  if (is_ours(data)) {
    TRAINYARD_ASSIGN(SecretContent made, renewed(content, options_.hosts, now));
    if (made != content) TRAINYARD_TRY(write(secret, made));
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
  // As take_term: with the resource version that was read.
  const auto reply = options_.client->update(kube::kSecrets, changed);
  if (!reply) return reply.error().to_error("update Secret " + options_.name.name);
  options_.logger->info("made certificates for the control stream",
                        {{"namespace", options_.name.ns}, {"secret", options_.name.name}});
  return {};
}

}  // namespace trainyard::stream
