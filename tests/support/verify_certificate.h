#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <openssl/x509_vfy.h>

#include "common/base/clock.h"
#include "common/pem/pem.h"

namespace trainyard::testing_support {

/// Whether a TLS client that trusts the bundle believes the certificate at that time.
inline bool verifies(const std::string& bundle, const std::string& certificate, Time now) {
  const pem::Certificate leaf = pem::next_certificate(pem::reader_of(certificate));
  const std::unique_ptr<X509_STORE, pem::Deleter<X509_STORE_free>> store(X509_STORE_new());
  const pem::Bio reader = pem::reader_of(bundle);
  for (pem::Certificate one = pem::next_certificate(reader); one;
       one = pem::next_certificate(reader)) {
    X509_STORE_add_cert(store.get(), one.get());
  }
  const std::unique_ptr<X509_STORE_CTX, pem::Deleter<X509_STORE_CTX_free>> context(
      X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), leaf.get(), nullptr);
  X509_VERIFY_PARAM_set_time(
      X509_STORE_CTX_get0_param(context.get()),
      std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count());
  return X509_verify_cert(context.get()) == 1;
}

}  // namespace trainyard::testing_support
