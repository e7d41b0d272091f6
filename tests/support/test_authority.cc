#include "tests/support/test_authority.h"

#include <atomic>

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/x509v3.h>

#include "common/base/check.h"
#include "common/pem/pem.h"

namespace trainyard::testing_support {
namespace {

using pem::Certificate;
using pem::Key;
using pem::pem_of;

void extend(X509* certificate, int nid, const std::string& value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
  TRAINYARD_CHECK(extension != nullptr);
  TRAINYARD_CHECK(X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

Certificate blank(const CertificateRequest& request, EVP_PKEY* key) {
  static std::atomic<long> serial{1};  // two certificates of one issuer differ in it
  Certificate certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), request.valid_for.count());
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(request.common_name.c_str()),
                             -1, -1, 0);
  return certificate;
}

}  // namespace

struct TestAuthority::Impl {
  Key key;
  Certificate certificate;
};

TestAuthority::TestAuthority(const std::string& common_name) : impl_(std::make_unique<Impl>()) {
  impl_->key.reset(EVP_EC_gen("P-256"));
  impl_->certificate = blank({.common_name = common_name}, impl_->key.get());
  X509* certificate = impl_->certificate.get();
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  extend(certificate, NID_basic_constraints, "critical,CA:TRUE");
  extend(certificate, NID_key_usage, "critical,keyCertSign");
  TRAINYARD_CHECK(X509_sign(certificate, impl_->key.get(), EVP_sha256()) > 0);
  identity_ = {pem_of(certificate), pem_of(impl_->key.get())};
}

TestAuthority::~TestAuthority() = default;

Identity TestAuthority::issue(const CertificateRequest& request) const {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate certificate = blank(request, key.get());
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(impl_->certificate.get()));
  std::string names;
  for (const std::string& name : request.names)
    names += (names.empty() ? "" : ",") + name;
  if (!names.empty()) extend(certificate.get(), NID_subject_alt_name, names);
  extend(certificate.get(), NID_ext_key_usage, "serverAuth,clientAuth");
  TRAINYARD_CHECK(X509_sign(certificate.get(), impl_->key.get(), EVP_sha256()) > 0);
  return {pem_of(certificate.get()), pem_of(key.get())};
}

}  // namespace trainyard::testing_support
