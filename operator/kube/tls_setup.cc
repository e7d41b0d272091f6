#include "operator/kube/tls_setup.h"

#include <array>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <utility>
#include <vector>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "common/io/file.h"
#include "common/pem/pem.h"
#include "common/text/rfc3339.h"

namespace trainyard::kube {
namespace {

constexpr int64_t kPemBytesMax = 1 << 20;
constexpr int kCertificatesMax = 1000;

using pem::Certificate;
using StorePtr = std::unique_ptr<X509_STORE, pem::Deleter<X509_STORE_free>>;
using ContextPtr = std::unique_ptr<SSL_CTX, pem::Deleter<SSL_CTX_free>>;

MonoTime now() { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }

/// The oldest entry of OpenSSL's queue of this thread, which is the cause; empties the queue.
std::string openssl_words() {
  std::array<char, 256> text{};
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "no reason given";
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

Result<std::vector<Certificate>> read_certificates(const Pem& source) {
  std::vector<Certificate> certificates;
  const pem::Bio bio = pem::reader_of(source.text);
  while (certificates.size() < kCertificatesMax) {
    Certificate certificate = pem::next_certificate(bio);
    if (!certificate) break;
    certificates.push_back(std::move(certificate));
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (certificates.empty() || !at_end) {
    return Error{ErrorCode::kInvalidConfig,
                 source.origin + ": found " + std::to_string(certificates.size()) +
                     " certificates and then " +
                     (at_end ? "none" : "one that cannot be read (" + openssl_words() + ")") +
                     ", wanted PEM certificates"};
  }
  ERR_clear_error();
  return certificates;
}

Status use_authority(SSL_CTX* context, const Pem& pem) {
  TRAINYARD_ASSIGN(const std::vector<Certificate> certificates, read_certificates(pem));
  StorePtr store(X509_STORE_new());
  for (const Certificate& certificate : certificates) {
    if (X509_STORE_add_cert(store.get(), certificate.get()) != 1) {
      return Error{ErrorCode::kInvalidConfig, pem.origin + ": " + openssl_words()};
    }
  }
  // As in Go: what is listed is trusted, be it a root or not.
  X509_STORE_set_flags(store.get(), X509_V_FLAG_PARTIAL_CHAIN);
  SSL_CTX_set_cert_store(context, store.release());
  return {};
}

Status use_client(SSL_CTX* context, const Pem& certificate, const Pem& key) {
  TRAINYARD_ASSIGN(std::vector<Certificate> chain, read_certificates(certificate));
  SSL_CTX_clear_chain_certs(context);
  if (SSL_CTX_use_certificate(context, chain.front().get()) != 1) {
    return Error{ErrorCode::kInvalidConfig, certificate.origin + ": " + openssl_words()};
  }
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1) {
      return Error{ErrorCode::kInvalidConfig, certificate.origin + ": " + openssl_words()};
    }
  }
  const pem::Key secret = pem::read_key(key.text);
  if (!secret) {
    return Error{ErrorCode::kInvalidConfig,
                 key.origin + ": no PEM key without a pass phrase (" + openssl_words() + ")"};
  }
  if (SSL_CTX_use_PrivateKey(context, secret.get()) != 1) {
    return Error{ErrorCode::kInvalidConfig, key.origin + ": does not belong to " +
                                                certificate.origin + " (" + openssl_words() + ")"};
  }
  return {};
}

Status expect_name(SSL_CTX* context, const std::string& name) {
  X509_VERIFY_PARAM* wanted = SSL_CTX_get0_param(context);
  X509_VERIFY_PARAM_set_hostflags(
      wanted, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  if (X509_VERIFY_PARAM_set1_ip_asc(wanted, name.c_str()) == 1) return {};
  ERR_clear_error();
  if (X509_VERIFY_PARAM_set1_host(wanted, name.c_str(), name.size()) == 1) return {};
  return Error{ErrorCode::kInternal, "the name " + name + " cannot be checked: " + openssl_words()};
}

/// The file's content of now, where there is a file; `pem` where it cannot be read.
Pem current(const Pem& pem) {
  if (pem.file.empty()) return pem;
  Result<std::string> text = read_file(pem.file, kPemBytesMax);
  if (!text || text->empty()) return pem;
  return {*std::move(text), pem.origin, pem.file};
}

std::string one_line(const X509_NAME* name) {
  const pem::Bio bio = pem::writer();
  X509_NAME_print_ex(bio.get(), name, 0, XN_FLAG_RFC2253);
  return pem::text_of(bio);
}

std::string name_of_alert(int value) {
  constexpr int kCertificateRequired = 116;  // RFC 8446; OpenSSL 3.0 has no name for it
  const int alert = value & 0xff;
  const std::string name =
      alert == kCertificateRequired ? "certificate required" : SSL_alert_desc_string_long(value);
  return name + " (" + std::to_string(alert) + ")";
}

/// "ca.crt (CN=kubernetes, valid until 2035-01-01T00:00:00Z)", the first of several.
std::string describe(const Pem& pem) {
  const Result<std::vector<Certificate>> certificates = read_certificates(pem);
  if (!certificates) return pem.origin;
  const X509* first = certificates->front().get();
  std::string text = pem.origin + " (" + one_line(X509_get_subject_name(first));
  std::tm until{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(first), &until) == 1) {
    text += ", valid until " +
            text::format_time(std::chrono::system_clock::from_time_t(timegm(&until)));
  }
  if (certificates->size() > 1) {
    text += ", and " + std::to_string(certificates->size() - 1) + " more";
  }
  return text + ")";
}

}  // namespace

/// What went wrong last, written by OpenSSL's callbacks.
struct TlsSetup::Diary {
  std::mutex mutex;
  MonoTime at{};
  std::string words;

