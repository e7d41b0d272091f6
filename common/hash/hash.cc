#include "common/hash/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <xxhash.h>

#include "common/base/check.h"

namespace trainyard {
namespace {

Hash128 canonical(XXH128_hash_t hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  Hash128 digest;
  std::copy(std::begin(bytes.digest), std::end(bytes.digest), digest.begin());
  return digest;
}

}  // namespace

Hash128 xxh3_128(std::span<const std::byte> data) {
  return canonical(XXH3_128bits(data.data(), data.size()));
}

std::string to_hex(std::span<const uint8_t> digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(digest.size() * 2);
  for (const uint8_t byte : digest) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

struct Xxh3Stream::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {
  TRAINYARD_CHECK(state_->xxh != nullptr && XXH3_128bits_reset(state_->xxh) == XXH_OK);
}
Xxh3Stream::~Xxh3Stream() = default;
void Xxh3Stream::update(std::span<const std::byte> data) {
  TRAINYARD_CHECK(XXH3_128bits_update(state_->xxh, data.data(), data.size()) == XXH_OK);
}
Hash128 Xxh3Stream::digest() const { return canonical(XXH3_128bits_digest(state_->xxh)); }

struct Sha256Stream::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256Stream::Sha256Stream() : state_(std::make_unique<State>()) {
  TRAINYARD_CHECK(state_->context != nullptr &&
                  EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}
Sha256Stream::~Sha256Stream() = default;
void Sha256Stream::update(std::span<const std::byte> data) {
  TRAINYARD_CHECK(EVP_DigestUpdate(state_->context, data.data(), data.size()) == 1);
}
Hash256 Sha256Stream::digest() {
  Hash256 digest;
  unsigned size = 0;
  TRAINYARD_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), &size) == 1 &&
                  size == digest.size());
  return digest;
}

Hash256 hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data) {
  Hash256 digest;
  unsigned size = 0;
  TRAINYARD_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                       reinterpret_cast<const unsigned char*>(data.data()), data.size(),
                       digest.data(), &size) != nullptr &&
                  size == digest.size());
  return digest;
}

bool equal_in_constant_time(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace trainyard
