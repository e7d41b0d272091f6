#include "common/http/status_server.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <list>
#include <optional>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_static_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "common/http/listen_address.h"

namespace trainyard::http {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;
using boost::system::error_code;
using tcp = net::ip::tcp;

/// Accepted before others have their turn.
constexpr int kAcceptsPerTurn = 16;
/// Without descriptors accept(2) fails at once, again and again.
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr size_t kReadBytes = 4096;
constexpr char kMetricsContentType[] = "text/plain; version=0.0.4";

size_t place_of(int status) {
  const auto* at = std::find(kStatuses.begin(), kStatuses.end(), status);
  return at == kStatuses.end() ? 0 : static_cast<size_t>(at - kStatuses.begin());
}

/// What all connections share; only touched on the server's thread.
struct Shared {
  std::vector<Page> pages;
  ServerLimits limits;
  ServerCounters counters;
};

Response plain(int status, std::string text) { return {.status = status, .body = text + "\n"}; }

Response answer_to(Shared& shared, bhttp::verb method, std::string_view target) {
  const std::string_view path = target.substr(0, target.find('?'));
  const auto page = std::find_if(shared.pages.begin(), shared.pages.end(),
                                 [&](const Page& candidate) { return candidate.path == path; });
  if (page == shared.pages.end()) return plain(404, "nothing here");
  if (method != bhttp::verb::get && method != bhttp::verb::head) {
    return plain(405, "GET and HEAD only");
  }
  return page->answer(shared.counters);
}

/// One connection: a request, an answer, the end.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Shared& shared, std::function<void(Session*)> on_end)
      : stream_(std::move(socket)), shared_(shared), on_end_(std::move(on_end)) {
    parser_.header_limit(static_cast<uint32_t>(shared_.limits.header_bytes_max));
  }

  void run() {
    stream_.expires_after(shared_.limits.exchange_time);
    bhttp::async_read_header(
        stream_, buffer_, parser_,
        [self = shared_from_this()](error_code error, size_t) { self->on_header(error); });
  }

  void close() {
    error_code ignored;
    stream_.socket().close(ignored);
  }

 private:
  void on_header(error_code error) {
    if (error == beast::error::timeout) ++shared_.counters.timed_out;
    if (error == bhttp::error::header_limit || error == bhttp::error::buffer_overflow) {
      return reply(plain(431, "header too large"), false);
    }
    if (error && error.category() == make_error_code(bhttp::error::bad_method).category() &&
        error != bhttp::error::end_of_stream && error != bhttp::error::partial_message) {
      return reply(plain(400, "no HTTP request"), false);
    }
    if (error) return end();
    const auto& request = parser_.get();
    const auto target = request.target();
    reply(answer_to(shared_, request.method(), {target.data(), target.size()}),
          request.method() == bhttp::verb::head);
  }

  void reply(Response answer, bool head) {
    ++shared_.counters.answers[place_of(answer.status)];
    response_.result(static_cast<unsigned>(answer.status));
    response_.set(bhttp::field::content_type, answer.content_type);
    response_.set(bhttp::field::cache_control, "no-store");
    if (answer.status == 405) response_.set(bhttp::field::allow, "GET, HEAD");
    response_.keep_alive(false);
    response_.content_length(answer.body.size());
    if (!head) response_.body() = std::move(answer.body);
    stream_.expires_after(shared_.limits.exchange_time);
    serializer_.emplace(response_);
    const auto written = [self = shared_from_this()](error_code error, size_t) {
      self->on_written(error);
    };
    if (head) {
      bhttp::async_write_header(stream_, *serializer_, written);
    } else {
      bhttp::async_write(stream_, *serializer_, written);
    }
  }

  void on_written(error_code error) {
    if (error == beast::error::timeout) ++shared_.counters.timed_out;
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    end();
  }

  void end() {
    close();
    on_end_(this);
  }

