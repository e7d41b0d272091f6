#include "common/http/status_server.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <list>
#include <map>
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
#include <boost/beast/http/span_body.hpp>

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

using Answer = std::shared_ptr<const Response>;

/// The last answer of a page, for whoever asks soon after.
struct LastAnswer {
  Answer answer;
  std::chrono::steady_clock::time_point until{};
};

/// What all connections share; only touched on the server's thread.
struct Shared {
  std::vector<Page> pages;
  ServerLimits limits;
  ServerCounters counters;
  std::vector<LastAnswer> last_answers = std::vector<LastAnswer>(pages.size());
};

Response plain(int status, const std::string& text) {
  return {.status = status, .body = text + "\n"};
}

Answer refusal(int status, const std::string& text) {
  return std::make_shared<const Response>(plain(status, text));
}

Answer ask(Shared& shared, size_t page) {
  LastAnswer& last = shared.last_answers[page];
  const auto now = std::chrono::steady_clock::now();
  if (last.answer && now < last.until) return last.answer;
  last.answer.reset();
  auto made = std::make_shared<const Response>(shared.pages[page].answer(shared.counters));
  if (shared.pages[page].shared_for > std::chrono::milliseconds::zero()) {
    last = {made, std::chrono::steady_clock::now() + shared.pages[page].shared_for};
  }
  return made;
}

Answer answer_to(Shared& shared, bhttp::verb method, std::string_view target) {
  const std::string_view path = target.substr(0, target.find('?'));
  const auto page = std::find_if(shared.pages.begin(), shared.pages.end(),
                                 [&](const Page& candidate) { return candidate.path == path; });
  if (page == shared.pages.end()) return refusal(404, "nothing here");
  if (method != bhttp::verb::get && method != bhttp::verb::head) {
    return refusal(405, "GET and HEAD only");
  }
  return ask(shared, static_cast<size_t>(page - shared.pages.begin()));
}

/// One connection: a request, an answer, the end.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, net::ip::address peer, Shared& shared,
          std::function<void(Session*)> on_end)
      : stream_(std::move(socket)), peer_(peer), shared_(shared), on_end_(std::move(on_end)) {
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

  const net::ip::address& peer() const { return peer_; }

 private:
  void on_header(error_code error) {
    if (error == beast::error::timeout) ++shared_.counters.timed_out;
    if (error == bhttp::error::header_limit || error == bhttp::error::buffer_overflow) {
      return reply(refusal(431, "header too large"), false);
    }
    if (error && error.category() == make_error_code(bhttp::error::bad_method).category() &&
        error != bhttp::error::end_of_stream && error != bhttp::error::partial_message) {
      return reply(refusal(400, "no HTTP request"), false);
    }
    if (error) return end();
    const auto& request = parser_.get();
    const auto target = request.target();
    reply(answer_to(shared_, request.method(), {target.data(), target.size()}),
          request.method() == bhttp::verb::head);
  }

  void reply(Answer answer, bool head) {
    answer_ = std::move(answer);
    ++shared_.counters.answers[place_of(answer_->status)];
    response_.result(static_cast<unsigned>(answer_->status));
    response_.set(bhttp::field::content_type, answer_->content_type);
    response_.set(bhttp::field::cache_control, "no-store");
    if (answer_->status == 405) response_.set(bhttp::field::allow, "GET, HEAD");
    response_.keep_alive(false);
    response_.content_length(answer_->body.size());
    if (!head) response_.body() = {answer_->body.data(), answer_->body.size()};
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
  const net::ip::address peer_;
  Shared& shared_;
  std::function<void(Session*)> on_end_;
  beast::flat_static_buffer<kReadBytes> buffer_;
  bhttp::request_parser<bhttp::empty_body> parser_;
  Answer answer_;  ///< whose body `response_` shows
  bhttp::response<bhttp::span_body<const char>> response_;
  std::optional<bhttp::response_serializer<bhttp::span_body<const char>>> serializer_;
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
    tcp::socket socket(context_);
    socket.assign(protocol, fd);
    error_code gone;
    const net::ip::address peer = socket.remote_endpoint(gone).address();
    if (gone) return;
    if (sessions_.size() >= shared_.limits.connections_max) evict();
    sessions_.push_back(
        std::make_shared<Session>(std::move(socket), peer, shared_, [this](Session* ended) {
          sessions_.remove_if([&](const auto& session) { return session.get() == ended; });
        }));
    sessions_.back()->run();
  }

  void evict() {
    std::map<net::ip::address, size_t> open;
    for (const auto& session : sessions_)
      ++open[session->peer()];
    const auto most = std::max_element(
        open.begin(), open.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto oldest = std::find_if(  // of several that have as many, whoever came first
        sessions_.begin(), sessions_.end(),
        [&](const auto& session) { return open[session->peer()] == most->second; });
    ++shared_.counters.evicted;
    (*oldest)->close();
    sessions_.erase(oldest);
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
                               std::function<Health()> ready,
                               std::chrono::milliseconds metrics_shared_for) {
  return {{"/metrics",
           [metrics = std::move(metrics)](const ServerCounters& counters) {
             return Response{200, kMetricsContentType, metrics(counters)};
           },
           metrics_shared_for},
          {"/healthz", [](const ServerCounters&) { return plain(200, "ok"); }},
          {"/readyz", [ready = std::move(ready)](const ServerCounters&) {
             const Health health = ready();
             return plain(health.ok ? 200 : 503, health.text);
           }}};
}

}  // namespace trainyard::http
