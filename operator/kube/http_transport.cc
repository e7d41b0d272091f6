#include "operator/kube/http_transport.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <cpprest/astreambuf.h>
#include <cpprest/http_client.h>
#include <pplx/threadpool.h>

#include "operator/kube/inlet.h"
#include "operator/kube/server_url.h"
#include "operator/kube/tls_setup.h"
#include "operator/kube/token_source.h"

// The only file that knows the HTTP library. Its exceptions and tasks end here: a task whose
// exception nobody takes ends the process, and a thread of its pool that blocks stops its network.
//
// The pool has one thread, and whatever closes a connection runs on it. The library guards a socket
// only where an operation of several steps begins: one that is closed between two steps of a read
// that another thread does crashes (cpprestsdk 2.10.18 under Boost.Asio 1.74).
namespace trainyard::kube {
namespace {

namespace client = web::http::client;
using concurrency::streams::details::streambuf_state_manager;
using web::http::http_request;
using web::http::http_response;

constexpr size_t kNetworkThreads = 1;
/// The library's own timers, which only clean up after the waits here have ended.
constexpr std::chrono::seconds kCallCleanup{120};
constexpr std::chrono::minutes kWatchCleanup{30};
constexpr int64_t kRetryAfterSecondsMax = 600;

boost::asio::io_service& network() { return crossplat::threadpool::shared_instance().service(); }

MonoTime now() { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }

/// The stream into which the library writes an answer's body: hands it on to an Inlet and holds
/// the library back where that is full.
class InletStream final : public streambuf_state_manager<uint8_t> {
 public:
  explicit InletStream(std::shared_ptr<Inlet> inlet)
      : streambuf_state_manager<uint8_t>(std::ios_base::out), inlet_(std::move(inlet)) {}
  ~InletStream() override { this->_close_write(); }

  bool can_seek() const override { return false; }
  bool has_size() const override { return false; }
  size_t buffer_size(std::ios_base::openmode) const override { return 0; }
  void set_buffer_size(size_t, std::ios_base::openmode) override {}
  size_t in_avail() const override { return 0; }
  pos_type getpos(std::ios_base::openmode) const override { return traits::eof(); }
  pos_type seekpos(pos_type, std::ios_base::openmode) override { return traits::eof(); }
  pos_type seekoff(off_type, std::ios_base::seekdir, std::ios_base::openmode) override {
    return traits::eof();
  }
  bool acquire(uint8_t*& data, size_t& count) override {
    data = nullptr;
    count = 0;
    return false;
  }
  void release(uint8_t*, size_t) override {}

 protected:
  uint8_t* _alloc(size_t) override { return nullptr; }
  void _commit(size_t) override {}
  pplx::task<bool> _sync() override { return pplx::task_from_result(true); }
  pplx::task<int_type> _putc(uint8_t byte) override {
    return _putn(&byte, 1).then([byte](size_t) { return static_cast<int_type>(byte); });
  }
  pplx::task<size_t> _putn(const uint8_t* data, size_t count) override {
    const pplx::task_completion_event<size_t> resumed;
    const std::string_view bytes(reinterpret_cast<const char*>(data), count);
    // What nobody reads is dropped until the connection is closed. To refuse it would be an
    // exception, upon which the library waits for its own thread.
    const Inlet::Flow flow = inlet_->push(bytes, [resumed, count] { resumed.set(count); });
    return flow == Inlet::Flow::kWait ? pplx::create_task(resumed) : pplx::task_from_result(count);
  }
  // Nothing is read from here.
  pplx::task<int_type> _bumpc() override { return nothing(); }
  int_type _sbumpc() override { return traits::eof(); }
  pplx::task<int_type> _getc() override { return nothing(); }
  int_type _sgetc() override { return traits::eof(); }
  pplx::task<int_type> _nextc() override { return nothing(); }
  pplx::task<int_type> _ungetc() override { return nothing(); }
  pplx::task<size_t> _getn(uint8_t*, size_t) override { return pplx::task_from_result<size_t>(0); }
  size_t _scopy(uint8_t*, size_t) override { return 0; }

