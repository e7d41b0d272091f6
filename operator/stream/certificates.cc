#include "operator/stream/certificates.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <ctime>
#include <memory>
#include <netinet/in.h>

#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509v3.h>

#include "common/base/check.h"
#include "common/pem/pem.h"

namespace trainyard::stream {
namespace {

/// Clocks of machines differ.
constexpr std::chrono::minutes kAlreadyGood{5};
constexpr int kSerialBits = 127;
constexpr size_t kMaxCertificates = 64;
constexpr size_t kMaxHostBytes = 253;

using pem::Certificate;
using pem::Key;
using pem::pem_of;
using Number = std::unique_ptr<BIGNUM, pem::Deleter<BN_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, pem::Deleter<GENERAL_NAMES_free>>;

std::vector<Certificate> read_all(std::string_view text) {
  std::vector<Certificate> all;
  const pem::Bio bio = pem::reader_of(text);
  while (all.size() < kMaxCertificates) {
    Certificate next = pem::next_certificate(bio);
    if (!next) break;
    all.push_back(std::move(next));
  }
  ERR_clear_error();
  return all;
}

Certificate read_first(std::string_view text) {
  std::vector<Certificate> all = read_all(text);
  return all.empty() ? Certificate() : std::move(all.front());
}

Key read_key(std::string_view text) {
  Key key = pem::read_key(text);
  ERR_clear_error();
  return key;
}

std::time_t seconds_of(Time time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
}

Time time_of(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return Time();
  return Time(std::chrono::seconds(::timegm(&parts)));
}

/// `issuer`: for extensions that speak of it; else null.
void add_extension(X509* certificate, int nid, const char* value, X509* issuer = nullptr) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value);
  TRAINYARD_CHECK(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

Certificate blank(const std::string& common_name, EVP_PKEY* key, Time now, Duration lifetime) {
  Certificate certificate(X509_new());
  X509* const made = certificate.get();
  const Number serial(BN_new());
  TRAINYARD_CHECK(made != nullptr && X509_set_version(made, X509_VERSION_3) == 1);
  TRAINYARD_CHECK(BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1);
  TRAINYARD_CHECK(BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(made)) != nullptr);
  ASN1_TIME_set(X509_getm_notBefore(made), seconds_of(now - kAlreadyGood));
  ASN1_TIME_set(X509_getm_notAfter(made), seconds_of(now + lifetime));
  TRAINYARD_CHECK(X509_set_pubkey(made, key) == 1);
  TRAINYARD_CHECK(X509_NAME_add_entry_by_txt(
                      X509_get_subject_name(made), "CN", MBSTRING_UTF8,
                      reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1, 0) == 1);
  return certificate;
}

/// The numeric address as a certificate holds it; empty for a name.
std::string address_bytes(const std::string& host) {
  std::array<char, sizeof(in6_addr)> bytes{};
  if (::inet_pton(AF_INET, host.c_str(), bytes.data()) == 1) {
    return {bytes.data(), sizeof(in_addr)};
  }
  if (::inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1) return {bytes.data(), bytes.size()};
  return {};
}

bool is_host_name(const std::string& host) {
  return !host.empty() && host.size() <= kMaxHostBytes &&
         std::all_of(host.begin(), host.end(), [](unsigned char letter) {
           return std::isalnum(letter) != 0 || letter == '-' || letter == '.';
         });
}

Status add_hosts(X509* certificate, const std::vector<std::string>& hosts) {
  const Names names(GENERAL_NAMES_new());
  for (const std::string& host : hosts) {
    const std::string address = address_bytes(host);
    if (address.empty() && !is_host_name(host)) {
      return Error{ErrorCode::kInvalidConfig,
                   "\"" + host + "\": found no host, wanted a DNS name or a numeric address"};
    }
    GENERAL_NAME* const name = GENERAL_NAME_new();
    TRAINYARD_CHECK(name != nullptr);
    const std::string& value = address.empty() ? host : address;
    ASN1_STRING* const text = address.empty() ? static_cast<ASN1_STRING*>(ASN1_IA5STRING_new())
                                              : static_cast<ASN1_STRING*>(ASN1_OCTET_STRING_new());
    TRAINYARD_CHECK(ASN1_STRING_set(text, value.data(), static_cast<int>(value.size())) == 1);
    GENERAL_NAME_set0_value(name, address.empty() ? GEN_DNS : GEN_IPADD, text);
    TRAINYARD_CHECK(sk_GENERAL_NAME_push(names.get(), name) > 0);
  }
  TRAINYARD_CHECK(X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 0, 0) == 1);
  return {};
}

