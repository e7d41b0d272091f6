#include "tests/support/fault_proxy.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <poll.h>
#include <utility>

#include <fmt/format.h>

#include "tests/support/answer_framing.h"
#include "tests/support/test_authority.h"
#include "tests/support/tls_client.h"

namespace trainyard::testing_support {
namespace {

using Kind = Fault::Kind;

/// Between parts of an answer that come at once.
constexpr std::chrono::milliseconds kBurst{50};

std::string status_object(int status, const std::string& reason, int64_t retry_after) {
  const std::string details =
      retry_after > 0 ? fmt::format(R"(,"details":{{"retryAfterSeconds":{}}})", retry_after) : "";
  return fmt::format(R"({{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure",)"
                     R"("message":"a fault of the test","reason":"{}","code":{}{}}})",
                     reason, status, details);
}

bool send_other_answer(LoopbackConnection& client, const Fault& fault) {
  const int64_t seconds = fault.retry_after.count();
  const std::string header = seconds > 0 ? fmt::format("Retry-After: {}\r\n", seconds) : "";
  return client.answer(fault.status, status_object(fault.status, fault.reason, seconds),
                       "Content-Type: application/json\r\n" + header);
}

/// A watch that is told that its version is too old.
bool send_expiry(LoopbackConnection& client) {
  const std::string event =
      fmt::format("{{\"type\":\"ERROR\",\"object\":{}}}\n", status_object(410, "Expired", 0));
  return client.write(kChunkedHead) && client.chunk(event) && client.chunk("");
}

/// Blanks until the client has enough. They are neither a line's end nor bad JSON.
void send_without_end(LoopbackConnection& client) {
  const std::string blanks(1 << 16, ' ');
  bool wanted = client.write(kChunkedHead);
  while (wanted)
    wanted = client.chunk(blanks);
}

/// Waits until the server has sent something; false when the client has gone instead.
bool await_server(LoopbackConnection& server, LoopbackConnection& client) {
  if (server.has_unread()) return true;
  std::array<pollfd, 2> ends = {pollfd{server.descriptor(), POLLIN, 0},
                                pollfd{client.descriptor(), POLLIN, 0}};
  // Clients say nothing while they wait for an answer: what comes from them is their end.
  while (::poll(ends.data(), ends.size(), -1) < 0) {
  }
  return ends[1].revents == 0;
}

enum class Ending { kComplete, kServerGone, kClientGone };

/// Gives an answer, piece by piece as it comes, to `deliver`, which says whether to go on.
template <class Deliver>
Ending pass_answer(LoopbackConnection& server, LoopbackConnection& client, Deliver deliver) {
  AnswerFraming framing;
  std::array<char, 16384> buffer{};
  while (!framing.complete()) {
    if (!await_server(server, client)) return Ending::kClientGone;
    const int count = server.read_some(buffer.data(), buffer.size());
    if (count <= 0) return Ending::kServerGone;
    const size_t taken = framing.take({buffer.data(), static_cast<size_t>(count)});
    if (!deliver(std::string_view(buffer.data(), taken))) return Ending::kClientGone;
  }
  return Ending::kComplete;
}

std::optional<std::string> whole_answer(LoopbackConnection& server, LoopbackConnection& client) {
  std::string all;
  const Ending ending = pass_answer(server, client, [&](std::string_view bytes) {
    all += bytes;
    return true;
  });
  if (ending != Ending::kComplete) return std::nullopt;
  return all;
}

}  // namespace

class FaultProxy::Impl {
 public:
  explicit Impl(const Options& options)
      : port_(options.server_port),
        to_server_(options.server_authority),
        server_([this](LoopbackConnection& client) { serve(client); },
                {.identity = authority_.issue({.names = {"IP:127.0.0.1"}}),
                 .greet = [this] { return greet(); }}) {}
  ~Impl() {
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }

  const TestAuthority& authority() const { return authority_; }
  LoopbackServer& server() { return server_; }