 private:
  static pplx::task<int_type> nothing() { return pplx::task_from_result<int_type>(traits::eof()); }

  const std::shared_ptr<Inlet> inlet_;
};

std::optional<Duration> retry_after(const http_response& response) {
  const auto header = response.headers().find("Retry-After");
  if (header == response.headers().end()) return std::nullopt;
  const std::string& text = header->second;
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  // A date, the other form, is not what API servers send.
  if (error != std::errc() || end != text.data() + text.size() || seconds < 0) return std::nullopt;
  return std::chrono::seconds(std::min(seconds, kRetryAfterSecondsMax));
}

/// Requests of the process that the library still has to do with.
class Underway {
 public:
  /// Never destroyed: threads of the library outlive what is.
  static Underway& all() {
    static Underway& made = *new Underway;  // NOLINT(cppcoreguidelines-owning-memory): see above
    return made;
  }

  /// Held by whatever the library is to run for one of them.
  std::shared_ptr<void> begin() {
    const std::lock_guard lock(mutex_);
    ++count_;
    return {this, [](Underway* all) { all->end(); }};
  }

  bool await_none(MonoTime deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [&] { return count_ == 0; });
  }

 private:
  void end() {
    const std::lock_guard lock(mutex_);
    --count_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t count_ = 0;
};

/// One request under way. Shared with the library's continuations, which may end after the caller
/// has given up.
class Exchange {
 public:
  Exchange(std::string what, std::shared_ptr<const TlsSetup> tls)
      : what_(std::move(what)), tls_(std::move(tls)), inlet_(std::make_shared<Inlet>(what_)) {}

  Inlet& inlet() { return *inlet_; }

  void start(client::http_client& http, http_request request) {
    request.set_response_stream(concurrency::streams::ostream(
        concurrency::streams::streambuf<uint8_t>(std::make_shared<InletStream>(inlet_))));
    try {
      http.request(std::move(request), cancel_.get_token())
          .then([inlet = inlet_, underway = Underway::all().begin()](
                    const pplx::task<http_response>& answer) { on_head(inlet, underway, answer); });
    } catch (...) {
      inlet_->fail(current_error());
    }
  }

  /// The caller is gone: closes the connection, on the network's thread.
  void abandon() {
    inlet_->close();
    network().post([inlet = inlet_, cancel = cancel_, underway = Underway::all().begin()] {
      try {
        cancel.cancel();
      } catch (...) {
        inlet->fail(current_error());  // its message is all that there is to keep
      }
    });
  }

  /// What the caller is told: with the request and what TLS has to say.
  Error explained(const Error& error) const {
    if (error.code != ErrorCode::kUnavailable || tls_ == nullptr) return with_name(error);
    const std::string why = tls_->failure_since(started_);
    if (why.empty()) return with_name(error);
    return with_name({error.code, error.message + ": " + why});
  }

 private:
  static void on_head(const std::shared_ptr<Inlet>& inlet, const std::shared_ptr<void>& underway,
                      const pplx::task<http_response>& answer) {
    try {
      const http_response response = answer.get();
      inlet->head({response.status_code(), retry_after(response)});
      response.content_ready().then([inlet, underway](const pplx::task<http_response>& whole) {
        try {
          whole.get();
          inlet->end();
        } catch (...) {
          inlet->fail(current_error());
        }
      });
    } catch (...) {
      inlet->fail(current_error());
    }
  }

  static Error current_error() {
    try {
      throw;
    } catch (const web::http::http_exception& error) {
      const bool late = error.error_code() == std::errc::timed_out;
      return {late ? ErrorCode::kDeadline : ErrorCode::kUnavailable, error.what()};
    } catch (const std::exception& error) {
      return {ErrorCode::kUnavailable, error.what()};
    } catch (...) {
      return {ErrorCode::kUnavailable, "the HTTP library failed without a message"};
    }
  }

  /// The inlet's own errors have the name already.
  Error with_name(const Error& error) const {
    return error.message.starts_with(what_) ? error : error.with_context(what_);
  }

