#include "common/pem/pem.h"

#include <openssl/pem.h>

#include "common/base/check.h"

namespace trainyard::pem {
namespace {

/// No pass phrase is asked for on a terminal that may not be there.
int no_pass_phrase(char*, int, int, void*) { return 0; }

}  // namespace

Bio reader_of(std::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

Bio writer() { return Bio(BIO_new(BIO_s_mem())); }

std::string text_of(const Bio& bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<size_t>(size)};
}

Certificate next_certificate(const Bio& bio) {
  return Certificate(PEM_read_bio_X509(bio.get(), nullptr, no_pass_phrase, nullptr));
}

Key read_key(std::string_view text) {
  const Bio bio = reader_of(text);
  return Key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_pass_phrase, nullptr));
}

std::string pem_of(X509* certificate) {
  const Bio bio = writer();
  TRAINYARD_CHECK(PEM_write_bio_X509(bio.get(), certificate) == 1);
  return text_of(bio);
}

std::string pem_of(EVP_PKEY* key) {
  const Bio bio = writer();
  TRAINYARD_CHECK(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) ==
                  1);
  return text_of(bio);
}

}  // namespace trainyard::pem
