#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

/// OpenSSL's objects under owners, and the PEM that they are read from and written as. For the few
/// files that speak OpenSSL (docs/ARCHITECTURE.md, section 4).
namespace trainyard::pem {

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;

/// Reads `text`, which must outlive it.
Bio reader_of(std::string_view text);
/// Collects what is written; text_of gives it.
Bio writer();
std::string text_of(const Bio& bio);

/// The next certificate; empty where none comes, or one that cannot be read: OpenSSL's error queue
/// tells which.
Certificate next_certificate(const Bio& bio);

/// The first private key without a pass phrase; nobody is asked for one. Empty where there is none:
/// OpenSSL's error queue says why.
Key read_key(std::string_view text);

std::string pem_of(X509* certificate);
std::string pem_of(EVP_PKEY* key);

}  // namespace trainyard::pem