  const std::string what_;
  const std::shared_ptr<const TlsSetup> tls_;
  const MonoTime started_ = now();
  const std::shared_ptr<Inlet> inlet_;
  pplx::cancellation_token_source cancel_;
};

/// The lines of one answer.
class HttpLines final : public LineStream {
 public:
  HttpLines(std::unique_ptr<Exchange> exchange, Duration idle, std::stop_token stop,
            int64_t line_bytes_max)
      : exchange_(std::move(exchange)),
        idle_(idle),
        stop_(std::move(stop)),
        line_bytes_max_(line_bytes_max) {}
  ~HttpLines() override {
    if (!exchange_->inlet().ended()) exchange_->abandon();
  }

  Result<std::optional<std::string>> next_line() override {
    if (failure_) return *failure_;
    Result<std::optional<std::string>> line =
        exchange_->inlet().await_line(line_bytes_max_, idle_, stop_);
    if (line) return line;
    failure_ = exchange_->explained(line.error());
    exchange_->abandon();
    return *failure_;
  }

 private:
  const std::unique_ptr<Exchange> exchange_;
  const Duration idle_;
  const std::stop_token stop_;
  const int64_t line_bytes_max_;
  std::optional<Error> failure_;
};

std::atomic<bool>& network_started() {
  static std::atomic<bool> started = false;
  return started;
}

/// Made once in a process, before anything else of the library is used.
void start_network_threads() {
  static const bool started = [] {
    prepare_openssl();
    crossplat::threadpool::initialize_with_threads(kNetworkThreads);
    network_started() = true;
    return true;
  }();
  (void)started;
}

/// The library resolves the host as it is written, so an IPv6 address must come without brackets.
web::uri base_uri(const ServerUrl& url) {
  web::uri_builder builder;
  builder.set_scheme(url.scheme == Scheme::kHttps ? "https" : "http");
  builder.set_host(url.host);
  builder.set_port(url.port);
  builder.set_path(url.prefix);
  return builder.to_uri();
}

class HttpTransport final : public Transport {
 public:
  HttpTransport(ServerUrl url, const ServerConfig& config, std::shared_ptr<TlsSetup> tls,
                const Clock& clock, std::string user_agent, const HttpLimits& limits)
      : url_(std::move(url)),
        host_header_(config.tls_server_name),
        tls_(std::move(tls)),
        tokens_(config, clock),
        user_agent_(std::move(user_agent)),
        limits_(limits),
        calls_(base_uri(url_), http_config(kCallCleanup)),
        watches_(base_uri(url_), http_config(kWatchCleanup)) {}

  Result<Response> send(const Request& request, const Patience& patience) override {
    const MonoTime deadline = now() + patience.limit;
    return with_token<Response>(
        [&](const std::string& token) { return send_as(token, request, deadline, patience.stop); });
  }

  Result<Opened> open(const Request& request, const Patience& patience) override {
    const MonoTime deadline = now() + patience.limit;
    return with_token<Opened>(
        [&](const std::string& token) { return open_as(token, request, deadline, patience); });
  }

 private:
  client::http_client_config http_config(std::chrono::seconds timeout) const {
    client::http_client_config config;
    config.set_timeout(timeout);
    config.set_validate_certificates(true);
    if (tls_ != nullptr) {
      config.set_ssl_context_callback([tls = tls_](boost::asio::ssl::context& context) {
        const Status ready = tls->configure(context.native_handle());
        if (!ready) throw std::runtime_error(ready.error().message);  // the library passes it on
      });
    }
    return config;
  }

  /// An answer 401 to a token of a file is perhaps one to a token that has been replaced.
  template <class T, class Call>
  Result<T> with_token(Call call) {
    TRAINYARD_ASSIGN(const std::string token, tokens_.token());
    Result<T> answer = call(token);
    if (!answer || answer->status != 401 || !tokens_.renew(token)) return answer;
    TRAINYARD_ASSIGN(const std::string renewed, tokens_.token());
    return call(renewed);
  }