  void script(FaultScript script) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(script);
    requests_.clear();
    writes_ = lists_ = watches_ = faults_ = 0;
  }
  void on_crash(std::function<void()> crash) {
    const std::lock_guard lock(mutex_);
    crash_ = std::move(crash);
  }
  void greet_with(Greeting greeting) {
    const std::lock_guard lock(mutex_);
    greeting_ = greeting;
    if (greeting != Greeting::kServe) turned_away_ = 0;
  }
  std::vector<ProxiedRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  int64_t faults() const {
    const std::lock_guard lock(mutex_);
    return faults_;
  }
  int64_t turned_away() const {
    const std::lock_guard lock(mutex_);
    return turned_away_;
  }
  int64_t held() const {
    const std::lock_guard lock(mutex_);
    return std::ssize(held_);
  }

  std::vector<LateRequest> release() {
    std::vector<Held> held;
    {
      const std::lock_guard lock(mutex_);
      held.swap(held_);
    }
    std::vector<LateRequest> late;
    for (const Held& one : held)
      late.push_back({one.request, deliver(one.text)});
    return late;
  }

 private:
  enum class Next { kGoOn, kEnd };
  struct Held {
    ProxiedRequest request;
    std::string text;
  };

  /// The status of the server's answer; 0: there is none.
  int deliver(const std::string& text) const {
    const auto link = to_server_.connect(port_);
    if (!link || !link->connection().write(text)) return 0;
    AnswerFraming framing;
    std::array<char, 16384> buffer{};
    while (!framing.complete()) {
      const int count = link->connection().read_some(buffer.data(), buffer.size());
      if (count <= 0) return 0;
      framing.take({buffer.data(), static_cast<size_t>(count)});
    }
    return framing.status();
  }

  Greeting greet() {
    const std::lock_guard lock(mutex_);
    if (greeting_ != Greeting::kServe) ++turned_away_;
    return greeting_;
  }

  void serve(LoopbackConnection& client) {
    std::unique_ptr<TlsClient::Link> link;
    while (const auto request = client.read_request()) {
      if (!link) link = to_server_.connect(port_);
      if (!link) return;
      if (handle(client, link->connection(), *request) == Next::kEnd) return;
    }
  }

  /// Numbers the request and asks the script.
  Fault judge(ProxiedRequest& request) {
    const std::lock_guard lock(mutex_);
    request.at = std::chrono::steady_clock::now();
    request.request = std::ssize(requests_) + 1;
    if (request.write > 0) request.write = ++writes_;
    if (request.list > 0) request.list = ++lists_;
    if (request.watch > 0) request.watch = ++watches_;
    requests_.push_back(request);
    Fault fault = script_ ? script_(request) : Fault::none();
    if (!is_possible(fault.kind, request)) fault = {};
    if (fault.kind != Kind::kNone) ++faults_;
    return fault;
  }

  bool is_possible(Kind kind, const ProxiedRequest& request) const {
    const bool watch = request.watch > 0;
    switch (kind) {
      case Kind::kStale:
        return first_lists_.contains(request.path);
      case Kind::kDelay:
      case Kind::kExpire:
        return watch;
      case Kind::kCrashAfter:
      case Kind::kLoseAnswer:
      case Kind::kNoAnswer:
      case Kind::kAnswerAfter:
        return !watch;
      default:
        return true;
    }
  }

  Next handle(LoopbackConnection& client, LoopbackConnection& server,
              const ReceivedRequest& received) {
    ProxiedRequest request = parse_request_line(received.line);
    const Fault fault = judge(request);
    switch (fault.kind) {
      case Kind::kCrashBefore:
        crash();
        return Next::kEnd;
      case Kind::kLoseRequest:
        client.reset();
        return Next::kEnd;
      case Kind::kAnswer:
        return send_other_answer(client, fault) ? Next::kGoOn : Next::kEnd;
      case Kind::kExpire:
        return send_expiry(client) ? Next::kGoOn : Next::kEnd;
      case Kind::kEndless:
        send_without_end(client);
        return Next::kEnd;
      case Kind::kStale:
        return client.write(first_list(request)) ? Next::kGoOn : Next::kEnd;
      default:
        break;
    }
    const std::string text = received.line + "\r\n" + received.head + "\r\n" + received.body;
    if (fault.kind == Kind::kHold) {
      hold({request, text});
      client.wait_until_gone();
      return Next::kEnd;
    }
    if (!server.write(text)) return Next::kEnd;
    return request.watch > 0 ? stream(client, server, fault)
                             : reply(client, server, request, fault);
  }

  /// An answer that has an end: read whole, so that the server has done what was asked.
  Next reply(LoopbackConnection& client, LoopbackConnection& server, const ProxiedRequest& request,
             const Fault& fault) {
    const std::optional<std::string> answer = whole_answer(server, client);
    if (!answer) return Next::kEnd;
    switch (fault.kind) {
      case Kind::kCrashAfter:
        crash();
        return Next::kEnd;
      case Kind::kLoseAnswer:
        return Next::kEnd;
      case Kind::kNoAnswer:
        client.wait_until_gone();
        return Next::kEnd;
      case Kind::kAnswerAfter:
        return send_other_answer(client, fault) ? Next::kGoOn : Next::kEnd;
      case Kind::kCut:
        client.write(std::string_view(*answer).substr(0, fault.bytes % answer->size()));
        if (fault.bytes % 2 == 1) client.reset();
        return Next::kEnd;
      case Kind::kSlow:
        return send_slowly(client, *answer, fault) ? Next::kGoOn : Next::kEnd;
      default:
        break;
    }
    remember_list(request, *answer);
    return client.write(*answer) ? Next::kGoOn : Next::kEnd;
  }

  /// An answer that goes on.
  Next stream(LoopbackConnection& client, LoopbackConnection& server, const Fault& fault) {
    size_t sent = 0;
    std::chrono::steady_clock::time_point last{};
    const auto deliver = [&](std::string_view bytes) {
      if (fault.kind == Kind::kCut && sent + bytes.size() >= fault.bytes) {
        client.write(bytes.substr(0, fault.bytes - sent));
        if (fault.bytes % 2 == 1) client.reset();
        return false;
      }
      sent += bytes.size();
      if (fault.kind == Kind::kSlow) return send_slowly(client, bytes, fault);
      // What has gathered behind what was held comes with it.
      const bool first = std::chrono::steady_clock::now() - last > kBurst;
      if (fault.kind == Kind::kDelay && first && !rest(fault.pause)) return false;
      last = std::chrono::steady_clock::now();
      return client.write(bytes);
    };
    const Ending ending = pass_answer(server, client, deliver);
    return ending == Ending::kComplete ? Next::kGoOn : Next::kEnd;
  }

  bool send_slowly(LoopbackConnection& client, std::string_view bytes, const Fault& fault) {
    while (!bytes.empty()) {
      const size_t count = std::min(bytes.size(), std::max<size_t>(fault.bytes, 1));
      if (!rest(fault.pause) || !client.write(bytes.substr(0, count))) return false;
      bytes.remove_prefix(count);
    }
    return true;
  }

  /// False when the proxy ends.
  bool rest(std::chrono::milliseconds pause) {
    std::unique_lock lock(mutex_);
    return !changed_.wait_for(lock, pause, [this] { return over_; });
  }

  void hold(Held held) {
    const std::lock_guard lock(mutex_);
    held_.push_back(std::move(held));
  }

  void crash() {
    std::function<void()> crash;
    {
      const std::lock_guard lock(mutex_);
      crash = crash_;
    }
    if (crash) crash();
  }

  void remember_list(const ProxiedRequest& request, const std::string& answer) {
    if (request.list == 0 || !answer.starts_with("HTTP/1.1 200 ")) return;
    const std::lock_guard lock(mutex_);
    first_lists_.try_emplace(request.path, answer);
  }
  std::string first_list(const ProxiedRequest& request) {
    const std::lock_guard lock(mutex_);
    return first_lists_[request.path];
  }

  const int port_;
  const TlsClient to_server_;
  const TestAuthority authority_{"proxy-ca"};

  mutable std::mutex mutex_;  ///< guards what follows, up to the server
  std::condition_variable changed_;
  bool over_ = false;
  Greeting greeting_ = Greeting::kServe;
  FaultScript script_;
  std::function<void()> crash_;
  std::vector<ProxiedRequest> requests_;
  int64_t writes_ = 0;
  int64_t lists_ = 0;
  int64_t watches_ = 0;
  int64_t faults_ = 0;
  int64_t turned_away_ = 0;
  std::map<std::string, std::string> first_lists_;
  std::vector<Held> held_;

  LoopbackServer server_;  ///< last: its threads use all of the above
};

FaultProxy::FaultProxy(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
FaultProxy::~FaultProxy() = default;

std::string FaultProxy::url() const { return impl_->server().url(); }
const std::string& FaultProxy::authority() const { return impl_->authority().pem(); }

void FaultProxy::script(FaultScript script) { impl_->script(std::move(script)); }
void FaultProxy::on_crash(std::function<void()> crash) { impl_->on_crash(std::move(crash)); }

void FaultProxy::go_down(Greeting greeting) {
  impl_->greet_with(greeting);
  impl_->server().drop_all();
}
void FaultProxy::come_up() { impl_->greet_with(Greeting::kServe); }

std::vector<ProxiedRequest> FaultProxy::requests() const { return impl_->requests(); }
int64_t FaultProxy::faults() const { return impl_->faults(); }
int64_t FaultProxy::held() const { return impl_->held(); }
std::vector<LateRequest> FaultProxy::release() { return impl_->release(); }
int64_t FaultProxy::turned_away() const { return impl_->turned_away(); }

}  // namespace trainyard::testing_support
