#include "control/front/tls.h"

#include <algorithm>
#include <array>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "common/pem/pem.h"

namespace trainyard::control {
namespace {

using Outcome = TlsSession::Outcome;

/// As ALPN writes it (RFC 7301, section 3.1).
constexpr std::array<unsigned char, 3> kHttp2 = {2, 'h', '2'};
constexpr int kMaxChain = 16;

Error unusable(const std::string& what) {
  ERR_clear_error();
  return {ErrorCode::kInvalidConfig, "control stream: found " + what +
                                         ", wanted a certificate in PEM and its key without a pass "
                                         "phrase"};
}

/// gRPC's clients always ask for h2, and what speaks anything else is no agent.
int choose_http2(SSL*, const unsigned char** out, unsigned char* out_size,
                 const unsigned char* offered, unsigned offered_size, void*) {
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kHttp2.data(), kHttp2.size(), offered,
                            offered_size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

Status use_identity(SSL_CTX* context, const TlsIdentity& identity) {
  const pem::Bio bio = pem::reader_of(identity.certificate);
  const pem::Certificate own = pem::next_certificate(bio);
  if (!own || SSL_CTX_use_certificate(context, own.get()) != 1) {
    return unusable("no certificate that can be used");
  }
  for (int i = 0; i < kMaxChain; ++i) {
    const pem::Certificate next = pem::next_certificate(bio);
    if (!next) break;
    if (SSL_CTX_add1_chain_cert(context, next.get()) != 1) {
      return unusable("an intermediate certificate that cannot be used");
    }
  }
  const pem::Key key = pem::read_key(identity.key);
  if (!key || SSL_CTX_use_PrivateKey(context, key.get()) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return unusable("no key that belongs to the certificate");
  }
  ERR_clear_error();
  return {};
}

}  // namespace

Result<TlsServer> TlsServer::make(const TlsIdentity& identity) {
  TlsServer server;
  server.context_.reset(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  SSL_CTX* context = server.context_.get();
  if (context == nullptr) return unusable("no memory for TLS");
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20");  // of TLS 1.2
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                   SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // An idle connection keeps no buffers.
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_alpn_select_cb(context, choose_http2, nullptr);
  TRAINYARD_TRY(use_identity(context, identity));
  return server;
}

std::unique_ptr<TlsSession> TlsServer::accept(int socket) const {
  std::shared_ptr<SSL> ssl(SSL_new(context_.get()), SSL_free);
  if (!ssl || SSL_set_fd(ssl.get(), socket) != 1) return nullptr;
  SSL_set_accept_state(ssl.get());
  return std::make_unique<TlsSession>(std::move(ssl));
}

TlsSession::Step TlsSession::step_of(int returned) const {
  if (returned > 0) return {Outcome::kDone, static_cast<size_t>(returned)};
  switch (SSL_get_error(ssl_.get(), returned)) {
    case SSL_ERROR_WANT_READ:
      return {Outcome::kWantsRead};
    case SSL_ERROR_WANT_WRITE:
      return {Outcome::kWantsWrite};
    default:
      return {Outcome::kEnded};
  }
}

TlsSession::Step TlsSession::read(std::span<char> into) {
  ERR_clear_error();
  return step_of(SSL_read(ssl_.get(), into.data(), static_cast<int>(into.size())));
}

TlsSession::Step TlsSession::write(std::string_view bytes) {
  ERR_clear_error();
  return step_of(SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())));
}

int64_t TlsSession::bytes_received() const {
  return static_cast<int64_t>(BIO_number_read(SSL_get_rbio(ssl_.get())));
}

void TlsSession::say_goodbye() {
  ERR_clear_error();
  (void)SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

}  // namespace trainyard::control