  Result<std::unique_ptr<Exchange>> start(client::http_client& http, const std::string& token,
                                          const Request& request) {
    auto exchange = std::make_unique<Exchange>(
        std::string(name_of(request.method)) + " " + request.path + " of " + url_.text(), tls_);
    try {
      http_request message{std::string(name_of(request.method))};
      message.set_request_uri(
          web::uri(request.path + (request.query.empty() ? "" : "?" + request.query)));
      auto& headers = message.headers();
      headers.add("Accept", request.accept);
      headers.add("User-Agent", user_agent_);
      if (!host_header_.empty()) headers.add("Host", host_header_);
      if (!token.empty()) headers.add("Authorization", "Bearer " + token);
      if (!request.body.empty()) message.set_body(request.body, request.content_type);
      exchange->start(http, std::move(message));
    } catch (const std::exception& error) {
      return Error{ErrorCode::kInternal, request.path + ": " + error.what()};
    }
    return exchange;
  }

  Result<Response> send_as(const std::string& token, const Request& request, MonoTime deadline,
                           const std::stop_token& stop) {
    TRAINYARD_ASSIGN(const std::unique_ptr<Exchange> exchange, start(calls_, token, request));
    const Result<Inlet::Head> head = exchange->inlet().await_head(deadline, stop);
    if (!head) return given_up(*exchange, head.error());
    Result<std::string> body = exchange->inlet().await_body(limits_.body_bytes_max, deadline, stop);
    if (!body) return given_up(*exchange, body.error());
    return Response{head->status, *std::move(body), head->retry_after};
  }

  Result<Opened> open_as(const std::string& token, const Request& request, MonoTime deadline,
                         const Patience& patience) {
    TRAINYARD_ASSIGN(std::unique_ptr<Exchange> exchange, start(watches_, token, request));
    const Result<Inlet::Head> head = exchange->inlet().await_head(deadline, patience.stop);
    if (!head) return given_up(*exchange, head.error());
    Opened opened{head->status, {}, head->retry_after, nullptr};
    if (head->status == 200) {
      opened.lines = std::make_unique<HttpLines>(std::move(exchange), patience.idle, patience.stop,
                                                 limits_.line_bytes_max);
      return opened;
    }
    Result<std::string> body =
        exchange->inlet().await_body(limits_.body_bytes_max, deadline, patience.stop);
    if (!body) return given_up(*exchange, body.error());
    opened.body = *std::move(body);
    return opened;
  }

  static Error given_up(Exchange& exchange, const Error& error) {
    exchange.abandon();
    return exchange.explained(error);
  }

  const ServerUrl url_;
  const std::string host_header_;
  /// Shared with connections and streams that outlive this.
  const std::shared_ptr<TlsSetup> tls_;
  TokenSource tokens_;
  const std::string user_agent_;
  const HttpLimits limits_;
  client::http_client calls_;
  client::http_client watches_;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_http_transport(const ServerConfig& config,
                                                       const Clock& clock,
                                                       const std::string& user_agent,
                                                       const HttpLimits& limits) {
  TRAINYARD_ASSIGN(ServerUrl url, parse_server_url(config.server));
  std::shared_ptr<TlsSetup> tls;
  if (url.scheme == Scheme::kHttps) {
    const std::string& name = config.tls_server_name.empty() ? url.host : config.tls_server_name;
    TRAINYARD_ASSIGN(tls, TlsSetup::make(config, name));
  }
  try {
    start_network_threads();
    return std::unique_ptr<Transport>(std::make_unique<HttpTransport>(
        std::move(url), config, std::move(tls), clock, user_agent, limits));
  } catch (const std::exception& error) {
    return Error{ErrorCode::kInvalidConfig, config.server + ": " + error.what()};
  }
}

bool await_network_idle(Duration limit) {
  const MonoTime deadline = now() + limit;
  if (!network_started()) return true;
  if (!Underway::all().await_none(deadline)) return false;
  // The library still has to let go of what it has just run.
  const auto come_by = std::make_shared<std::promise<void>>();
  std::future<void> came_by = come_by->get_future();
  network().post([come_by] { come_by->set_value(); });
  return came_by.wait_until(deadline) == std::future_status::ready;
}

}  // namespace trainyard::kube
