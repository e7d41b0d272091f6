#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "common/base/time.h"
#include "common/base/unique_fd.h"
#include "common/http/listen_address.h"
#include "common/log/log.h"
#include "control/front/link.h"
#include "control/front/places.h"
#include "control/front/tls.h"

namespace trainyard::control {

/// Stands before a gRPC server at a TCP port: accepts connections, ends TLS, and passes the plain
/// bytes on over a socket per connection, within FrontBounds until a connection is admitted
/// (docs/adr/0022-a-front-before-grpc.md). A connection carries one stream; when that is closed,
/// so is the connection. All work is done by one thread of its own. Thread-safe.
class Front {
 public:
  using StreamId = uint64_t;
  struct Options {
    std::string address;  ///< as http::listen_at
    TlsIdentity identity;
    FrontBounds bounds;
    Logger* logger = nullptr;  ///< optional; outlives this
    /// Serves HTTP/2 on a socket that it takes over. Called by the front's thread.
    std::function<void(int fd)> serve;
  };
  struct Counts {
    Places::Counts now;
    int64_t accepted = 0;   ///< ever
    int64_t cut = 0;        ///< of those, by us and not because the stream had ended
    int64_t bytes_max = 0;  ///< the most that `now.bytes` has been
  };

  /// Errors: as http::listen_at; kInvalidConfig for a certificate or key that cannot be used.
  static Result<std::unique_ptr<Front>> listen(Options options);
  /// Closes every connection.
  ~Front();

  int port() const { return port_; }

  /// A stream has come over the socket that serve() got. The peer's address, without port; nothing
  /// where the connection has ended.
  std::optional<std::string> stream_opened(StreamId stream, int fd);
  /// It is known whose the stream is: its connection has no bounds any more.
  void admit(StreamId stream);
  /// What was written to it is sent, then its connection is closed.
  void stream_closed(StreamId stream);

  Counts counts() const;

 private:
  using Id = Places::Id;
  using Links = std::map<Id, std::unique_ptr<Link>>;
  struct Served {
    Id id = 0;
    std::string address;
  };
  struct News {
    enum class Kind { kStreamOpened, kAdmitted, kStreamClosed };
    Kind kind;
    Id id;
  };

  Front(Options options, TlsServer tls, std::vector<http::Listening> listening);
  void run(const std::stop_token& stop);
  void serve_events();
  void hear();
  void tell(News news);
  void accept_some(int listener);
  void accept_one(UniqueFd socket, const std::string& address);
  void ask_listeners(bool to_accept);
  void start_next(const std::string& address);
  void pump(Links::iterator at);
  void ask(Id id, Link& link);
  void close(Links::iterator at);
  void cut(Id id, std::string_view why);
  void cut_excess();
  void cut_overdue(MonoTime now);
  void note_counts();

  const Options options_;
  const TlsServer tls_;
  const std::vector<http::Listening> listening_;
  int port_ = 0;
  UniqueFd epoll_;
  UniqueFd wake_;
  // Of the thread only:
  Places places_;
  Links links_;
  Id next_id_ = 1;
  std::vector<Id> busy_;
  bool accepts_ = true;
  MonoTime next_look_{};
  MonoTime next_log_{};
  int64_t cuts_untold_ = 0;

  mutable std::mutex mutex_;
  std::map<int, Served> served_;    ///< by gRPC's descriptor; guarded by mutex_
  std::map<StreamId, Id> streams_;  ///< guarded by mutex_
  std::vector<News> news_;          ///< guarded by mutex_
  Counts counts_;                   ///< guarded by mutex_
  std::jthread thread_;             ///< last: ends first
};

}  // namespace trainyard::control
