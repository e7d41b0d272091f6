#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/unique_fd.h"
#include "tests/support/test_authority.h"

struct ssl_ctx_st;
struct ssl_st;

namespace trainyard::testing_support {

struct ReceivedRequest {
  std::string line;  ///< "GET /x HTTP/1.1"
  std::string head;  ///< all header lines
  std::string body;

  /// Of a header line; empty where there is none.
  std::string header(std::string_view name) const;
};

/// One connection in the hands of a test, byte by byte.
class LoopbackConnection {
 public:
  LoopbackConnection(int fd, ssl_st* ssl) : fd_(fd), ssl_(ssl) {}

  /// The next request; nothing when the other side has gone.
  std::optional<ReceivedRequest> read_request();
  /// False when the other side has gone.
  bool write(std::string_view bytes);
  /// A whole answer with Content-Length.
  bool answer(int status, std::string_view body, std::string_view headers = "");
  /// One chunk of a body with Transfer-Encoding: chunked.
  bool chunk(std::string_view bytes);
  /// Returns when the other side (or the server's end) has closed the connection.
  void wait_until_gone();
  /// Ends the connection with a reset instead of an orderly end, when the handler returns.
  void reset();
  /// What has come, at most `size` bytes; 0 or less when the other side has gone. Blocks.
  int read_some(char* data, size_t size);
  /// Whether read_some() has something without asking the system.
  bool has_unread() const;
  /// For poll(2).
  int descriptor() const { return fd_; }

 private:
  int fd_;
  ssl_st* ssl_;
  std::string held_;
};

/// The head of an answer whose body comes in chunks.
inline constexpr char kChunkedHead[] =
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";

/// How a server meets a connection.
enum class Greeting {
  kServe,
  kReset,      ///< it is reset at once
  kRefuseTls,  ///< the handshake is answered with an alert
};

/// A server on a free port of a loopback address. Each connection is given to the handler in a
/// thread of its own and closed when it returns.
class LoopbackServer {
 public:
  using Handler = std::function<void(LoopbackConnection&)>;
  struct Options {
    std::optional<Identity> identity;  ///< TLS where there is one
    std::string client_authority;      ///< PEM; where not empty, clients must show a certificate
    bool tls_1_1_only = false;
    bool v6 = false;
    /// Asked for each connection; absent: all are served. Called from their threads.
    std::function<Greeting()> greet;
  };

  explicit LoopbackServer(Handler handler) : LoopbackServer(std::move(handler), {}) {}
  LoopbackServer(Handler handler, const Options& options);
  /// Ends all connections; the handlers return.
  ~LoopbackServer();

  /// "http://127.0.0.1:PORT" or https; of another host name where one is given.
  std::string url(std::string_view host = "") const;
  int connections() const;
  /// Ends the connections that are open now; their handlers see the other side gone.
  void drop_all();

 private:
  void accept_all(const std::stop_token& stop);
  void serve(int fd);
  void serve_tls(int fd, ssl_st* ssl);

  const Handler handler_;
  const std::function<Greeting()> greet_;
  const bool v6_;
  std::shared_ptr<ssl_ctx_st> tls_;
  UniqueFd listener_;
  int port_ = 0;
  mutable std::mutex mutex_;
  std::vector<int> open_;
  int connections_ = 0;
  std::vector<std::jthread> threads_;
  std::jthread acceptor_;
};

}  // namespace trainyard::testing_support