  void write(std::string what) {
    const std::lock_guard lock(mutex);
    at = now();
    words = std::move(what);
  }

  static void on_info(const SSL* ssl, int where, int value);
  static int index();
};

int TlsSetup::Diary::index() {
  static const int own_index = SSL_CTX_get_ex_new_index(
      0, nullptr, nullptr, nullptr, [](void*, void* held, CRYPTO_EX_DATA*, int, long, void*) {
        delete static_cast<std::shared_ptr<Diary>*>(held);
      });
  return own_index;
}

void TlsSetup::Diary::on_info(const SSL* ssl, int where, int value) {
  const auto* held =
      static_cast<std::shared_ptr<Diary>*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), index()));
  if (held == nullptr || (where & SSL_CB_ALERT) == 0) return;
  const bool fatal = (value >> 8) == SSL3_AL_FATAL;
  if (!fatal) return;  // a warning, close_notify above all
  const std::string alert = name_of_alert(value);
  if ((where & SSL_CB_READ) != 0) {
    (*held)->write("the server answered with the alert \"" + alert + "\"");
    return;
  }
  const long verdict = SSL_get_verify_result(ssl);
  (*held)->write(verdict == X509_V_OK ? "this side refused with the alert \"" + alert + "\""
                                      : std::string("the server's certificate was refused: ") +
                                            X509_verify_cert_error_string(verdict));
}

void prepare_openssl() { OPENSSL_init_ssl(0, nullptr); }

void leave_system_authorities_unread() {
  ::setenv(X509_get_default_cert_file_env(), "/dev/null", 1);  // NOLINT(concurrency-mt-unsafe)
}

TlsSetup::TlsSetup(ServerConfig config, std::string name)
    : config_(std::move(config)), name_(std::move(name)), diary_(std::make_shared<Diary>()) {}

TlsSetup::~TlsSetup() = default;

Result<std::unique_ptr<TlsSetup>> TlsSetup::make(const ServerConfig& config,
                                                 const std::string& name) {
  ServerConfig certificates;
  certificates.authority = config.authority;
  certificates.client_certificate = config.client_certificate;
  certificates.client_key = config.client_key;
  std::unique_ptr<TlsSetup> setup(new TlsSetup(std::move(certificates), name));
  const ContextPtr trial(SSL_CTX_new(TLS_client_method()));
  TRAINYARD_TRY(setup->configure(trial.get()));
  return setup;
}

Status TlsSetup::configure(SSL_CTX* context) const {
  ERR_clear_error();
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_ex_data(context, Diary::index(), new std::shared_ptr<Diary>(diary_));
  SSL_CTX_set_info_callback(context, Diary::on_info);
  TRAINYARD_TRY(expect_name(context, name_));
  if (!config_.authority.empty() && !use_authority(context, current(config_.authority))) {
    TRAINYARD_TRY(use_authority(context, config_.authority));
  }
  if (config_.client_certificate.empty()) return {};
  if (use_client(context, current(config_.client_certificate), current(config_.client_key))) {
    return {};
  }
  // A pair whose files are being replaced: the old one still counts.
  return use_client(context, config_.client_certificate, config_.client_key);
}

std::string TlsSetup::identities() const {
  std::string text = "; trusted: " + (config_.authority.empty() ? "the system's authorities"
                                                                : describe(config_.authority));
  if (!config_.client_certificate.empty()) {
    text += "; offered: " + describe(config_.client_certificate);
  }
  return text;
}

std::string TlsSetup::failure_since(MonoTime since) const {
  std::string words;
  {
    const std::lock_guard lock(diary_->mutex);
    if (diary_->at < since || diary_->words.empty()) return "";
    words = diary_->words;
  }
  return words + "; wanted: a certificate for " + name_ + identities();
}

}  // namespace trainyard::kube