std::string host_of(const GENERAL_NAME* name) {
  int type = 0;
  const auto* text = static_cast<const ASN1_STRING*>(GENERAL_NAME_get0_value(name, &type));
  const unsigned char* data = ASN1_STRING_get0_data(text);
  const int size = ASN1_STRING_length(text);
  if (type == GEN_DNS) return {reinterpret_cast<const char*>(data), static_cast<size_t>(size)};
  if (type != GEN_IPADD) return {};
  std::array<char, INET6_ADDRSTRLEN> shown{};
  const int family = size == sizeof(in_addr) ? AF_INET : AF_INET6;
  if (family == AF_INET6 && size != sizeof(in6_addr)) return {};
  return ::inet_ntop(family, data, shown.data(), shown.size()) == nullptr ? "" : shown.data();
}

}  // namespace

Credential make_authority(const std::string& common_name, Time now, Duration lifetime) {
  const Key key(EVP_EC_gen("P-256"));
  TRAINYARD_CHECK(key != nullptr);
  const Certificate certificate = blank(common_name, key.get(), now, lifetime);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate.get()));
  add_extension(certificate.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  add_extension(certificate.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  add_extension(certificate.get(), NID_subject_key_identifier, "hash");
  TRAINYARD_CHECK(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0);
  return {pem_of(certificate.get()), pem_of(key.get())};
}

Result<Credential> issue(const Credential& authority, const std::vector<std::string>& hosts,
                         Time now, Duration lifetime) {
  const Certificate issuer = read_first(authority.certificate);
  const Key issuer_key = read_key(authority.key);
  if (!issuer || !issuer_key || hosts.empty()) {
    return Error{ErrorCode::kInvalidConfig,
                 "found an authority that cannot sign, wanted its certificate and key in PEM"};
  }
  const Key key(EVP_EC_gen("P-256"));
  TRAINYARD_CHECK(key != nullptr);
  // A common name holds 64 letters at most; nobody reads it where there are alternative names.
  const Certificate certificate = blank("trainyard control stream", key.get(), now, lifetime);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer.get()));
  TRAINYARD_TRY(add_hosts(certificate.get(), hosts));
  add_extension(certificate.get(), NID_basic_constraints, "critical,CA:FALSE");
  add_extension(certificate.get(), NID_key_usage, "critical,digitalSignature");
  add_extension(certificate.get(), NID_ext_key_usage, "serverAuth");
  // An authority and its successor are of one name. Whoever verifies looks for the issuer by name
  // and takes the first of a bundle, unless the key is named too. (Authorities made before
  // 2026-11-25 name none.)
  if (X509_get_ext_by_NID(issuer.get(), NID_subject_key_identifier, -1) >= 0) {
    add_extension(certificate.get(), NID_authority_key_identifier, "keyid:always", issuer.get());
  }
  TRAINYARD_CHECK(X509_sign(certificate.get(), issuer_key.get(), EVP_sha256()) > 0);
  return Credential{pem_of(certificate.get()), pem_of(key.get())};
}

Result<CertificateFacts> read_certificate(std::string_view text) {
  const Certificate certificate = read_first(text);
  if (!certificate) {
    return Error{ErrorCode::kInvalidData, "found no certificate, wanted one in PEM"};
  }
  CertificateFacts facts;
  facts.not_after = time_of(X509_get0_notAfter(certificate.get()));
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    facts.hosts.push_back(host_of(sk_GENERAL_NAME_value(names.get(), i)));
  }
  return facts;
}

bool is_key_of(std::string_view key, std::string_view text) {
  const Certificate certificate = read_first(text);
  const Key secret = read_key(key);
  const bool fits =
      certificate && secret && X509_check_private_key(certificate.get(), secret.get()) == 1;
  ERR_clear_error();
  return fits;
}

bool is_signed_by(std::string_view bundle, std::string_view text) {
  const Certificate certificate = read_first(text);
  if (!certificate) return false;
  for (const Certificate& authority : read_all(bundle)) {
    EVP_PKEY* const key = X509_get0_pubkey(authority.get());
    const bool signed_by = key != nullptr && X509_verify(certificate.get(), key) == 1;
    ERR_clear_error();
    if (signed_by) return true;
  }
  return false;
}

std::vector<std::string> living_certificates(std::string_view bundle, Time now) {
  std::vector<std::string> living;
  for (const Certificate& certificate : read_all(bundle)) {
    if (time_of(X509_get0_notAfter(certificate.get())) > now) {
      living.push_back(pem_of(certificate.get()));
    }
  }
  return living;
}

}  // namespace trainyard::stream