  beast::tcp_stream stream_;
  Shared& shared_;
  std::function<void(Session*)> on_end_;
  beast::flat_static_buffer<kReadBytes> buffer_;
  bhttp::request_parser<bhttp::empty_body> parser_;
  bhttp::response<bhttp::string_body> response_;
  std::optional<bhttp::response_serializer<bhttp::string_body>> serializer_;
};

}  // namespace

class StatusServer::Impl {
 public:
  Impl(Options options, std::vector<Listening> listening)
      : shared_{std::move(options.pages), options.limits, {}} {
    for (Listening& one : listening) {
      const bool v6 = one.address.front() == '[';
      auto door = std::make_unique<Door>(context_);
      door->acceptor.assign(v6 ? tcp::v6() : tcp::v4(), one.fd.release());
      doors_.push_back(std::move(door));
      addresses_.push_back(one.address);
    }
    for (const auto& door : doors_)
      await_knock(*door);
    thread_ = std::thread([this] { run(); });
  }

  ~Impl() {
    context_.stop();
    thread_.join();
  }

  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  struct Door {
    explicit Door(net::io_context& context) : acceptor(context), pause(context) {}
    tcp::acceptor acceptor;
    net::steady_timer pause;
  };

  void run() {
    while (!context_.stopped()) {
      try {
        context_.run();
      } catch (const std::exception&) {
        // Out of memory at the most: the connection is lost, the server is not.
      }
    }
  }

  void await_knock(Door& door) {
    door.acceptor.async_wait(tcp::acceptor::wait_read, [this, &door](error_code error) {
      if (!error) open_to_all(door);
    });
  }

  /// accept4 by hand: asio's would leave the descriptor open to programs that are executed.
  void open_to_all(Door& door) {
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      const int fd =
          ::accept4(door.acceptor.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
      if (fd < 0 && errno != EAGAIN) return rest(door);
      if (fd < 0) break;
      welcome(fd, door.acceptor.local_endpoint().protocol());
    }
    await_knock(door);
  }

  void rest(Door& door) {
    door.pause.expires_after(kAcceptPause);
    door.pause.async_wait([this, &door](error_code error) {
      if (!error) await_knock(door);
    });
  }

  void welcome(int fd, tcp protocol) {
    if (sessions_.size() >= shared_.limits.connections_max) {
      ++shared_.counters.evicted;
      sessions_.front()->close();
      sessions_.pop_front();
    }
    tcp::socket socket(context_);
    socket.assign(protocol, fd);
    sessions_.push_back(
        std::make_shared<Session>(std::move(socket), shared_, [this](Session* ended) {
          sessions_.remove_if([&](const auto& session) { return session.get() == ended; });
        }));
    sessions_.back()->run();
  }

  net::io_context context_{1};
  Shared shared_;
  std::vector<std::unique_ptr<Door>> doors_;
  std::list<std::shared_ptr<Session>> sessions_;  ///< oldest first
  std::vector<std::string> addresses_;
  std::thread thread_;
};

StatusServer::StatusServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StatusServer::~StatusServer() = default;

Result<std::unique_ptr<StatusServer>> StatusServer::start(Options options) {
  TRAINYARD_ASSIGN(std::vector<Listening> listening, listen_at(options.address));
  return std::unique_ptr<StatusServer>(
      new StatusServer(std::make_unique<Impl>(std::move(options), std::move(listening))));
}

const std::string& StatusServer::address() const { return impl_->addresses().front(); }
std::vector<std::string> StatusServer::addresses() const { return impl_->addresses(); }

std::vector<Page> status_pages(std::function<std::string(const ServerCounters&)> metrics,
                               std::function<Health()> ready) {
  return {{"/metrics",
           [metrics = std::move(metrics)](const ServerCounters& counters) {
             return Response{200, kMetricsContentType, metrics(counters)};
           }},
          {"/healthz", [](const ServerCounters&) { return plain(200, "ok"); }},
          {"/readyz", [ready = std::move(ready)](const ServerCounters&) {
             const Health health = ready();
             return plain(health.ok ? 200 : 503, health.text);
           }}};
}

}  // namespace trainyard::http
